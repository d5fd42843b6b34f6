// Runs the built program as a user would: arguments in; standard output, standard error and exit code out.
#pragma once

#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/support/temporary_directory.h"

namespace outrider::testing {

// Factor on every wait of the tests; ctest uses the same factor (cmake/outrider.cmake).
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kPatience = 6;
#else
constexpr int kPatience = 1;
#endif

// How the program's standard streams are connected.
enum class Stdout { kCaptured, kClosed, kFullDisk, kReaderLeaves };
enum class Stdin { kEmpty, kClosed };

struct RunSettings {
  std::map<std::string, std::string> env;  // added to this process's, without its OUTRIDER_ variables
  std::string directory;                   // to run in; empty: this one
  Stdout out = Stdout::kCaptured;
  Stdin in = Stdin::kEmpty;
  std::filesystem::path input;  // a file that is standard input instead
  int signal = 0;  // sent once `signal_when` exists
  std::filesystem::path signal_when;
  std::chrono::seconds limit{60};  // then the program counts as hanging and is killed; times kPatience
};

struct Outcome {
  std::vector<std::string> arguments;
  int code = -1;   // exit code, or -1
  int signal = 0;  // that ended it, or 0
  bool hung = false;
  std::string out, err;
  std::chrono::milliseconds after_signal{0};  // from the signal to the end

  bool succeeded() const { return code == 0; }
  std::string describe() const;
};

// In a child: tests may run where signals are ignored, under nohup or in the background of a script.
void heed_signals();

// argv[0] is looked up in PATH.
Outcome run_program(std::vector<std::string> argv, const RunSettings& settings = {});
// The program under test.
Outcome outrider_program(std::vector<std::string> arguments, const RunSettings& settings = {});
std::string outrider_path();

std::filesystem::path demo_target();
std::filesystem::path demo_draft();
// `generate --model <demo target> ...`.
Outcome generate(std::vector<std::string> arguments, const RunSettings& settings = {});

std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, const std::string& content);

}  // namespace outrider::testing
