// The files of `serve --journal DIR`: one for each background response, so that a server that is started
// again runs what the last one did not finish. A file is written under another name, synchronised and
// renamed, and holds a checksum: it is whole, or it is not read.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
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
  Journal(Journal&& other) noexcept;
  Journal& operator=(Journal&&) = delete;
  ~Journal();

  const std::string& directory() const { return directory_; }
  // All entries, the oldest first; removes what an interrupted write left.
  std::vector<Found> all() const;
  Result<JournalEntry> read(const std::string& id) const;
  // On the disk when this returns. Replaces the entry of that id.
  Status write(const JournalEntry& entry) const;
  void remove(const std::string& id) const;

 private:
  Journal(std::string directory, int lock) : directory_(std::move(directory)), lock_(lock) {}
  std::string path_of(const std::string& id) const;

  std::string directory_;
  int lock_;  // a descriptor; the lock ends with the process, however that ends
};

}  // namespace outrider
