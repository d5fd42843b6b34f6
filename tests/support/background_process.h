// A program that runs beside the test. The test can send it signals and read its output so far.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/support/program.h"

namespace outrider::testing {

class BackgroundProcess {
 public:
  // Standard output and error go to files of `directory`, named after `name`.
  BackgroundProcess(const TemporaryDirectory& directory, const std::string& name,
                    std::vector<std::string> argv);
  ~BackgroundProcess();  // kills it
  BackgroundProcess(BackgroundProcess&& other) noexcept;
  BackgroundProcess& operator=(BackgroundProcess&&) = delete;

  void signal(int number) const;
  bool ended();
  // Standard error holds `text`; false if it ends, or that takes too long.
  bool says(const std::string& text, std::chrono::seconds limit = std::chrono::seconds(60));
  // Its exit code, 128 + the signal that ended it, or -1 after the limit.
  int wait(std::chrono::seconds limit = std::chrono::seconds(120));
  std::string out() const { return read_file(out_); }
  std::string err() const { return read_file(err_); }
  // The most memory it ever had, in bytes.
  size_t peak_memory() const;
  // Processes it started, and those started by them, whose arguments hold `argument`.
  std::vector<pid_t> descendants(const std::string& argument) const;

 private:
  std::string out_, err_;
  pid_t pid_ = -1;
  bool ended_ = false;
  int code_ = -1;
};

}  // namespace outrider::testing
