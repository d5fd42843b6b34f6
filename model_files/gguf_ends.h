// Which ids end a text of the model in a GGUF file.
#pragma once

#include <string>
#include <vector>

#include "model_files/gguf_file.h"
#include "model_files/gguf_keys.h"

namespace outrider {

// Those that keys name (eos, eot, eom), the file's eos first, then those that llama.cpp (llama-vocab.cpp,
// special_eog_ids) knows by their texts: a file of a model for conversations names <|im_end|>, but a raw
// text ends with <|endoftext|>.
Result<std::vector<int64_t>> gguf_ends(const GgufContent& content, const std::string& name);

}  // namespace outrider
