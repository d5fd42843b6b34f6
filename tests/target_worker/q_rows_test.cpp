#include "comm/q_rows.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

QRow sparse() { return {.ids = {2, 5, 9}, .weights = {4, 0, 6}, .sum = 10}; }
QRow dense() { return {.ids = {}, .weights = {1, 0, 3}, .sum = 4}; }

TEST(QRows, AcceptsWellFormedRows) {
  EXPECT_TRUE(validate_q_row(QKind::kSparse, sparse(), TokenId(9), 10).ok());
  EXPECT_TRUE(validate_q_row(QKind::kDense, dense(), TokenId(2), 3).ok());
  EXPECT_TRUE(validate_q_row(QKind::kDense, dense(), TokenId(0), 4).ok());  // a smaller draft head
  EXPECT_TRUE(validate_q_row(QKind::kSparse, {.ids = {7}, .weights = {1}, .sum = 1}, TokenId(7), 8).ok());
}

TEST(QRows, NamesWhatIsWrong) {
  const auto fails = [](QKind kind, const QRow& row, int32_t drafted, int64_t vocab_size, const char* what) {
    const Status status = validate_q_row(kind, row, TokenId(drafted), vocab_size);
    EXPECT_EQ(status.code(), StatusCode::kMalformed) << what;
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  };
  fails(QKind::kSparse, sparse(), 9, 9, "below the vocabulary size");
  fails(QKind::kSparse, sparse(), 5, 10, "weight 0");
  fails(QKind::kSparse, sparse(), 4, 10, "weight 0");
  fails(QKind::kSparse, sparse(), -1, 10, "weight 0");
  fails(QKind::kDense, dense(), 1, 3, "weight 0");
  fails(QKind::kDense, dense(), 3, 5, "weight 0");
  fails(QKind::kDense, dense(), -1, 5, "weight 0");
  fails(QKind::kDense, dense(), 0, 2, "do not fit");
  fails(QKind::kDense, sparse(), 2, 10, "do not fit");
  fails(QKind::kSparse, dense(), 0, 10, "do not fit");
  fails(QKind::kSparse, {}, 0, 10, "do not fit");
  QRow row = sparse();
  row.sum = 11;
  fails(QKind::kSparse, row, 9, 10, "add up to 10");
  row = sparse();
  row.ids[1] = 2;
  fails(QKind::kSparse, row, 9, 10, "ascend");
  fails(QKind::kSparse, {.ids = {1}, .weights = {0}, .sum = 0}, 1, 10, "add up to 0");
}

TEST(QRows, WholeDrafts) {
  const std::vector<TokenId> drafted{TokenId(2), TokenId(9)};
  EXPECT_TRUE(validate_q_rows(QKind::kNone, {}, drafted, 10).ok());
  EXPECT_TRUE(validate_q_rows(QKind::kSparse, std::vector{sparse(), sparse()}, drafted, 10).ok());
  EXPECT_FALSE(validate_q_rows(QKind::kSparse, std::vector{sparse()}, drafted, 10).ok());
  EXPECT_FALSE(validate_q_rows(QKind::kNone, std::vector{sparse()}, drafted, 10).ok());
  const Status status = validate_q_rows(QKind::kSparse, std::vector{sparse(), sparse()},
                                        std::vector{TokenId(2), TokenId(3)}, 10);
  EXPECT_NE(status.message().find("draft token 1"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace outrider
