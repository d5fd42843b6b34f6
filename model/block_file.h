// Writes weights in blocks of GGUF (gguf_quantize.h): a whole model as one safetensors file, or a GGUF file
// as another.
//   safetensors: a matrix NAME [n, k] becomes NAME.Q4_K, U8 [n, bytes of a row], and so with other types;
//   config.json
//                gains {"quantization_config": {"quant_method": "outrider", "weight_format": "q4_k"}}.
//   GGUF: keys and all other tensors stay; general.file_type names the new type. Other engines read it.
#pragma once

#include <cstdio>
#include <filesystem>

#include "base/load_progress.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "model/block_types.h"
#include "model_files/importance_matrix.h"
#include "model_files/model_config.h"
#include "model_files/safetensors.h"

namespace outrider {

struct BlockWriting {
  const BlockFormat& format;
  bool takes_codes = false;  // quantises what is quantised already; else an error
  ThreadPool& pool;
  LoadProgress progress;
  const ImportanceMatrix* importance = nullptr;  // of GGUF files
};

Status write_blocks(const TensorFiles& files, const ModelConfig& config, const BlockWriting& how,
                    std::FILE* to);
// `path`: the file that `files` was opened from, in one part.
Status write_gguf_blocks(const std::filesystem::path& path, const TensorFiles& files,
                         const ModelConfig& config, const BlockWriting& how, std::FILE* to);

}  // namespace outrider
