#include "heads/cuda/device_compute.h"

#include <algorithm>
#include <numeric>

#include "heads/cuda/device_attention.h"
#include "heads/cuda/device_mixture.h"
#include "heads/cuda/device_sampler.h"
#include "model/cuda_backend.h"
#include "model/weights.h"

namespace outrider {
namespace cuda {
namespace {

const LoadProgress kSilent;

RowsAt at(const FloatRows& x) { return {x.data(), x.extent(0), x.extent(1), x.stride(0)}; }
bool is_in_one_piece(const FloatRows& x) { return x.extent(0) <= 1 || x.stride(0) == x.extent(1); }

// In counting there is no attention, and no room for it.
class NoAttention final : public HeadAttention {
 public:
  NoAttention() : HeadAttention(nullptr, 0) {}
  void begin(std::span<const Row>, int64_t) override {}
  void prepare(int64_t, const Heads&) override {}
  void attend(int64_t, FloatRows, Operand) override {}
  Operand attend_latent(int64_t, Operand x) override { return x; }
};

}  // namespace

DeviceCompute::DeviceCompute(int device, CudaModel* beside, bool counts)
    : device_((use_device(device), device)),  // events and memory are made on it
      info_(describe_device(device)),
      beside_(beside),
      counts_(counts),
      working_bytes_(Uploader::device_bytes()) {
  if (counts_) return;
  prepare_matmul(info_.shared_bytes);
  prepare_attention(info_.shared_bytes);
  if (!beside_) own_stream_ = std::make_unique<Stream>(KernelOrder::kOverlapping);
}

DeviceCompute::~DeviceCompute() {
  if (counts_) return;
  try {
    stream().synchronize();          // memory is still being read
  } catch (const std::exception&) {  // the next call on the device fails as well, and says why
  }
}

StreamView DeviceCompute::stream() const {
  use_device(device_);
  return beside_ ? beside_->stream() : StreamView(*own_stream_);
}

// All products of a head take activations of one type, that of its first matrix: fp32 beside bf16 is rounded,
// bf16 beside fp32 widened.
Result<WeightType> DeviceCompute::held_as(const std::string& name, WeightType type) {
  if (!activation_) activation_ = activation_type(type);
  if (activation_type(type) == activation()) return type;
  if (type == WeightType::kFloat32 || type == WeightType::kBFloat16) return activation();
  return unsupported(fmt::format("{} is {} beside fp32 matrices of the head; use --draft-weight-format bf16",
                                 name, weight_type_name(type)));
}

Result<HeadMatrix> DeviceCompute::matrix(const MatrixSource& source, WeightType type) {
  const std::string& name = source.parts.front().tensor->name;
  ASSIGN_OR_RETURN(type, held_as(name, type));
  if (activation() == WeightType::kBFloat16 && source.k() % 2)
    return unsupported(
        fmt::format("{} has {} columns, an odd number; run with --device cpu", name, source.k()));
  ASSIGN_OR_RETURN(const StackPlan plan, plan_stack(source, type));
  HeadMatrix made{.n = source.n(), .k = source.k(), .type = type};
  for (const MatrixPlan& one : plan) {
    gathered_columns_ = std::max(gathered_columns_, one.gathered_columns());
    made.bytes += one.bytes();
    widest_ = std::max(widest_, one.n);
  }
  weight_bytes_ += made.bytes;
  if (counts_) return made;
  const auto stack = std::make_shared<DeviceStack>();
  for (const MatrixPlan& one : plan) stack->add(uploader().matrix(one));
  made.packed = stack;
  return made;
}

// The type and memory of a part; the caller uploads it.
Result<HeadPart> DeviceCompute::part(const Result<MatrixSizes>& sizes) {
  if (!sizes.ok()) return sizes.status();
  gathered_columns_ = std::max(gathered_columns_, sizes->gathered_columns);
  widest_ = std::max(widest_, sizes->widest);
  weight_bytes_ += sizes->bytes;
  return HeadPart{.bytes = sizes->bytes};
}

Result<HeadPart> DeviceCompute::latent(const LatentSources& sources, const ModelConfig& config,
                                       const HeadPartTypes& types) {
  const MatrixSource matrices = formatted_matrices(sources);
  const std::string& name = matrices.parts.front().tensor->name;
  ASSIGN_OR_RETURN(WeightType type, weight_type(matrices, types.format, MatrixKind::kLayer, types.numbers));
  ASSIGN_OR_RETURN(type, held_as(name, type));
  RETURN_IF_ERROR(check_heads(config));
  ASSIGN_OR_RETURN(HeadPart made, part(plan_latents(sources, type)));
  if (counts_) return made;
  const StreamView on = stream();
  const auto layer = std::make_shared<DeviceLayer>();
  upload_latents(sources, config, type, uploader(), on, *layer);
  made.packed = layer;
  return made;
}

Result<HeadPart> DeviceCompute::experts(const ExpertSources& sources, const ModelConfig& config,
                                        const HeadPartTypes& types) {
  const MatrixSource matrices = formatted_matrices(sources);
  const std::string& name = matrices.parts.front().tensor->name;
  RETURN_IF_ERROR(check_mixture(sources, types.format == WeightFormat::kAuto));
  if (config.experts->count > ExpertChoices::kMost)
    return unsupported(fmt::format("{} experts: the CUDA kernels take at most {}", config.experts->count,
                                   ExpertChoices::kMost));
  ASSIGN_OR_RETURN(WeightType type, weight_type(matrices, types.format, MatrixKind::kLayer, types.numbers));
  ASSIGN_OR_RETURN(type, held_as(name, type));
  if (activation() == WeightType::kBFloat16 && DeviceMixture::columns(config) % 2)
    return unsupported(fmt::format("{}: experts of an odd number of columns; run with --device cpu", name));
  const ShardPlan whole(config, {});
  ASSIGN_OR_RETURN(HeadPart made, part(plan_mixture(sources, config, whole, type)));
  if (!counts_) {
    const StreamView on = stream();
    const auto layer = std::make_shared<DeviceLayer>();
    upload_mixture(sources, config, whole, type, uploader(), on, *layer);
    made.packed = layer;
  }
  made.bytes = made.bytes * config.experts->chosen / config.experts->count;  // about
  return made;
}

std::unique_ptr<HeadMixture> DeviceCompute::mixture(const HeadPart& experts, const ModelConfig& config,
                                                    int64_t max_rows) {
  working_bytes_ += DeviceMixture::working_bytes(config, max_rows, activation());
  if (counts_) return nullptr;
  use_device(device_);
  return std::make_unique<DeviceMixture>(experts, config, max_rows, activation(),
                                         [this] { return products(); });
}

Products DeviceCompute::products() const {
  return {.stream = stream(),
          .device = info_,
          .split = {split_parts_.data(), split_arrived_.data(), split_parts_.size()},
          .gathered = gathered_.data()};
}

Uploader& DeviceCompute::uploader() {
  const StreamView on = stream();
  if (!uploader_) uploader_.emplace(0, on, kSilent);
  return *uploader_;
}

// A MatrixView, with the bits that the host reads. That of a target beside is used where it is, if it is
// whole and as stored.
Result<HeadTable> DeviceCompute::table(const TensorPart& rows, TableOf of) {
  const WeightType type = rows.tensor->dtype == Dtype::kBF16 ? WeightType::kBFloat16 : WeightType::kFloat32;
  const MatrixView* const of_target =
      beside_ && of == TableOf::kTarget ? beside_->whole_embedding() : nullptr;
  if (of_target && of_target->type == type)
    return counts_ ? HeadTable() : HeadTable(std::shared_ptr<void>(), of_target);
  ASSIGN_OR_RETURN(const StackPlan plan, plan_stack({.parts = {rows}}, type));
  weight_bytes_ += plan.front().bytes();
  if (counts_) return HeadTable();
  const auto made = std::make_shared<DeviceMatrix>(uploader().matrix(plan.front()));
  return HeadTable(made, &made->view());
}

HeadVector DeviceCompute::vector(std::span<const float> values) {
  const auto size = static_cast<int64_t>(values.size());
  if (counts_ || values.empty()) return {.size = size};
  const StreamView on = stream();
  const auto held = std::make_shared<DeviceBuffer<float>>(size);
  cuda::copy(held->data(), values.data(), size, on);
  on.synchronize();  // the values go away
  return {.data = {held, held->data()}, .size = size};
}

RowBuffer DeviceCompute::rows(int64_t count, int64_t columns) {
  working_bytes_ += count * columns * int64_t{sizeof(float)};
  largest_rows_ = std::max(largest_rows_, count * columns);
  RowBuffer made{.capacity = count, .columns = columns, .stride = columns};
  if (counts_) return made;
  use_device(device_);
  const auto held = std::make_shared<DeviceBuffer<float>>(count * columns);
  made.memory = held;
  made.data = held->data();
  return made;
}

OperandBuffer DeviceCompute::operands(int64_t count, int64_t columns) {
  const int64_t number = element_bytes(activation());
  working_bytes_ += count * columns * number;
  OperandBuffer made{.all = {.rows = count, .columns = columns, .stride = columns, .number_bytes = number}};
  if (counts_) return made;
  use_device(device_);
  const auto held = std::make_shared<DeviceBuffer<std::byte>>(count * columns * number);
  made.memory = held;
  made.all.data = held->data();
  return made;
}

std::unique_ptr<HeadAttention> DeviceCompute::attention(const HeadAttentionPlan& asked) {
  const DeviceAttentionPlan plan(asked, activation(), info_);
  kv_bytes_ += plan.kv_bytes();
  working_bytes_ += plan.working_bytes();
  if (unsupported_.ok()) unsupported_ = plan.check();
  if (counts_) return std::make_unique<NoAttention>();
  return std::make_unique<DeviceAttention>(plan, device_, stream(), [this] { return products(); });
}

std::unique_ptr<HeadSampler> DeviceCompute::sampler(const HeadSamplerPlan& plan) {
  working_bytes_ += DeviceSampler::bytes_for(plan);
  if (counts_) return nullptr;
  return std::make_unique<DeviceSampler>(plan, device_, stream());
}

std::unique_ptr<RecordedWork> DeviceCompute::record(const std::function<void()>& work) {
  class Recorded final : public RecordedWork {
   public:
    Recorded(StreamView stream, const std::function<void()>& work) : stream_(stream), graph_(stream, work) {}
    void queue() const override { graph_.launch(stream_); }

   private:
    const StreamView stream_;
    const Graph graph_;
  };
  return std::make_unique<Recorded>(stream(), work);
}

// Called when all loading is done: allocates the workspace of products with few rows.
void DeviceCompute::settle(int64_t, int64_t max_rows) {
  // Not when rows are on their way to another device: to free what was too small would wait for them.
  if (!counts_ && finite_.size() < max_rows) {
    use_device(device_);
    finite_ = PinnedBuffer<uint32_t>(max_rows);
  }
  if (activation() != WeightType::kBFloat16) return;
  split_rows_ = std::max(split_rows_, max_rows);
  const int64_t gathered = split_rows_ * round_up(gathered_columns_, kAlignedInputs);
  if (gathered > gathered_numbers_) {
    working_bytes_ += (gathered - std::exchange(gathered_numbers_, gathered)) * int64_t{sizeof(bf16)};
    use_device(device_);
    if (!counts_) gathered_ = DeviceBuffer<bf16>(gathered);
  }
  const int64_t floats = split_floats(split_rows_, std::min(widest_, kSplitTiles * kTileRows));
  if (floats <= split_floats_) return;
  working_bytes_ += (floats - std::exchange(split_floats_, floats)) * int64_t{sizeof(float)};
  if (counts_) return;
  use_device(device_);
  split_parts_ = DeviceBuffer<float>(floats);
  if (split_arrived_.size() == 0) split_arrived_ = DeviceBuffer<uint32_t>(kSplitCounters);
}

std::shared_ptr<HeadCompute> DeviceCompute::counting() const {
  return std::make_shared<DeviceCompute>(device_, beside_, true);
}

Status DeviceCompute::room(const std::function<void(const std::string&)>& notice) const {
  RETURN_IF_ERROR(unsupported_);
  const auto gigabytes = [](int64_t bytes) { return static_cast<double>(bytes) / 1e9; };
  const std::string text = fmt::format(
      "device {} ({}, {:.1f} GB free): weights {:.2f} GB, KV cache {:.2f} GB, activations {:.2f} GB", device_,
      info_.name, gigabytes(info_.free_bytes), gigabytes(weight_bytes_), gigabytes(kv_bytes_),
      gigabytes(working_bytes_));
  if (weight_bytes_ + kv_bytes_ + working_bytes_ > info_.free_bytes)
    return resource_exhausted("the head on " + text +
                              "; that does not fit: lower --max-model-len or --max-num-seqs, or raise "
                              "--tensor-parallel-size");
  if (notice) notice(text);
  return {};
}

// ---- between the host and the device --------------------------------------------------------------------

FloatRows DeviceCompute::open(FloatRows to) {
  open_ = (open_ + 1) % staging_.size();
  Staging& s = staging_[open_];
  use_device(device_);
  s.sent.synchronize();
  if (s.memory.size() < to.size()) s.memory = PinnedBuffer<float>(std::max(largest_rows_, to.size()));
  return {s.memory.data(), to.extents()};
}

void DeviceCompute::close(FloatRows to) {
  const FloatRows from(staging_[open_].memory.data(), to.extents());
  copy(from, to);
  staging_[open_].sent.record(stream());
}

FloatRows DeviceCompute::fetch(FloatRows from) {
  const StreamView on = stream();
  PinnedBuffer<float>& room = fetched_[from.data()];
  if (room.size() < from.size()) room = PinnedBuffer<float>(std::max(2 * room.size(), from.size()));
  const FloatRows to(room.data(), from.extents());
  copy(from, to);
  on.synchronize();
  return to;
}

void DeviceCompute::copy(FloatRows from, FloatRows to) {
  const StreamView on = stream();
  CHECK(from.extents() == to.extents(), "{} x {} numbers to {} x {}", from.extent(0), from.extent(1),
        to.extent(0), to.extent(1));
  if (is_in_one_piece(from) && is_in_one_piece(to))
    return cuda::copy(to.data(), from.data(), from.size(), on);
  for (int64_t r = 0; r < from.extent(0); ++r)
    cuda::copy(to.data() + r * to.stride(0), from.data() + r * from.stride(0), from.extent(1), on);
}

void DeviceCompute::widen(const uint16_t* from, FloatRows to) {
  widen_rows(stream(), reinterpret_cast<const bf16*>(from), at(to));
}

int64_t DeviceCompute::narrow(FloatRows from, uint16_t* to) {
  const StreamView on = stream();
  const int64_t rows = from.extent(0);
  if (finite_.size() < rows) finite_ = PinnedBuffer<uint32_t>(2 * rows);
  narrow_rows(on, at(from), reinterpret_cast<bf16*>(to), finite_.data());
  on.synchronize();
  const uint32_t* const flags = finite_.data();
  return std::find(flags, flags + rows, 0u) - flags;
}

void DeviceCompute::read_hidden_states(Model& target, KvHandle sequence, int64_t first, FloatRows to) {
  if (&target != beside_) {
    const FloatRows written = open(to);
    for (int64_t r = 0; r < to.extent(0); ++r) target.read_hidden_states(sequence, first + r, written.row(r));
    return close(to);
  }
  for (int64_t begin = 0; begin < to.extent(0); begin += HiddenStateSlots::kMost) {
    HiddenStateSlots slots;
    while (slots.count < HiddenStateSlots::kMost && begin + slots.count < to.extent(0)) {
      const KvSlot slot = target.kv().slot(sequence, first + begin + slots.count);
      slots.tokens[slots.count++] = slot.block * kBlockTokens + slot.slot;
    }
    RowsAt some = at(to);
    some.data += begin * some.stride;
    some.rows = slots.count;
    gather_hidden_states(stream(), beside_->hidden_states(), slots, some);
  }
}

// ---- arithmetic -----------------------------------------------------------------------------------------

void DeviceCompute::normalise(FloatRows x, const HeadVector& weight, float epsilon, void* to,
                              int64_t to_stride, WeightType type) {
  CHECK(weight.empty() || weight.size == x.extent(1), "{} weights of {} numbers", weight.size, x.extent(1));
  norm_rows(stream(), {.x = at(x),
                       .weight = weight.data.get(),
                       .epsilon = epsilon,
                       .out = to,
                       .out_stride = to_stride,
                       .type = type});
}
void DeviceCompute::normalise(FloatRows x, const HeadVector& weight, float epsilon, FloatRows to) {
  normalise(x, weight, epsilon, to.data(), to.stride(0), WeightType::kFloat32);
}
void DeviceCompute::normalise(FloatRows x, const HeadVector& weight, float epsilon, Operand to) {
  normalise(x, weight, epsilon, to.data, to.stride, activation());
}

void DeviceCompute::add(FloatRows x, FloatRows added, const HeadVector& bias) {
  add_rows(stream(), at(x), at(added), bias.data.get());
}
void DeviceCompute::add_silu(FloatRows x, FloatRows added, const HeadVector& bias) {
  cuda::add_silu(stream(), at(x), at(added), bias.data.get());
}
void DeviceCompute::add_bias(FloatRows x, const HeadVector& bias) {
  cuda::add_bias(stream(), at(x), bias.data.get());
}
void DeviceCompute::round_to_bf16(FloatRows x) { round_rows(stream(), at(x)); }

void DeviceCompute::multiply(Operand x, const HeadMatrix& weight, FloatRows out) {
  products().multiply(x.rows, x.data, x.stride, *static_cast<const DeviceStack*>(weight.packed.get()),
                      out.data(), out.stride(0));
}

Operand DeviceCompute::gate(FloatRows gate_up, const HeadVector& bias, Operand room) {
  const int64_t columns = gate_up.extent(1) / 2;
  CHECK(is_in_one_piece(gate_up) && room.stride == columns, "{} columns, {} apart", columns, room.stride);
  silu_mul(stream(), gate_up.data(), bias.data.get(), gate_up.extent(0), columns, activation(), room.data);
  return room;
}

void DeviceCompute::multiply_by_sigmoid(Operand x, FloatRows gate) {
  CHECK(x.rows == gate.extent(0) && x.columns == gate.extent(1), "{} x {} numbers, {} x {} gates", x.rows,
        x.columns, gate.extent(0), gate.extent(1));
  gate_rows(stream(), at(gate), {.data = x.data, .stride = x.stride, .type = activation()});
}

}  // namespace cuda

Result<std::shared_ptr<HeadCompute>> make_device_compute(const Device& device, Model* beside) {
  ASSIGN_OR_RETURN(const int count, cuda_device_count());
  if (device.index < 0 || device.index >= count)
    return invalid_argument(
        fmt::format("--device cuda:{}: this machine has {} CUDA device{}, numbered from 0", device.index,
                    count, count == 1 ? "" : "s"));
  auto* const model = dynamic_cast<cuda::CudaModel*>(beside);
  const bool shares = model && model->device_index() == device.index;
  return std::shared_ptr<HeadCompute>(
      std::make_shared<cuda::DeviceCompute>(device.index, shares ? model : nullptr, false));
}

}  // namespace outrider
