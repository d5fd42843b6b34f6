// Errors of files that were downloaded in part, or not at all, with the remedy.
#pragma once

#include <filesystem>
#include <string>

#include "base/status.h"

namespace outrider {

// "org/name" of a path in a snapshot of the Hugging Face cache, whose directories are called
// models--org--name. Empty: it is in none.
std::string hub_name(const std::filesystem::path& path);

// "download it again"; in the cache with the command that does.
std::string download_again(const std::filesystem::path& path);

// Whether there is such a name, be it of a link without a file. Opening that is an error, not an absence.
bool is_entry(const std::filesystem::path& path);

// kNotFound. A link without a file, as an interrupted download or a cleaned cache leaves it, names its goal.
Status missing_file(const std::filesystem::path& path);

// kMalformed: the file has no bytes.
Status empty_file(const std::filesystem::path& path);

}  // namespace outrider
