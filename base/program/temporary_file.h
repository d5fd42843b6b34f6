// A file that appears complete or not at all: written under a temporary name beside its own, renamed at the
// end, and removed if the run fails or is interrupted, unless it is to be kept. A path that is not a regular
// file (a device, a pipe, /dev/stdout, which "-" also means) is written in place, because a rename would
// replace it. Symbolic links are followed. A replaced file's mode is kept.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace outrider {

class TemporaryFile {
 public:
  // kNotFound: the error in the path.
  static Result<TemporaryFile> create(const std::string& path);
  // Whether create() would succeed; leaves nothing behind.
  static Status check(const std::string& path);
  // Whether create() would replace an existing regular file. Streams are written in place.
  static bool replaces(const std::string& path);
  TemporaryFile(TemporaryFile&&) = default;
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile();

  std::FILE* stream() { return file_.get(); }
  // Whether it is written under a temporary name.
  bool is_temporary() const { return name_ != nullptr; }
  // Temporary files of the same path, left or being written by other runs.
  std::vector<std::string> others() const;
  // From now on the temporary file survives this run, however it ends, unless commit() renames it.
  void keep();
  // Closes it without commit(), cut to its first `bytes` bytes. Returns its temporary name. A file written in
  // place keeps its name and all bytes.
  std::string leave(int64_t bytes);
  // Gives the file its name; the stream is closed. kUnavailable if any write failed.
  Status commit();

 private:
  TemporaryFile(const std::string& path, bool in_place);
  void forget();  // a signal need no longer remove it
  void remove();

  std::string path_;  // the final one, links followed
  // The temporary one; null if written in place. Its address is known to the signal handler.
  std::unique_ptr<const std::string> name_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  bool kept_ = false;
};

// SIGINT, SIGTERM and SIGHUP then end the program as they always do, but first remove the temporary file.
void remove_temporary_file_on_signals();
// Removes the current temporary file and directory. Async-signal-safe; called by the signal handler.
void remove_temporary_file();
// The one directory that a signal removes too, with all in it; null: none. The name must stay where it is.
void remove_directory_on_signals(const char* name);

}  // namespace outrider
