#include "base/printable.h"

#include <gtest/gtest.h>

#include <random>

#include "base/json_text.h"

namespace outrider {
namespace {

TEST(Printable, LeavesTextInAnyScriptAsItIs) {
  for (const char* text : {"", "draft-model 1.1B", "\"C:\\models\\x\"", "d\xC3\xA9j\xC3\xA0 vu",
                           "\xE6\xA8\xA1\xE5\x9E\x8B \xF0\x9F\x9A\xB2"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, WhatActsOnATerminalIsWritten) {
  EXPECT_EQ(printable("a\x1b[2Jb\nc\r\t\x7f"), "a\\x1b[2Jb\\x0ac\\x0d\\x09\\x7f");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m"),
            "\\u009b31m")
      << "the C1 form of escape [";
  EXPECT_EQ(printable("\xE2\x80\xAE"
                      "gnp.exe\xE2\x80\xA8"),
            "\\u202egnp.exe\\u2028");
}

TEST(Printable, BytesThatAreNoUtf8AreReplaced) {
  for (const char* bad :
       {"\xff", "\xC3", "\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\x80"}) {
    const std::string text = printable(std::string("a") + bad + "b");
    EXPECT_TRUE(text.starts_with("a\xEF\xBF\xBD") && text.ends_with("b")) << text;
  }
}

TEST(Printable, AnyBytesBecomeBoundedUtf8OnceAndForAll) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(random() % 60, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    const std::string text = printable(bytes, 40);
    EXPECT_LE(text.size(), 40u);
    EXPECT_EQ(printable(text, 40), text);
    EXPECT_EQ(nlohmann::json::parse(nlohmann::json(text).dump()).get<std::string>(), text)
        << "dump() throws at what is no UTF-8";
    for (const char c : text) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
  }
}

TEST(JsonText, NamesThatAreNoUtf8AreWrittenAllTheSame) {
  EXPECT_EQ(json_text(nlohmann::json{{"name",
                                      "dr\xff"
                                      "aft"}}),
            "{\"name\":\"dr\xEF\xBF\xBD"
            "aft\"}");
  EXPECT_EQ(json_text(nlohmann::json{{"a", 1}}, 2), "{\n  \"a\": 1\n}");
}

}  // namespace
}  // namespace outrider
