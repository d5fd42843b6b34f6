// A line of JSON for each answer.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "base/status.h"
#include "serve/http/server.h"

namespace outrider {

std::string access_line(const HttpRecord& record, double seconds_since_1970);

class AccessLog {
 public:
  // Null without a name; "-" is standard error. Appends, and can be read while it is written; an error names
  // --access-log.
  static Result<std::unique_ptr<AccessLog>> open(const std::string& file);

  void write(const HttpRecord& record);

 private:
  struct Close {
    void operator()(std::FILE* file) const {
      if (file != stderr) std::fclose(file);
    }
  };
  explicit AccessLog(std::FILE* file) : file_(file) {}

  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace outrider
