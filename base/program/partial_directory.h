// A directory that appears complete or not at all: filled under a temporary name beside its own, renamed at
// the end, removed if the work fails or is interrupted. kill -9 leaves it under the temporary name.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "base/status.h"

namespace outrider {

class PartialDirectory {
 public:
  // Parents are created. kUnavailable names --output and the reason.
  static Result<PartialDirectory> create(const std::filesystem::path& path);
  PartialDirectory(PartialDirectory&& other) noexcept;
  PartialDirectory& operator=(PartialDirectory&&) = delete;
  ~PartialDirectory();

  const std::filesystem::path& path() const { return temporary_; }
  // Replaces whatever has its name.
  Status commit();

 private:
  explicit PartialDirectory(const std::filesystem::path& path);

  std::filesystem::path final_, temporary_;  // temporary_ is empty after the rename or removal
  // Its address is known to the signal handler.
  std::unique_ptr<const std::string> on_signal_;
};

}  // namespace outrider
