#include "model_files/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <random>

#include "tests/model_files/test_data.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

std::string with_length(uint64_t length, std::string_view rest) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file.append(rest);
}
std::string make_file(const std::string& header, size_t data_bytes) {
  std::string file = with_length(header.size(), header);
  for (size_t i = 0; i < data_bytes; ++i) file.push_back(static_cast<char>(i));
  return file;
}
Result<std::vector<TensorInfo>> parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "f.safetensors");
}
std::string parse_error_of(const std::string& file) {
  const auto result = parse(file);
  return result.ok() ? "parsed" : result.status().message();
}
// An error that names the file and has these words in it.
void expect_error(const std::string& header, size_t data_bytes, const std::string& words) {
  const std::string message = parse_error_of(make_file(header, data_bytes));
  EXPECT_EQ(message.find("f.safetensors: "), 0u) << message;
  EXPECT_NE(message.find(words), std::string::npos) << header.substr(0, 300) << " -> " << message;
}

TEST(Safetensors, ReadsTensorsInTheOrderOfTheirData) {
  const std::string file = make_file(R"({"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
                                     R"("__metadata__":{"format":"pt"},)"
                                     R"("a":{"data_offsets":[0,4],"shape":[],"dtype":"F32"},)"
                                     R"("empty":{"dtype":"F16","shape":[0,7],"data_offsets":[16,16]}}   )",
                                     16);
  const std::vector<TensorInfo> tensors = *parse(file);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].shape, std::vector<int64_t>{});
  EXPECT_EQ(tensors[1].name, "b");
  EXPECT_EQ(tensors[1].dtype, Dtype::kBF16);
  EXPECT_EQ(tensors[1].shape, (std::vector<int64_t>{2, 3}));
  ASSERT_EQ(tensors[1].data.size(), 12u);
  EXPECT_EQ(tensors[1].data[0], std::byte{4});
  EXPECT_EQ(tensors[2].data.size(), 0u);
}

TEST(Safetensors, HeaderLengthIsChecked) {
  EXPECT_NE(parse_error_of("").find("is empty"), std::string::npos);
  EXPECT_NE(parse_error_of("1234567").find("inside its header"), std::string::npos);
  EXPECT_NE(parse_error_of(with_length(2, "{}")).find("header length 2"), std::string::npos);
  EXPECT_NE(parse_error_of(with_length(9, "{}      ")).find("cut short"), std::string::npos);
  EXPECT_NE(parse_error_of(with_length(100'000'001, "{}      ")).find("header length"), std::string::npos);
  EXPECT_NE(parse_error_of(with_length(UINT64_MAX, "{}      ")).find("header length"), std::string::npos);
  EXPECT_NE(parse_error_of(with_length(UINT64_MAX - 7, "{}      ")).find("header length"), std::string::npos);
  EXPECT_EQ(parse_error_of(with_length(8, "{}      ")), "parsed");
}

TEST(Safetensors, ShapesAndOffsetsMustAgree) {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  EXPECT_EQ(parse_error_of(make_file(one("F32", "[2]", "[0,8]"), 8)), "parsed");
  expect_error(one("F32", "[3]", "[0,8]"), 8, "takes 12 bytes, but data_offsets span 8");
  expect_error(one("F32", "[1]", "[0,8]"), 8, "takes 4 bytes");
  expect_error(one("F32", "[2]", "[0,8]"), 7, "leave the file's 7 bytes");
  expect_error(one("F32", "[2]", "[8,0]"), 8, "data_offsets [8, 0]");
  expect_error(one("F32", "[2]", "[0,9223372036854775807]"), 8, "leave the file");
  expect_error(one("F32", "[2]", "[0,18446744073709551615]"), 8, "number where the format has none");
  expect_error(one("F32", "[2]", "[0,99999999999999999999]"), 8, "fraction");
  // 2^62 * 4 bytes wraps to 0 in 64 bits.
  expect_error(one("F32", "[4611686018427387904]", "[0,0]"), 0, "64 bits");
  expect_error(one("U8", "[4294967296,4294967296]", "[0,0]"), 0, "64 bits");
  expect_error(one("F32", "[4611686018427387904,4611686018427387904,0]", "[0,0]"), 0, "64 bits");
  expect_error(one("F32", "[-2]", "[0,8]"), 8, "negative");
  expect_error(one("F32", "[2.0]", "[0,8]"), 8, "fraction");
  expect_error(one("F32", "[2]", "[0]"), 8, "two numbers");
  expect_error(one("F32", "[2]", "[0,4,8]"), 8, "two numbers");
  expect_error(one("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), 8, "extents");
  expect_error(one("F33", "[2]", "[0,8]"), 8, "unknown dtype: F33");
  EXPECT_EQ(parse_error_of(make_file(one("F4", "[4]", "[0,2]"), 2)), "parsed");
  expect_error(one("F4", "[3]", "[0,2]"), 2, "takes 1 bytes");
  EXPECT_FALSE(is_weight_dtype(parse(make_file(one("F8_E4M3", "[4]", "[0,4]"), 4))->front().dtype));
}

TEST(Safetensors, TensorsTileTheData) {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}";
  };
  EXPECT_EQ(parse_error_of(make_file(two("[4,8]", "[0,4]"), 8)), "parsed");
  expect_error(two("[0,4]", "[2,6]"), 6, "b: overlaps");
  expect_error(two("[0,4]", "[0,4]"), 4, "overlaps");
  expect_error(two("[0,4]", "[5,9]"), 9, "1 unused bytes");
  expect_error(two("[1,5]", "[5,9]"), 9, "a: 1 unused bytes");
  expect_error(two("[0,4]", "[4,8]"), 9, "1 bytes of data belong to no tensor");
  expect_error("{}      ", 1, "belong to no tensor");
}

TEST(Safetensors, OnlyTheGrammarIsAccepted) {
  const std::string good = R"("dtype":"U8","shape":[1],"data_offsets":[0,1])";
  expect_error("{\"t\":{" + good + "},\"t\":{" + good + "}}", 1, "two entries are called t");
  expect_error("{\"t\":{" + good + ",\"dtype\":\"U8\"}}", 1, "twice: dtype");
  expect_error("{\"t\":{" + good + ",\"extra\":1}}", 1, "unknown key: extra");
  expect_error(R"({"t":{"dtype":"U8","shape":[1]}})", 1, "lacks");
  expect_error(R"({"t":{}})", 1, "lacks");
  expect_error(R"({"t":null})", 1, "t: null");
  expect_error(R"({"t":[1]}  )", 1, "t: an array");
  expect_error(R"({"t":{"dtype":["U8"]}})", 1, "an array");
  expect_error(R"({"t":{"dtype":5}})", 1, "a number");
  expect_error(R"({"t":{"shape":"1"}})", 1, "a string");
  expect_error(R"({"t":{"shape":[[1]]}})", 1, "an array");
  expect_error(R"({"t":{"shape":{"a":1}}})", 1, "an object");
  expect_error(R"({"__metadata__":{"a":1}})", 0, "__metadata__: a number");
  expect_error(R"({"__metadata__":{"a":{}}})", 0, "__metadata__: an object");
  expect_error(R"({"__metadata__":{"a":"x","a":"x"}})", 0, "key twice: a");
  expect_error(R"({"__metadata__":{"a":"x"},"__metadata__":{}})", 0, "two entries");
  expect_error("[1,2,3,4]", 0, "start with {");
  expect_error(" {}       ", 0, "start with {");
  expect_error("{\"t\xff\":{" + good + "}}", 1, "not valid JSON");
  expect_error("{\"t\":{" + good + "}}x", 1, "not valid JSON");
  expect_error("{\"t\":{" + good, 1, "not valid JSON");
}

TEST(Safetensors, HostileNestingCostsNoStack) {
  std::string deep = "{\"t\":";
  for (int i = 0; i < 1'000'000; ++i) deep += "[";
  expect_error(deep, 0, "t: an array");
  deep = "{\"t\":{\"shape\":";
  for (int i = 0; i < 1'000'000; ++i) deep += "[";
  expect_error(deep, 0, "an array");
  deep.clear();
  for (int i = 0; i < 1'000'000; ++i) deep += "{\"shape\":";
  expect_error(deep, 0, "an object");
}

// Any flipped byte gives a parse or an error, and never a span outside the file.
TEST(Safetensors, FlippedBytesNeverLeaveTheFile) {
  const std::string original = make_file(R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                                         R"("b":{"dtype":"F16","shape":[3],"data_offsets":[16,22]}})",
                                         22);
  std::mt19937 random(7);
  int parsed = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    std::string file = original;
    for (unsigned flips = 1 + random() % 3; flips > 0; --flips)
      file[random() % file.size()] = static_cast<char>(random());
    if (random() % 4 == 0) file.resize(random() % file.size());
    const auto result = parse(file);
    if (!result.ok()) continue;
    ++parsed;
    size_t covered = 0;
    for (const TensorInfo& tensor : *result) {
      const auto* begin = reinterpret_cast<const char*>(tensor.data.data());
      ASSERT_GE(begin, file.data());
      ASSERT_LE(begin + tensor.data.size(), file.data() + file.size());
      covered += tensor.data.size();
    }
    ASSERT_EQ(covered, 22u);
  }
  EXPECT_GT(parsed, 100) << "flips in names and data still parse";
}

TEST(SafetensorsFile, GitLfsPointerIsNamedWithItsRemedy) {
  const TemporaryDirectory directory;
  const auto path = directory.write(
      "model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 4976698672\n");
  const auto result = SafetensorsFile::open(path);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("model.safetensors: is a git-lfs pointer"), std::string::npos);
  EXPECT_NE(result.status().message().find("git lfs pull"), std::string::npos);
}

TEST(SafetensorsFile, FilesThatAreNoneAndFilesThatChange) {
  const TemporaryDirectory directory;
  EXPECT_EQ(SafetensorsFile::open(directory / "none").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsFile::open(directory.path()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(SafetensorsFile::open(directory.write("empty", "")).status().code(), StatusCode::kMalformed);
  const auto path =
      directory.write("f", make_file(R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4));
  const SafetensorsFile file = SafetensorsFile::open(path).value();
  EXPECT_TRUE(file.check_unchanged().ok());
  EXPECT_EQ(file.find("t")->data[3], std::byte{3});
  EXPECT_EQ(file.find("u"), nullptr);
  std::filesystem::resize_file(path, 20);
  EXPECT_EQ(file.check_unchanged().code(), StatusCode::kUnavailable);
  std::filesystem::remove(path);
  EXPECT_EQ(file.check_unchanged().code(), StatusCode::kUnavailable);
}

std::string tensor_file(const std::string& name, char value) {
  std::string file = make_file("{\"" + name + R"(":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})", 4);
  std::fill(file.end() - 4, file.end(), value);
  return file;
}
constexpr const char* kIndexName = "model.safetensors.index.json";

TEST(TensorFiles, OneFileIsPreferredToAnIndex) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", tensor_file("a", 1));
  directory.write(kIndexName, "broken");
  const TensorFiles files = TensorFiles::open(directory.path()).value();
  EXPECT_EQ(files.names(), std::vector<std::string_view>{"a"});
  EXPECT_EQ(files.total_bytes(), 4u);
  EXPECT_EQ(files.find("b"), nullptr);
}

TEST(TensorFiles, ShardsAreJoinedByTheIndex) {
  const TemporaryDirectory directory;
  directory.write("one.safetensors", tensor_file("a", 1));
  directory.write("two.safetensors", tensor_file("b", 2));
  directory.write(kIndexName,
                  R"({"metadata":{},"weight_map":{"b":"two.safetensors","a":"one.safetensors"}})");
  TensorFiles files = TensorFiles::open(directory.path()).value();
  const TensorFiles moved = std::move(files);  // views must survive a move
  EXPECT_EQ(moved.names(), (std::vector<std::string_view>{"a", "b"}));
  EXPECT_EQ(moved.find("a")->data[0], std::byte{1});
  EXPECT_EQ(moved.find("b")->data[0], std::byte{2});
  EXPECT_TRUE(moved.check_unchanged().ok());

  EXPECT_EQ(*moved.require("a", {2}), moved.find("a"));
  const Status shape = moved.require("b", {2, 1}).status();
  EXPECT_NE(shape.message().find("two.safetensors: b has shape [2], but config.json asks for [2, 1]"),
            std::string::npos)
      << shape.message();
  EXPECT_EQ(moved.require("c", {2}).status().code(), StatusCode::kNotFound);
}

TEST(TensorFiles, OtherDtypesAreNoWeights) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors",
                  make_file(R"({"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}})", 4));
  const TensorFiles files = TensorFiles::open(directory.path()).value();
  EXPECT_EQ(files.require("a", {1}).status().code(), StatusCode::kUnsupported);
  EXPECT_NE(files.find("a"), nullptr);
}

TEST(TensorFiles, AnIndexThatLiesIsAnError) {
  const TemporaryDirectory directory;
  directory.write("one.safetensors", tensor_file("a", 1));
  directory.write("two.safetensors", tensor_file("a", 2));
  directory.write("three.safetensors", tensor_file("b", 3));
  const auto error = [&](const std::string& index) {
    directory.write(kIndexName, index);
    const auto result = TensorFiles::open(directory.path());
    return result.ok() ? "opened" : result.status().message();
  };
  const auto expect = [&](const std::string& weight_map, const std::string& words) {
    const std::string message = error("{\"weight_map\":" + weight_map + "}");
    EXPECT_NE(message.find(words), std::string::npos) << weight_map << " -> " << message;
  };
  expect(R"({"a":"one.safetensors","b":"three.safetensors"})", "opened");
  expect(R"({"a":"one.safetensors","b":"two.safetensors"})",
         "two.safetensors: holds a, which the index puts in one");
  expect(R"({"a":"one.safetensors","c":"three.safetensors"})", "three.safetensors: c is missing");
  expect(R"({"a":"one.safetensors","b":"four.safetensors","c":"five.safetensors"})",
         "five.safetensors: missing; 2 of the 3 files");
  expect(R"({"a":"one.safetensors","a":"two.safetensors"})", "\"a\" appears twice");
  for (const char* name :
       {"../one.safetensors", "/etc/passwd", "x/one.safetensors", "..", ".", "", "a\\\\b", "a\\u0000b"})
    expect("{\"a\":\"" + std::string(name) + "\"}", "file of the same directory");
  expect(R"({"a":1})", "file of the same directory");
  expect("{}", "weight_map");
  expect("[]", "weight_map");
  EXPECT_NE(error("{}").find("\"weight_map\" is missing"), std::string::npos);
  EXPECT_NE(error("{").find(kIndexName), std::string::npos);
}

TEST(TensorFiles, DirectoriesWithoutWeightsSayWhatTheyHave) {
  const TemporaryDirectory directory;
  EXPECT_EQ(TensorFiles::open(directory / "nowhere").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(TensorFiles::open(directory.path()).status().code(), StatusCode::kNotFound);
  directory.write("pytorch_model.bin", "x");
  const Status pickled = TensorFiles::open(directory.path()).status();
  EXPECT_EQ(pickled.code(), StatusCode::kUnsupported);
  EXPECT_NE(pickled.message().find("safe_serialization"), std::string::npos);
}

// Resident file-backed pages of this process, from /proc/self/statm.
int64_t resident_file_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0, shared = 0;
  statm >> size >> resident >> shared;
  return shared * ::sysconf(_SC_PAGESIZE);
}

TEST(ReleasePages, ReturnsMemoryAndKeepsTheBytes) {
  constexpr int64_t kBytes = 32 << 20;
  const TemporaryDirectory directory;
  const auto path = directory.write(
      "f", make_file(R"({"t":{"dtype":"U8","shape":[33554432],"data_offsets":[0,33554432]}})", kBytes));
  const SafetensorsFile file = SafetensorsFile::open(path).value();
  const std::span<const std::byte> data = file.find("t")->data;
  const auto sum = [&] {
    uint64_t total = 0;
    for (std::byte b : data) total += std::to_integer<uint64_t>(b);
    return total;
  };
  const int64_t before = resident_file_bytes();
  const uint64_t expected = sum();
  EXPECT_GT(resident_file_bytes(), before + kBytes / 2);
  release_pages(data);
  EXPECT_LT(resident_file_bytes(), before + kBytes / 8);
  EXPECT_EQ(sum(), expected);
  release_pages(data.subspan(1, 100));  // less than a page: nothing to do
  release_pages({});
}

TEST(SafetensorsFile, GoldenModelsHoldWhatTransformersWrote) {
  const std::map<std::string, Dtype> dtypes = {
      {"qwen3", Dtype::kF32}, {"qwen3-bf16", Dtype::kBF16}, {"qwen3-fp16", Dtype::kF16}};
  for (const auto& [name, dtype] : dtypes) {
    const TensorFiles files = TensorFiles::open(golden_models() / name).value();
    EXPECT_EQ((*files.require("model.layers.1.self_attn.q_norm.weight", {16}))->dtype, dtype) << name;
    EXPECT_EQ(files.find("lm_head.weight"), nullptr) << "tied";
  }
  const TensorFiles whole = TensorFiles::open(golden_models() / "llama-bias").value();
  const TensorFiles sharded = TensorFiles::open(golden_models() / "llama-bias-sharded").value();
  ASSERT_EQ(whole.names(), sharded.names());
  for (std::string_view name : whole.names()) {
    const TensorInfo& a = *whole.find(name);
    const TensorInfo& b = *sharded.find(name);
    EXPECT_EQ(a.shape, b.shape) << name;
    EXPECT_TRUE(std::equal(a.data.begin(), a.data.end(), b.data.begin(), b.data.end())) << name;
  }
}

TEST(SafetensorsFile, PublishedFiles) {
  const std::filesystem::path loader = test_data() / "loader";
  SKIP_WITHOUT(loader);
  const std::map<std::string, std::pair<Dtype, size_t>> files = {{"tensor-1d-int32", {Dtype::kI32, 1}},
                                                                 {"tensor-2d-float64", {Dtype::kF64, 2}},
                                                                 {"tensor-3d-float32", {Dtype::kF32, 3}},
                                                                 {"tensor-4d-float32", {Dtype::kF32, 4}}};
  for (const auto& [name, expected] : files) {
    const auto file = SafetensorsFile::open(loader / (name + ".safetensors"));
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_EQ(file->tensors().size(), 1u);
    EXPECT_EQ(file->tensors()[0].dtype, expected.first) << name;
    EXPECT_EQ(file->tensors()[0].shape.size(), expected.second) << name;
  }
  const auto pointer = SafetensorsFile::open(
      test_data() / "configs/llama3-70B-162shards/model-00001-of-00162.safetensors.lfs-pointer");
  EXPECT_NE(pointer.status().message().find("git lfs pull"), std::string::npos);
  const Status missing = TensorFiles::open(test_data() / "configs/llama3-70B-162shards").status();
  EXPECT_NE(missing.message().find("model-00001-of-00162.safetensors: missing; 162 of the 162"),
            std::string::npos)
      << missing.message();
}

}  // namespace
}  // namespace outrider
