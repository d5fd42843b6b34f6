#include "base/json_file.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

using nlohmann::json;

std::string json_error_of(std::string_view text, JsonLimits limits = {}) {
  const Result<json> result = parse_json(text, "file.json", limits);
  return result.ok() ? "parsed" : result.status().message();
}

TEST(JsonFile, ReadsWhatTheLibraryReads) {
  for (const char* text :
       {R"({"a":[1,-2,3.5,{"b":null,"c":{}}],"d":"\u00e9\n","e":[],"f":true,"g":18446744073709551615})", "[]",
        "3", R"([[["deep"]],{"x":{"y":[{}]}}])", R"(  {"a" : [ ] } )"})
    EXPECT_EQ(*parse_json(text, "file.json"), json::parse(text)) << text;
}

TEST(JsonFile, DuplicateKeysAreErrorsAtEveryDepth) {
  EXPECT_EQ(json_error_of(R"({"a":1,"b":2,"a":1})"), "file.json: key \"a\" appears twice in one object");
  EXPECT_EQ(json_error_of(R"([{"x":{"a":1,"a":{}}}])"), "file.json: key \"a\" appears twice in one object");
  EXPECT_EQ(json_error_of(R"({"a":{"a":{"a":1}},"b":{"a":1}})"), "parsed");
}

TEST(JsonFile, DepthAndSizeAreBounded) {
  EXPECT_EQ(json_error_of("[[[]]]", {.max_depth = 3}), "parsed");
  EXPECT_EQ(json_error_of("[[[[]]]]", {.max_depth = 3}), "file.json: nested more than 3 levels deep");
  EXPECT_EQ(json_error_of(R"({"a":{"b":{"c":{}}}})", {.max_depth = 3}),
            "file.json: nested more than 3 levels deep");
  EXPECT_EQ(json_error_of(std::string(1'000'000, '[')), "file.json: nested more than 32 levels deep");
  EXPECT_EQ(json_error_of("[10]", {.max_bytes = 4}), "parsed");
  EXPECT_EQ(json_error_of("[100]", {.max_bytes = 4}),
            "file.json: 5 bytes, more than the 4 this file may have");
}

TEST(JsonFile, OrderedTextKeepsItsOrderAndHasTheSameBounds) {
  using nlohmann::ordered_json;
  const std::string text = R"({"z":1,"a":[{"y":null,"b":{}}],"m":2.5,"g":18446744073709551615})";
  EXPECT_EQ(parse_ordered_json(text, "it")->dump(), text);
  for (const std::string& wrong :
       {std::string(R"([{"x":{"a":1,"b":2,"a":{}}}])"), std::string(200'000, '['), std::string("{\"a\":")}) {
    const auto ordered = parse_ordered_json(wrong, "file.json");
    ASSERT_FALSE(ordered.ok()) << wrong.substr(0, 40);
    EXPECT_EQ(ordered.status().message(), json_error_of(wrong));
  }
  // An object with 100,000 keys. A linear search through earlier keys took 20 s.
  std::string many = "{";
  for (int i = 0; i < 100'000; ++i) many += fmt::format("{}\"{:06x}\":0", i == 0 ? "" : ",", i);
  many += '}';
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(parse_ordered_json(many, "it")->size(), 100'000u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(JsonFile, WholeNumbersBeyond64BitsAreRefusedWhereAsked) {
  const JsonLimits fit{.whole_numbers_fit = true};
  const char* const large = R"({"a":[1,2],"tools":[{"maximum":-18446744073709551616}]})";
  EXPECT_TRUE(parse_json(large, "it").ok());
  const Status refused = parse_json(large, "it", fit).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(), "\"tools\": -18446744073709551616 is a whole number of more than 64 bits");
  EXPECT_EQ(parse_ordered_json(large, "it", fit).status().message(), refused.message());
  EXPECT_EQ(parse_json("[18446744073709551616]", "it", fit).status().message(),
            "it: 18446744073709551616 is a whole number of more than 64 bits");
  for (const char* text : {"[18446744073709551615,-9223372036854775808,1e30,1.5]", R"({"a":1e19})"})
    EXPECT_TRUE(parse_json(text, "it", fit).ok()) << text;
}

TEST(JsonFile, BrokenTextIsAnErrorWithItsPlace) {
  for (const char* text : {"", "{", "[1,]", "{\"a\":}", "nul", "1e999", "[NaN]", "{} x", "\"\xff\"",
                           "\"\xed\xa0\x80\"", "\"\\ud800\"", "{'a':1}", "[1] // comment"})
    EXPECT_EQ(json_error_of(text).find("file.json: "), 0u) << text << " -> " << json_error_of(text);
  EXPECT_NE(json_error_of("{\"a\":\n  }").find("line 2"), std::string::npos);
}

TEST(JsonFile, FilesThatAreMissingOrPointersAreNamed) {
  const TemporaryDirectory directory;
  EXPECT_EQ(read_json_file(directory / "none.json").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(read_json_file(directory.path()).status().code(), StatusCode::kInvalidArgument);
  const auto pointer =
      directory.write("a.json", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n");
  EXPECT_EQ(
      read_json_file(pointer).status().message(),
      pointer.string() + ": is a git-lfs pointer, not the file itself; run `git lfs pull` in its directory");
  const auto large = directory.write("b.json", "[1,2,3]");
  EXPECT_EQ(read_json_file(large, {.max_bytes = 6}).status().code(), StatusCode::kMalformed);
  EXPECT_EQ(*read_json_file(large), json::parse("[1,2,3]"));
}

TEST(JsonObject, ChecksTypesAndRanges) {
  const json value =
      json::parse(R"({"i":7,"u":18446744073709551615,"f":0.5,"s":"x","b":true,"n":null,"o":{"i":1},"l":[]})");
  const JsonObject object = *JsonObject::view(value, "c.json");
  EXPECT_EQ(*object.integer("i", {0, 7}), 7);
  EXPECT_EQ(object.integer("i", {0, 6}).status().message(), "c.json: \"i\" is 7; must be between 0 and 6");
  EXPECT_EQ(object.integer("i", {8, 9}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(object.integer("u", {}).ok());
  EXPECT_EQ(object.integer("f", {}).status().message(), "c.json: \"f\" must be an integer, not number");
  EXPECT_EQ(object.integer("n", {}).status().message(), "c.json: \"n\" is missing");
  EXPECT_EQ(*object.integer_or("n", 3, {}), 3);
  EXPECT_EQ(*object.number("i", 0, 10), 7.0);
  EXPECT_FALSE(object.number("f", 1, 2).ok());
  EXPECT_FALSE(object.number("s", 1, 2).ok());
  EXPECT_EQ(*object.boolean_or("b", false), true);
  EXPECT_FALSE(object.boolean_or("i", false).ok());
  EXPECT_EQ(*object.string("s"), "x");
  EXPECT_FALSE(object.string("i").ok());
  EXPECT_FALSE(object.object("n")->has_value());
  EXPECT_EQ(*(*object.object("o"))->integer("i", {}), 1);
  EXPECT_EQ((*object.object("o"))->integer("j", {}).status().message(), "c.json: \"o\": \"j\" is missing");
  EXPECT_FALSE(object.object("l").ok());
  EXPECT_FALSE(JsonObject::view(value["l"], "c.json").ok());
}

}  // namespace
}  // namespace outrider
