#include "base/program/partial_directory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "base/program/temporary_file.h"

namespace outrider {

namespace fs = std::filesystem;

Result<PartialDirectory> PartialDirectory::create(const fs::path& path) {
  PartialDirectory directory(path);
  std::error_code error;
  if (!fs::create_directories(directory.temporary_, error))
    return unavailable(fmt::format("--output {}: cannot be created: {}", path.string(), error.message()));
  directory.on_signal_ = std::make_unique<const std::string>(directory.temporary_.string());
  remove_directory_on_signals(directory.on_signal_->c_str());
  return directory;
}

// "DIR/" names DIR.
PartialDirectory::PartialDirectory(const fs::path& path)
    : final_(path.has_filename() ? path : path.parent_path()),
      temporary_(fmt::format("{}.{}.partial", final_.string(), getpid())) {}

PartialDirectory::PartialDirectory(PartialDirectory&& other) noexcept
    : final_(std::move(other.final_)),
      temporary_(std::exchange(other.temporary_, {})),
      on_signal_(std::move(other.on_signal_)) {}

PartialDirectory::~PartialDirectory() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
  if (on_signal_) remove_directory_on_signals(nullptr);
}

Status PartialDirectory::commit() {
  std::error_code error;
  fs::remove_all(final_, error);
  if (!error) fs::rename(temporary_, final_, error);
  if (error)
    return unavailable(fmt::format("--output {}: cannot be replaced: {}", final_.string(), error.message()));
  temporary_.clear();
  return {};
}

}  // namespace outrider
