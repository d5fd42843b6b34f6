// A setting that is written as a text and has a meaning, such as --q-format hidden:4. It is parsed once, when it is
// assigned. A wrong text stays, with its error, until the settings are checked.
#pragma once

#include <ostream>
#include <string>

#include "base/status.h"

namespace outrider {

template <class T, Result<T> (*parse)(const std::string& text)>
class Parsed {
 public:
  Parsed(std::string text) : text_(std::move(text)), meaning_(parse(text_)) {}
  Parsed(const char* text) : Parsed(std::string(text)) {}

  // For the parser of the command line, which knows the source of a wrong text. Empty: it is right.
  static std::string complaint(const std::string& text) {
    const Result<T> meaning = parse(text);
    return meaning.ok() ? std::string() : meaning.status().message();
  }

  const std::string& text() const { return text_; }  // as it was written
  // Names the flag and what it may be.
  const Status& status() const { return meaning_.status(); }
  bool ok() const { return meaning_.ok(); }
  // Only after a check of the status.
  const T& operator*() const { return meaning_.value(); }
  const T* operator->() const { return &meaning_.value(); }

  friend bool operator==(const Parsed& one, const Parsed& other) { return one.text_ == other.text_; }
  // The text. The parser of the command line shows defaults by it.
  friend std::ostream& operator<<(std::ostream& out, const Parsed& setting) { return out << setting.text_; }

 private:
  std::string text_;
  Result<T> meaning_;
};

}  // namespace outrider
