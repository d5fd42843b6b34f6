// The files of `serve --journal DIR`: one for each background response, so that a server that is started
// again runs what the last one did not finish. A file is written under another name, synchronised and
// renamed, and holds a checksum: it is whole, or it is not read.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace outrider {

struct JournalEntry {
  std::string id;          // the name of its file
  int64_t created_us = 0;  // microseconds since 1970; the order of requests
  std::string client;      // the key for taking turns
  std::string model;       // fingerprint of the weights and numerics
  // Only in the entry of an unfinished request:
  std::string body;             // as the client sent it
  nlohmann::json resolved;      // its seed, sampling parameters and length
  std::vector<int32_t> prompt;  // ids; a template may render another date later
  std::string request;          // fingerprint of all that its text depends on
  int64_t finished_at = 0;      // seconds since 1970
  std::string response;         // JSON; empty: unfinished
  bool is_finished() const { return !response.empty(); }
};

// A lock on a journal's directory. It ends with the process, however that ends.
class JournalLock {
 public:
  // Nothing: another process has it.
  static Result<std::optional<JournalLock>> take(const std::string& directory);
  JournalLock(JournalLock&& other) noexcept : of_(std::exchange(other.of_, {-1, -1})) {}
  JournalLock& operator=(JournalLock&&) = delete;
  ~JournalLock();

  // Whether the directory of this name is still the one that is locked.
  bool is_of(const std::string& directory) const;

 private:
  JournalLock() = default;

  std::array<int, 2> of_{-1, -1};  // descriptors of the directory and of a file in it
};

class Journal {
 public:
  struct Found {
    std::string id;
    Result<JournalEntry> entry;  // an error: the file is damaged
    int64_t modified_us = 0;     // when the file was written; microseconds since 1970
  };

  // Creates the directory if it is missing. kUnavailable: another process has it. With `on_wait` it waits
  // for the end of that process, and calls `on_wait` once before.
  static Result<Journal> open(const std::string& directory, const std::function<void()>& on_wait = {});

  const std::string& directory() const { return directory_; }
  // An error: the directory was removed, replaced or made read-only while this server runs.
  Status check() const;
  // All entries, the oldest first; removes what an interrupted write left.
  std::vector<Found> all() const;
  Result<JournalEntry> read(const std::string& id) const;
  // On the disk when this returns. Replaces the entry of that id.
  Status write(const JournalEntry& entry) const;
  void remove(const std::string& id) const;

 private:
  Journal(std::string directory, JournalLock lock)
      : directory_(std::move(directory)), lock_(std::move(lock)) {}
  std::string path_of(const std::string& id) const;

  std::string directory_;
  JournalLock lock_;
};

}  // namespace outrider
