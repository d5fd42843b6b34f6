#include "model_files/quantization_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "base/json_text.h"
#include "model_files/wrapper_config.h"

namespace outrider {
namespace {

using nlohmann::json;
using KeyList = std::span<const std::string_view>;

constexpr int64_t kMaxGroupSize = int64_t{1} << 20;
constexpr size_t kMaxPattern = 1000;

std::string shown_value(const json& value) { return json_text(value).substr(0, 100); }

// Every key is read here or known to change no weight. Null counts as absent.
Status check_quantization_keys(const JsonObject& object, KeyList read, KeyList harmless) {
  const auto in = [](KeyList keys, std::string_view key) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  };
  for (const auto& [key, value] : object.members().items())
    if (!value.is_null() && !in(read, key) && !in(harmless, key))
      return object.refused(
          key, fmt::format("is {}, which is not understood here and may change the weights; if it does not, "
                           "remove it or set it to null",
                           shown_value(value)));
  return {};
}

// A key that has to have this value, or be absent.
Status only(const JsonObject& object, const std::string& key, const json& supported) {
  const json* value = object.find(key);
  if (value == nullptr || *value == supported) return {};
  return object.refused(
      key, fmt::format("is {}; only {} is supported", shown_value(*value), shown_value(supported)));
}

// A key that switches something on that is not done here; empty values do not.
Status must_be_empty(const JsonObject& object, const std::string& key) {
  const json* value = object.find(key);
  if (value == nullptr || *value == false || ((value->is_object() || value->is_array()) && value->empty()))
    return {};
  return object.refused(key, fmt::format("is {}, which is not supported", shown_value(*value)));
}

std::string lower_case(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

// -1: the whole row, 0 here.
Result<int64_t> group_size_of(const JsonObject& object, const std::string& key, int64_t fallback) {
  ASSIGN_OR_RETURN(const int64_t size, object.integer_or(key, fallback, {-1, kMaxGroupSize}));
  if (size == 0) return object.wrong(key, "is 0; it must be -1 or a number of columns");
  return size == -1 ? 0 : size;
}

Result<QuantizationConfig> read_gptq(const JsonObject& o) {
  constexpr std::string_view kRead[]{"quant_method", "bits",       "group_size",        "desc_act",
                                     "sym",          "format",     "checkpoint_format", "is_marlin_format",
                                     "dynamic",      "pack_dtype", "rotation",          "lm_head"};
  constexpr std::string_view kNothing[]{"damp_percent",
                                        "damp_auto_increment",
                                        "dampening",
                                        "true_sequential",
                                        "static_groups",
                                        "model_name_or_path",
                                        "model_file_base_name",
                                        "quantizer",
                                        "meta",
                                        "dataset",
                                        "tokenizer",
                                        "batch_size",
                                        "block_name_to_quantize",
                                        "modules_in_block_to_quantize",
                                        "module_name_preceding_first_block",
                                        "cache_block_outputs",
                                        "disable_exllama",
                                        "use_exllama",
                                        "use_cuda_fp16",
                                        "exllama_config",
                                        "max_input_length",
                                        "model_seqlen",
                                        "pad_token_id",
                                        "backend",
                                        "act_group_aware",
                                        "mse",
                                        "method",
                                        "hyb_act",
                                        "is_distributed",
                                        "group_aware",
                                        "modules_to_not_convert",
                                        "v2",
                                        "v2_alpha",
                                        "v2_memory_device",
                                        "adapter",
                                        "offload_to_disk",
                                        "offload_to_disk_path",
                                        "version"};
  RETURN_IF_ERROR(check_quantization_keys(o, kRead, kNothing));
  QuantizationConfig out{.method = QuantMethod::kGptq};
  ASSIGN_OR_RETURN(const int64_t bits, o.integer("bits", {1, 32}));
  if (bits != 4 && bits != 8) return o.refused("bits", fmt::format("is {}; supported are 4 and 8", bits));
  out.bits = static_cast<int>(bits);
  ASSIGN_OR_RETURN(out.group, group_size_of(o, "group_size", -1));
  // The tensors g_idx and qzeros decide; only the type of these keys is checked.
  RETURN_IF_ERROR(o.boolean_or("desc_act", false).status());
  RETURN_IF_ERROR(o.boolean_or("sym", true).status());
  RETURN_IF_ERROR(must_be_empty(o, "is_marlin_format"));
  RETURN_IF_ERROR(must_be_empty(o, "dynamic"));  // other bits for some modules
  RETURN_IF_ERROR(must_be_empty(o, "rotation"));
  RETURN_IF_ERROR(only(o, "pack_dtype", "int32"));
  const std::string key = o.has("checkpoint_format") ? "checkpoint_format" : "format";
  ASSIGN_OR_RETURN(const std::string format, o.string_or(key, "gptq"));
  if (format != "gptq" && format != "gptq_v2")
    return o.refused(key, "is " + format + "; supported are gptq and gptq_v2");
  out.zero_is_less_one = format == "gptq";
  return out;
}

Result<QuantizationConfig> read_awq(const JsonObject& o) {
  constexpr std::string_view kRead[]{"quant_method", "bits",       "w_bit",   "group_size",
                                     "q_group_size", "zero_point", "version", "modules_to_not_convert"};
  constexpr std::string_view kNothing[]{"backend",         "do_fuse",        "fuse_max_seq_len",
                                        "modules_to_fuse", "exllama_config", "export_compatible",
                                        "desc_act"};
  RETURN_IF_ERROR(check_quantization_keys(o, kRead, kNothing));
  QuantizationConfig out{.method = QuantMethod::kAwq};
  const std::string bits_key = o.has("w_bit") ? "w_bit" : "bits";
  ASSIGN_OR_RETURN(const int64_t bits, o.integer(bits_key, {1, 32}));
  if (bits != 4) return o.refused(bits_key, fmt::format("is {}; AWQ has 4", bits));
  ASSIGN_OR_RETURN(out.group, group_size_of(o, o.has("q_group_size") ? "q_group_size" : "group_size", 128));
  ASSIGN_OR_RETURN(const std::string version, o.string_or("version", "gemm"));
  if (lower_case(version) != "gemm")
    return o.refused("version", "is " + version + "; only the gemm layout is read");
  RETURN_IF_ERROR(only(o, "zero_point", true));
  ASSIGN_OR_RETURN(out.ignored, ModuleNames::read(o, "modules_to_not_convert"));
  return out;
}

Status read_block_size(const JsonObject& o, const std::string& key, int64_t& rows, int64_t& columns) {
  const json* size = o.find(key);
  const auto is_size = [](const json& v) {
    return v.is_number_integer() && v.get<int64_t>() >= 1 && v.get<int64_t>() <= kMaxGroupSize;
  };
  if (size == nullptr || !size->is_array() || size->size() != 2 || !is_size((*size)[0]) ||
      !is_size((*size)[1]))
    return o.refused(key,
                     "must be two numbers, rows and columns of the blocks that share a scale; fp8 "
                     "weights with other scales are read from compressed-tensors");
  rows = (*size)[0].get<int64_t>();
  columns = (*size)[1].get<int64_t>();
  return {};
}

Result<QuantizationConfig> read_block_fp8(const JsonObject& o) {
  constexpr std::string_view kRead[]{"quant_method",           "fmt",
                                     "weight_block_size",      "activation_scheme",
                                     "modules_to_not_convert", "kv_cache_scheme",
                                     "ignored_layers",         "dequantize"};
  // ue8m0: scales are powers of two, stored as any others.
  constexpr std::string_view kNothing[]{"scale_fmt", "is_checkpoint_fp8_serialized"};
  RETURN_IF_ERROR(check_quantization_keys(o, kRead, kNothing));
  QuantizationConfig out{.method = QuantMethod::kBlockFp8};
  RETURN_IF_ERROR(only(o, "fmt", "e4m3"));
  RETURN_IF_ERROR(only(o, "activation_scheme", "dynamic"));
  RETURN_IF_ERROR(must_be_empty(o, "kv_cache_scheme"));
  RETURN_IF_ERROR(must_be_empty(o, "dequantize"));
  RETURN_IF_ERROR(read_block_size(o, "weight_block_size", out.block_rows, out.block_columns));
  ASSIGN_OR_RETURN(
      out.ignored,
      ModuleNames::read(o, o.has("modules_to_not_convert") ? "modules_to_not_convert" : "ignored_layers"));
  return out;
}

// Its tensors say which matrices are codes.
Result<QuantizationConfig> read_mxfp4(const JsonObject& o) {
  constexpr std::string_view kRead[]{"quant_method", "modules_to_not_convert"};
  constexpr std::string_view kNothing[]{"dequantize"};  // once loaded: the numbers are the same
  RETURN_IF_ERROR(check_quantization_keys(o, kRead, kNothing));
  return QuantizationConfig{.method = QuantMethod::kMxfp4};
}

Result<CompressedGroup::Format> compressed_format(const JsonObject& o) {
  ASSIGN_OR_RETURN(const std::string name, o.string("format"));
  if (name == "pack-quantized") return CompressedGroup::Format::kPacked;
  if (name == "int-quantized") return CompressedGroup::Format::kIntegers;
  if (name == "float-quantized") return CompressedGroup::Format::kFloat8;
  return o.refused("format", "is " + name.substr(0, 100) +
                                 "; supported are pack-quantized, int-quantized and float-quantized");
}

Status read_compressed_weights(const JsonObject& w, CompressedGroup& out) {
  constexpr std::string_view kRead[]{"num_bits",   "type",     "strategy", "symmetric",
                                     "group_size", "actorder", "dynamic",  "block_structure"};
  constexpr std::string_view kNothing[]{"observer", "observer_kwargs", "scale_dtype", "zp_dtype"};
  RETURN_IF_ERROR(check_quantization_keys(w, kRead, kNothing));
  ASSIGN_OR_RETURN(const int64_t bits, w.integer("num_bits", {1, 32}));
  out.bits = static_cast<int>(bits);
  ASSIGN_OR_RETURN(const std::string type, w.string_or("type", "int"));
  const bool is_float = out.format == CompressedGroup::Format::kFloat8;
  if (type != (is_float ? "float" : "int"))
    return w.wrong("type", "is " + type + ", which contradicts \"format\"");
  if (is_float ? bits != 8 : bits != 4 && bits != 8)
    return w.refused("num_bits", fmt::format("is {}; supported are {}", bits, is_float ? "8" : "4 and 8"));
  RETURN_IF_ERROR(must_be_empty(w, "dynamic"));
  ASSIGN_OR_RETURN(out.symmetric, w.boolean_or("symmetric", true));
  if (is_float && !out.symmetric) return w.refused("symmetric", "is false for fp8");
  const bool has_group = w.has("group_size") && *w.find("group_size") != -1;
  ASSIGN_OR_RETURN(const std::string strategy, w.string_or("strategy", has_group ? "group" : "tensor"));
  if (strategy == "tensor") {
    out.strategy = CompressedGroup::Strategy::kTensor;
  } else if (strategy == "channel") {
    out.strategy = CompressedGroup::Strategy::kChannel;
  } else if (strategy == "group") {
    out.strategy = CompressedGroup::Strategy::kGroup;
    ASSIGN_OR_RETURN(out.group, w.integer("group_size", {1, kMaxGroupSize}));
  } else if (strategy == "block") {
    out.strategy = CompressedGroup::Strategy::kBlock;
    RETURN_IF_ERROR(read_block_size(w, "block_structure", out.block_rows, out.block_columns));
  } else {
    return w.refused("strategy", "is " + strategy + "; supported are tensor, channel, group and block");
  }
  return {};
}

Result<QuantizationConfig> read_compressed_tensors(const JsonObject& o) {
  constexpr std::string_view kRead[]{
      "quant_method",    "format",          "config_groups",    "ignore",
      "kv_cache_scheme", "sparsity_config", "transform_config", "quantization_status"};
  constexpr std::string_view kNothing[]{"global_compression_ratio", "version"};
  RETURN_IF_ERROR(check_quantization_keys(o, kRead, kNothing));
  RETURN_IF_ERROR(must_be_empty(o, "kv_cache_scheme"));
  RETURN_IF_ERROR(must_be_empty(o, "sparsity_config"));
  RETURN_IF_ERROR(must_be_empty(o, "transform_config"));
  ASSIGN_OR_RETURN(const std::string status, o.string_or("quantization_status", "compressed"));
  if (status != "compressed" && status != "frozen")
    return o.refused("quantization_status", "is " + status + "; only compressed is read");
  QuantizationConfig out{.method = QuantMethod::kCompressedTensors};
  ASSIGN_OR_RETURN(out.ignored, ModuleNames::read(o, "ignore"));
  ASSIGN_OR_RETURN(const std::optional<JsonObject> groups, o.object("config_groups"));
  if (!groups || groups->members().empty()) return o.wrong("config_groups", "is missing or empty");
  for (const auto& [name, value] : groups->members().items()) {
    ASSIGN_OR_RETURN(const JsonObject g,
                     JsonObject::view(value, groups->where() + ": " + name.substr(0, 100)));
    // Inputs are quantised by other programs to be faster; here they are not.
    constexpr std::string_view kGroupKeys[]{"targets", "weights", "format", "input_activations",
                                            "output_activations"};
    RETURN_IF_ERROR(check_quantization_keys(g, kGroupKeys, {}));
    RETURN_IF_ERROR(must_be_empty(g, "output_activations"));
    CompressedGroup group;
    ASSIGN_OR_RETURN(group.targets, ModuleNames::read(g, "targets"));
    ASSIGN_OR_RETURN(group.format, compressed_format(g.has("format") ? g : o));
    ASSIGN_OR_RETURN(const std::optional<JsonObject> weights, g.object("weights"));
    if (!weights) return g.wrong("weights", "is missing: only weights are read as quantised");
    RETURN_IF_ERROR(read_compressed_weights(*weights, group));
    out.groups.push_back(std::move(group));
  }
  return out;
}

}  // namespace

Result<ModuleNames> ModuleNames::read(const JsonObject& object, const std::string& key) {
  ModuleNames out;
  const json* list = object.find(key);
  if (list == nullptr) return out;
  if (!list->is_array()) return object.wrong(key, "must be a list of names");
  for (const json& item : *list) {
    if (!item.is_string() || item.get_ref<const std::string&>().size() > kMaxPattern)
      return object.wrong(key, fmt::format("must hold names of at most {} bytes", kMaxPattern));
    const auto& name = item.get_ref<const std::string&>();
    if (!name.starts_with("re:")) {
      out.names_.push_back(name);
      continue;
    }
    const std::string where = fmt::format("{}: \"{}\": {}", object.where(), key, name);
    Result<Regex> regex = Regex::compile(name.substr(3));
    if (!regex.ok()) return regex.status().in(where);
    out.expressions_.push_back({where, std::move(regex).value()});
  }
  return out;
}

// Checkpoints that also read images or sound give their own names of the text model's modules.
Result<bool> ModuleNames::contain(std::string_view module) const {
  const auto wrapped = wrapped_module_names(module);
  for (const std::string_view name : {module, std::string_view(wrapped[0]), std::string_view(wrapped[1])}) {
    if (list(name)) return true;
    for (const Expression& expression : expressions_) {
      const Result<bool> matches = expression.regex.matches_start(name);
      if (!matches.ok()) return matches.status().in(expression.where);
      if (*matches) return true;
    }
  }
  return false;
}

bool ModuleNames::list(std::string_view name) const {
  return std::find(names_.begin(), names_.end(), name) != names_.end();
}

const char* QuantizationConfig::name() const {
  constexpr const char* kMethodNames[]{"gptq", "awq", "compressed-tensors", "fp8", "mxfp4"};
  return kMethodNames[static_cast<int>(method)];
}

Result<const CompressedGroup*> QuantizationConfig::group_of(std::string_view module) const {
  const CompressedGroup* none = nullptr;
  ASSIGN_OR_RETURN(const bool is_ignored, ignored.contain(module));
  if (is_ignored) return none;
  for (const CompressedGroup& of : groups) {
    ASSIGN_OR_RETURN(const bool is_target, of.targets.contain(module));
    if (is_target) return &of;
  }
  if (module.ends_with("embed_tokens")) return none;
  for (const CompressedGroup& of : groups)
    if (of.targets.list("Linear")) return &of;
  return none;
}

Result<std::shared_ptr<const QuantizationConfig>> read_quantization_config(const JsonObject& config) {
  ASSIGN_OR_RETURN(const std::optional<JsonObject> o, config.object("quantization_config"));
  std::shared_ptr<const QuantizationConfig> none;
  if (!o) return none;
  ASSIGN_OR_RETURN(const std::string method, o->string("quant_method"));
  if (method == "outrider") return none;
  Result<QuantizationConfig> read =
      method == "gptq"                 ? read_gptq(*o)
      : method == "awq"                ? read_awq(*o)
      : method == "compressed-tensors" ? read_compressed_tensors(*o)
      : method == "fp8"                ? read_block_fp8(*o)
      : method == "mxfp4"
          ? read_mxfp4(*o)
          : config.refused("quantization_config",
                           "has quant_method \"" + method.substr(0, 100) +
                               "\"; supported are gptq, awq, compressed-tensors, fp8 and mxfp4, or use the "
                               "model's bf16, fp16 or fp32 weights");
  if (!read.ok()) return read.status();
  return std::shared_ptr<const QuantizationConfig>(
      std::make_shared<QuantizationConfig>(std::move(read).value()));
}

}  // namespace outrider
