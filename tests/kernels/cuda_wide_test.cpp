// Products of many rows on the device: every kernel form gives the bits of the form without staging.
// Published quantized weights are tested in cuda_codes_test.
#include <gtest/gtest.h>

#include <set>

#include "tests/kernels/cuda_product.h"
#include "tests/model/model_suite.h"

namespace outrider::cuda {
namespace {

class CudaWideProducts : public CudaOps {};

// Every form once, of every type: what a checker sees that takes many times as long.
TEST_F(CudaWideProducts, EachFormOnce) {
  constexpr int64_t kN = 136;
  const std::vector<int64_t> ends{136, 200, 208, 416, 544, 544, 680, 704};
  for (WeightType type : kMatrixTypes) {
    const Product product(type, slices_from_ends(ends, step_columns(type)), kN, *stream);
    std::set<std::pair<int, bool>> forms;
    for (const auto& [rows, is_split, multiprocessors] :
         {std::tuple(32, false, 1), {24, true, 100}, {64, false, 1}, {50, true, 100}, {100, false, 1}}) {
      const auto x = random_inputs(type, rows * product.k(), static_cast<uint32_t>(rows));
      const auto out = is_split ? product.split(x, info.shared_bytes, multiprocessors)
                                : product(x, info.shared_bytes, multiprocessors);
      EXPECT_TRUE(testing::same_bits(product(x), out)) << rows << " rows of type " << static_cast<int>(type);
      const WideProduct form = choose_wide_product(rows, kN, static_cast<int>(ends.size()), multiprocessors,
                                                   static_cast<int>(weight_bits(type)), is_split);
      forms.emplace(form.rows, form.is_over_blocks);
    }
    EXPECT_EQ(forms.size(), 5u) << static_cast<int>(type);
  }
}

// Tiles of 128, 64 and 32 rows whose blocks add all slices or one, slices of many stages and of a part of
// one, of any number; and of a device that has room for the smallest tiles only.
TEST_F(CudaWideProducts, WideProductsHaveTheBitsOfTheOthers) {
  constexpr int64_t kN = 150;
  for (WeightType type : kMatrixTypes) {
    std::set<std::pair<int, bool>> forms;
    for (const auto& ends : {std::vector<int64_t>{136, 200, 208, 416, 544, 544, 680, 704},
                             {264, 344},
                             {8, 72, 208, 280},
                             {72}}) {
      if (step_columns(type) != kStep && ends.size() != 8) continue;  // codes differ in what a step holds
      const bool is_thin = ends.size() != 8 && testing::is_thin_suite();  // a tile of each size, whole or not
      const Product product(type, slices_from_ends(ends, step_columns(type)), kN, *stream);
      for (const auto& [rows, multiprocessors] :
           {std::pair(32, 1), {24, 100}, {64, 1}, {50, 100}, {100, 100}, {130, 8}, {130, 100}, {256, 1}}) {
        if (is_thin && rows != 24 && rows != 50 && multiprocessors != 8) continue;
        const auto x = random_inputs(type, rows * product.k(), static_cast<uint32_t>(rows));
        const auto expected = product(x);
        EXPECT_TRUE(testing::same_bits(expected, product(x, info.shared_bytes, multiprocessors)))
            << rows << " rows, " << multiprocessors << ", " << ends.size() << " slices";
        if (rows <= kSplitRows) {
          EXPECT_TRUE(testing::same_bits(expected, product.split(x, info.shared_bytes, multiprocessors)))
              << rows << " rows, " << multiprocessors << ", " << ends.size() << " slices";
        }
        EXPECT_TRUE(testing::same_bits(expected, product(x, int64_t{163} << 10, multiprocessors)))
            << rows << " rows, " << multiprocessors << ", " << ends.size() << " slices";
        for (const bool may_split : {false, rows <= kSplitRows}) {
          const WideProduct form =
              choose_wide_product(rows, kN, static_cast<int>(ends.size()), multiprocessors,
                                  static_cast<int>(weight_bits(type)), may_split);
          forms.emplace(form.rows, form.is_over_blocks);
        }
      }
    }
    EXPECT_EQ(forms.size(), 5u) << static_cast<int>(type);
  }
}

// More columns than 9 to 16 rows have room for in shared memory, a 70B model's among them: the bits of the
// form that stages nothing, from the ring of the wide one.
TEST_F(CudaWideProducts, LongContractionsHaveTheBitsOfTheOthers) {
  for (WeightType type : kMatrixTypes) {
    const int64_t k = is_quantized(type) ? 5328 : 8192;
    ASSERT_GT(staged_bytes(type, k), info.shared_bytes);
    const Product product(type, even_slices(k, step_columns(type)), 40, *stream);
    for (const int64_t rows : {9, 16}) {
      const auto x = random_inputs(type, rows * k, static_cast<uint32_t>(rows));
      EXPECT_TRUE(testing::same_bits(product(x), product(x, info.shared_bytes, 2)))
          << rows << " rows of type " << static_cast<int>(type);
    }
  }
}

// The first rows of 400 have the bits that they have as all of a product.
TEST_F(CudaWideProducts, BitsOfARowDependOnNoNumberOfRows) {
  for (WeightType type : kMatrixTypes) {
    const Product product(type, slices_from_ends(std::vector<int64_t>{40, 72, 136, 200}, step_columns(type)),
                          40, *stream);
    const auto x = random_inputs(type, 400 * product.k(), 1);
    const auto all = product(x);
    for (const int64_t rows :
         {1, 8, 9, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 191, 256, 257, 400})
      for (const int multiprocessors : {1, 3}) {
        const std::vector<float> first(x.begin(), x.begin() + rows * product.k());
        EXPECT_TRUE(testing::same_bits({all.begin(), all.begin() + rows * product.n()},
                                       product(first, info.shared_bytes, multiprocessors)))
            << rows << " rows of type " << static_cast<int>(type);
      }
  }
}

}  // namespace
}  // namespace outrider::cuda
