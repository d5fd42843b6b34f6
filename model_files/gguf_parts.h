// A GGUF model in one file or in several: NAME-00001-of-00003.gguf holds the keys, each part some tensors.
#pragma once

#include <filesystem>
#include <vector>

#include "base/status.h"
#include "model_files/gguf_file.h"

namespace outrider {

// The content views the files.
struct GgufParts {
  std::vector<MappedFile> files;
  GgufContent content;  // keys of the first part, tensors of all
};

// Opens the file, and where it is the first of several parts, the others beside it. Another part than the
// first is refused with the name of the first.
Result<GgufParts> open_gguf(const std::filesystem::path& path);

}  // namespace outrider
