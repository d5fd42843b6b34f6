#include "comm/q_rows.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

QRow sparse() { return {.ids = {2, 5, 9}, .weights = {3, 1, 6}, .sum = 10}; }
QRow with_rest() { return {.ids = {2, 5, 9}, .weights = {30, 10, 60}, .sum = 118, .rest = 2, .id_end = 12}; }
QRow dense() { return {.ids = {}, .weights = {1, 0, 3}, .sum = 4}; }

TEST(QRows, AcceptsWellFormedRows) {
  EXPECT_TRUE(validate_q_row(QKind::kSparse, sparse(), TokenId(9), 10).ok());
  EXPECT_TRUE(validate_q_row(QKind::kDense, dense(), TokenId(2), 3).ok());
  EXPECT_TRUE(validate_q_row(QKind::kDense, dense(), TokenId(0), 4).ok());  // a smaller draft head
  EXPECT_TRUE(validate_q_row(QKind::kSparse, {.ids = {7}, .weights = {1}, .sum = 1}, TokenId(7), 8).ok());
  EXPECT_TRUE(validate_q_row(QKind::kSparse, with_rest(), TokenId(5), 12).ok());
  EXPECT_TRUE(validate_q_row(QKind::kSparse, with_rest(), TokenId(11), 13).ok());  // not listed
}

TEST(QRows, NamesWhatIsWrong) {
  const auto fails = [](QKind kind, const QRow& row, int32_t drafted, int64_t vocab_size, const char* what) {
    const Status status = validate_q_row(kind, row, TokenId(drafted), vocab_size);
    EXPECT_EQ(status.code(), StatusCode::kMalformed) << what;
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  };
  fails(QKind::kSparse, sparse(), 9, 9, "do not fit a vocabulary of 9");
  fails(QKind::kSparse, with_rest(), 5, 11, "do not fit a vocabulary of 11");
  fails(QKind::kSparse, with_rest(), 12, 13, "weight 0");
  fails(QKind::kSparse, with_rest(), -1, 13, "weight 0");
  fails(QKind::kSparse, sparse(), 4, 10, "weight 0");
  fails(QKind::kSparse, sparse(), -1, 10, "weight 0");
  fails(QKind::kDense, dense(), 1, 3, "weight 0");
  fails(QKind::kDense, dense(), 3, 5, "weight 0");
  fails(QKind::kDense, dense(), -1, 5, "weight 0");
  fails(QKind::kDense, dense(), 0, 2, "do not fit");
  fails(QKind::kDense, sparse(), 2, 10, "not a dense row");
  fails(QKind::kDense, {.ids = {}, .weights = {1}, .sum = 2, .rest = 1, .id_end = 2}, 0, 10,
        "not a dense row");
  fails(QKind::kSparse, dense(), 0, 10, "not a sparse row");
  fails(QKind::kSparse, {}, 0, 10, "not a sparse row");
  QRow row = sparse();
  row.sum = 11;
  fails(QKind::kSparse, row, 9, 10, "add up to 10");
  row = sparse();
  row.ids[1] = 2;  // not ascending
  fails(QKind::kSparse, row, 9, 10, "not a sparse row");
  row = sparse();
  row.weights.pop_back();
  fails(QKind::kSparse, row, 9, 10, "not a sparse row");
  row = with_rest();
  row.id_end = 9;  // not beyond the last
  fails(QKind::kSparse, row, 9, 20, "not a sparse row");
  row = with_rest();
  row.rest = 0;
  fails(QKind::kSparse, row, 9, 20, "not a sparse row");
  row = with_rest();
  row.sum -= 18;  // the others' share
  fails(QKind::kSparse, row, 9, 20, "add up to 118");
  fails(QKind::kSparse, {.ids = {1}, .weights = {0}, .sum = 0}, 1, 10, "not a sparse row");
  fails(QKind::kDense, {.ids = {}, .weights = {0, 0}, .sum = 0}, 1, 10, "add up to 0");
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
