// A file that appears complete or not at all: written under a temporary name beside its own, renamed at the
// end, removed when the run fails or is interrupted, unless it is to be kept. What is no regular file (a
// device, a pipe, /dev/stdout, which "-" is, too) is written in place: a rename would take its name away from
// it. Of a symbolic link, what it points to is written. A file that is replaced passes its mode on.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace outrider {

class TemporaryFile {
 public:
  // kNotFound names what is wrong with the path.
  static Result<TemporaryFile> create(const std::string& path);
  // Whether create() would succeed; leaves nothing behind.
  static Status check(const std::string& path);
  // Whether create() would replace a regular file that is there. Streams are written in place.
  static bool replaces(const std::string& path);
  TemporaryFile(TemporaryFile&&) = default;
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile();

  std::FILE* stream() { return file_.get(); }
  // Whether it has a temporary name, and is not written in place.
  bool is_temporary() const { return name_ != nullptr; }
  // Temporary files of the same path that other runs have left, or are writing.
  std::vector<std::string> others() const;
  // From now on the temporary file outlives this run, however it ends, unless commit() gives it its name.
  void keep();
  // Closes it without commit(), with its first bytes only. Returns its temporary name; in place it keeps all,
  // and its own name.
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
// What such a signal removes, now. For signal handlers.
void remove_temporary_file();

}  // namespace outrider
