// A file that appears complete or not at all: written under a temporary name beside its own, renamed at the
// end, removed when the run fails or is interrupted.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "base/status.h"

namespace outrider {

class TemporaryFile {
 public:
  // kNotFound names what is wrong with the path.
  static Result<TemporaryFile> create(const std::string& path);
  TemporaryFile(TemporaryFile&&) = default;
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile();

  std::FILE* stream() { return file_.get(); }
  // Gives the file its name; the stream is closed. kUnavailable if any write failed.
  Status commit();

 private:
  explicit TemporaryFile(const std::string& path);

  std::string path_;
  std::unique_ptr<const std::string> name_;  // its address is known to the signal handler
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

// SIGINT, SIGTERM and SIGHUP then end the program as they always do, but first remove the temporary file.
void remove_temporary_file_on_signals();

}  // namespace outrider
