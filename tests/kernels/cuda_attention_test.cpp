// Paged attention on the device against plain loops in double. Its bits stay the same over tiles, turns and
// grids.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/kernels/cuda_test_support.h"

namespace outrider::cuda {
namespace {

struct Shape {
  KvType type;
  int32_t head_dim, kv_heads, heads_per_kv;
  int32_t latent_dim = 0;

  int32_t value_dim() const { return latent_dim > 0 ? latent_dim : head_dim; }
};

// How rows look at positions, as AttentionArguments have it.
struct Look {
  float scale = 0, cap = 0;
  int32_t window = 0;
};
// Windows that begin inside a split and hide none, and that hide whole ones.
constexpr Look kLooks[]{{}, {.scale = 0.4f, .cap = 1.5f, .window = 20}, {.window = 200}};

// Sequences whose blocks are interleaved in the pool, and rows that attend to them. Every slot that no row
// may read is NaN: slots after the last row's position, and blocks without a sequence.
class Attention {
 public:
  // Rows: (sequence, position), those of a sequence together and ascending. Tails: of nodes of a tree, which
  // come behind the other rows of their sequence in any order, the slots of their last positions; or none at
  // all.
  Attention(const Shape& shape, std::vector<std::pair<int32_t, int32_t>> rows, StreamView stream,
            std::vector<std::vector<int32_t>> tails = {})
      : shape_(shape),
        rows_(std::move(rows)),
        tails_(std::move(tails)),
        stream_(stream),
        host_{.type = shape.type,
              .kv_heads = shape.kv_heads,
              .head_dim = shape.head_dim,
              .latent_dim = shape.latent_dim},
        q_(random_floats(row_count() * heads() * shape.head_dim, 4)) {
    for (int64_t i = 0; i < kSequences * kTableStride; ++i)
      tables_.push_back(static_cast<int32_t>(i * 37 % kPoolBlocks));
    const auto elements = static_cast<size_t>(kPoolBlocks * host_.block_elements());
    keys_.resize(elements, kNan);
    values_.resize(elements, kNan);
    if (shape.type == KvType::kBFloat16) clear_padding();
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (int32_t sequence = 0; sequence < kSequences; ++sequence)
      for (int32_t p = 0; p <= last_position(sequence); ++p)
        for (int32_t h = 0; h < shape.kv_heads; ++h)
          for (int32_t i = 0; i < shape.head_dim; ++i) {
            key(sequence, h, p, i) = stored(normal(random));
            value(sequence, h, p, i) = stored(normal(random));
          }
    tails_.resize(rows_.size());
    upload();
  }

  // One row of another, as a chain: what its tail finds is at its positions, and nothing is behind them.
  Attention(const Attention& tree, size_t row)
      : look(tree.look),
        most_tile_heads(tree.most_tile_heads),
        shape_(tree.shape_),
        rows_{tree.rows_[row]},
        tails_(1),
        stream_(tree.stream_),
        host_(tree.host_),
        keys_(tree.keys_),
        values_(tree.values_),
        tables_(tree.tables_) {
    const auto width = static_cast<ptrdiff_t>(heads() * shape_.head_dim);
    q_.assign(tree.q_.begin() + static_cast<ptrdiff_t>(row) * width,
              tree.q_.begin() + static_cast<ptrdiff_t>(row + 1) * width);
    const auto [sequence, last] = rows_[0];
    for (int32_t p = 0; p <= tree.last_position(sequence); ++p)
      for (int32_t h = 0; h < shape_.kv_heads; ++h)
        for (int32_t i = 0; i < shape_.head_dim; ++i) {
          const int32_t slot = tree.slot(row, p);  // not before p, so not yet written
          key(sequence, h, p, i) = p <= last ? key(sequence, h, slot, i) : kNan;
          value(sequence, h, p, i) = p <= last ? value(sequence, h, slot, i) : kNan;
        }
    upload();
  }

  Look look;
  int32_t most_tile_heads = 64;  // no bit may depend on it

  int64_t row_count() const { return static_cast<int64_t>(rows_.size()); }
  int32_t heads() const { return shape_.kv_heads * shape_.heads_per_kv; }

  // tile_rows: at most; no bit may depend on it, nor on the next two. Heads [begin, end): those of a rank.
  std::vector<float> operator()(int32_t tile_rows, int64_t turn_rows, int multiprocessors) const {
    return of_heads(0, heads(), tile_rows, turn_rows, multiprocessors);
  }
  std::vector<float> of_heads(int32_t begin, int32_t end, int32_t tile_rows, int64_t turn_rows,
                              int multiprocessors) const;
  double reference(int64_t row, int32_t head, int32_t dim) const;

  int32_t slot(size_t row, int32_t position) const {
    const int32_t begin = tail_begin(row);
    if (position < begin || position > rows_[row].second) return position;
    return tails_[row][static_cast<size_t>(position - begin)];
  }

 private:
  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  static constexpr int32_t kSequences = 2, kPositions = 600;
  static constexpr int64_t kTableStride = kv_blocks_for(kPositions), kPoolBlocks = 80;

  // That anything is stored at.
  int32_t last_position(int32_t sequence) const {
    int32_t last = -1;
    for (size_t row = 0; row < rows_.size(); ++row) {
      if (rows_[row].first != sequence) continue;
      last = std::max(last, rows_[row].second);
      if (row < tails_.size() && !tails_[row].empty()) last = std::max(last, tails_[row].back());
    }
    return last;
  }
  int32_t tail_begin(size_t row) const {
    return tails_[row].empty() ? kNoTail : rows_[row].second + 1 - static_cast<int32_t>(tails_[row].size());
  }
  void upload() {
    for (auto* memory : {&keys_, &values_}) device_.push_back(to_device(bytes_of(*memory), stream_));
    device_q_ = to_device(q_, stream_);
    device_tables_ = to_device(tables_, stream_);
  }
  int32_t block_of(int32_t sequence, int32_t position) const {
    return tables_[static_cast<size_t>(sequence * kTableStride + position / kBlockTokens)];
  }
  float& key(int32_t sequence, int32_t head, int32_t p, int32_t dim) {
    return keys_[static_cast<size_t>(host_.key_offset(block_of(sequence, p), head, p % 16, dim))];
  }
  float& value(int32_t sequence, int32_t head, int32_t p, int32_t dim) {
    return values_[static_cast<size_t>(host_.value_offset(block_of(sequence, p), head, p % 16, dim))];
  }
  float stored(float number) const {
    return shape_.type == KvType::kBFloat16 ? to_float(to_bf16(number)) : number;
  }
  // Kernels never write the padding behind head_dim in the last tile, so it keeps its content from
  // allocation.
  void clear_padding() {
    const KvLayer padded{.type = shape_.type,
                         .kv_heads = shape_.kv_heads,
                         .head_dim = static_cast<int32_t>(host_.dim_tiles() * kStep)};
    for (int32_t block = 0; block < kPoolBlocks; ++block)
      for (int32_t h = 0; h < shape_.kv_heads; ++h)
        for (int32_t t = 0; t < kBlockTokens; ++t)
          for (int32_t i = shape_.head_dim; i < padded.head_dim; ++i)
            keys_[static_cast<size_t>(padded.key_offset(block, h, t, i))] =
                values_[static_cast<size_t>(padded.value_offset(block, h, t, i))] = 0;
  }
  std::vector<std::byte> bytes_of(const std::vector<float>& numbers) const {
    const auto halves = as_bf16(numbers);
    const auto* from = shape_.type == KvType::kBFloat16 ? reinterpret_cast<const std::byte*>(halves.data())
                                                        : reinterpret_cast<const std::byte*>(numbers.data());
    return {from, from + numbers.size() * static_cast<size_t>(outrider::element_bytes(shape_.type))};
  }

  Shape shape_;
  std::vector<std::pair<int32_t, int32_t>> rows_;
  std::vector<std::vector<int32_t>> tails_;
  StreamView stream_;
  KvLayer host_;  // its offsets
  std::vector<float> q_, keys_, values_;
  std::vector<int32_t> tables_;
  std::vector<DeviceBuffer<std::byte>> device_;
  DeviceBuffer<float> device_q_;
  DeviceBuffer<int32_t> device_tables_;
};

std::vector<float> Attention::of_heads(int32_t begin_head, int32_t end_head, int32_t tile_rows,
                                       int64_t turn_rows, int multiprocessors) const {
  const int32_t own_heads = end_head - begin_head, value_dim = shape_.value_dim();
  const AttentionTile most =
      attention_tile(std::min(own_heads, shape_.heads_per_kv), host_, describe_device(0).shared_bytes);
  const int32_t tile_heads = std::min(most.heads, most_tile_heads);
  tile_rows = tile_heads < most.heads ? 1 : std::min(tile_rows, most.rows);
  std::vector<int32_t> positions, row_table, tail_begins, tail_at, tails{0}, tiles(rows_.size());
  for (size_t row = 0; row < rows_.size(); ++row) {
    row_table.push_back(rows_[row].first);
    positions.push_back(rows_[row].second);
    tail_begins.push_back(tail_begin(row));
    tail_at.push_back(static_cast<int32_t>(tails.size()));
    tails.insert(tails.end(), tails_[row].begin(), tails_[row].end());
  }
  for (size_t begin = 0, row = 0; row < rows_.size(); ++row) {
    const bool goes_on = row > 0 && row_table[row] == row_table[row - 1] &&
                         tail_begins[row] == tail_begins[row - 1] &&
                         static_cast<int64_t>(row) % turn_rows != 0 && tiles[begin] < tile_rows;
    if (!goes_on) begin = row;
    ++tiles[begin];
  }
  const auto device_positions = to_device(positions, stream_), device_rows = to_device(row_table, stream_),
             device_tiles = to_device(tiles, stream_), device_begins = to_device(tail_begins, stream_),
             device_at = to_device(tail_at, stream_), device_tails = to_device(tails, stream_);
  const DeviceBatch batch{.positions = device_positions.data(),
                          .row_table = device_rows.data(),
                          .tables = device_tables_.data(),
                          .tile_rows = device_tiles.data(),
                          .tail_begins = device_begins.data(),
                          .tail_at = device_at.data(),
                          .tails = device_tails.data(),
                          .table_stride = kTableStride};
  KvLayer layer = host_;
  layer.keys = device_[0].data();
  layer.values = layer.has_values() ? device_[1].data() : nullptr;
  const DeviceBuffer<float> workspace(attention_workspace(turn_rows, own_heads, value_dim, kPositions)),
      out(row_count() * own_heads * value_dim);
  fill_bytes(workspace.data(), 0xff, workspace.bytes(), stream_);
  attention(stream_, batch, layer,
            {.q = device_q_.data() + begin_head * shape_.head_dim,
             .q_stride = heads() * shape_.head_dim,
             .out = out.data(),
             .out_type = WeightType::kFloat32,
             .rows = row_count(),
             .heads = own_heads,
             .first_head = begin_head,
             .heads_per_kv = shape_.heads_per_kv,
             .scale = look.scale,
             .cap = look.cap,
             .window = look.window,
             .max_positions = kPositions,
             .tile_rows = tile_rows,
             .tile_heads = tile_heads,
             .turn_rows = turn_rows,
             .workspace = workspace.data(),
             .multiprocessors = multiprocessors});
  return to_host(out, stream_);
}

double Attention::reference(int64_t row, int32_t head, int32_t dim) const {
  const auto [sequence, last] = rows_[static_cast<size_t>(row)];
  const int32_t kv_head = head / shape_.heads_per_kv;
  std::vector<double> weights;
  double max = -1e300, sum = 0, result = 0;
  const int32_t first = look.window > 0 ? std::max(0, last + 1 - look.window) : 0;
  const double scale =
      look.scale > 0 ? static_cast<double>(look.scale) : 1 / std::sqrt(static_cast<double>(shape_.head_dim));
  const auto cap = static_cast<double>(look.cap);
  for (int32_t p = first; p <= last; ++p) {
    double score = 0;
    for (int32_t i = 0; i < shape_.head_dim; ++i)
      score += static_cast<double>(q_[static_cast<size_t>((row * heads() + head) * shape_.head_dim + i)]) *
               static_cast<double>(
                   keys_[static_cast<size_t>(host_.key_offset(block_of(sequence, p), kv_head, p % 16, i))]);
    weights.push_back(cap > 0 ? cap * std::tanh(score * scale / cap) : score * scale);
    max = std::max(max, weights.back());
  }
  for (double& w : weights) sum += w = std::exp(w - max);
  const auto value_of = [&](int32_t p) {
    const int32_t block = block_of(sequence, p);
    return host_.has_values() ? values_[static_cast<size_t>(host_.value_offset(block, kv_head, p % 16, dim))]
                              : keys_[static_cast<size_t>(host_.key_offset(block, kv_head, p % 16, dim))];
  };
  for (int32_t p = first; p <= last; ++p)
    result += weights[static_cast<size_t>(p - first)] / sum * static_cast<double>(value_of(p));
  return result;
}

// Rows before, at and after borders of splits; tails of head_dim; more tiles of dimensions than warps.
constexpr Shape kShapes[]{{KvType::kFloat32, 24, 2, 3},      {KvType::kBFloat16, 24, 2, 3},
                          {KvType::kBFloat16, 16, 1, 1},     {KvType::kBFloat16, 80, 1, 4},
                          {KvType::kBFloat16, 144, 1, 7},    {KvType::kFloat32, 26, 1, 5, 18},
                          {KvType::kBFloat16, 104, 1, 3, 72}};

std::vector<std::pair<int32_t, int32_t>> border_rows() {
  return {{0, 0},   {0, 14},  {0, 15},  {0, 16},  {0, 126}, {0, 127}, {0, 128},
          {0, 129}, {1, 255}, {1, 256}, {1, 300}, {1, 511}, {1, 512}, {1, 599}};
}

// With bf16 KV the queries and weights keep 16 bits, and tensor cores cut off what does not fit 24 bits of
// the largest term; what is left is fp32 arithmetic.
TEST_F(CudaOps, AttentionEqualsDoubles) {
  for (const Shape& shape : kShapes) {
    Attention attend(shape, border_rows(), *stream);
    for (const Look& look : kLooks) {
      attend.look = look;
      const auto got = attend(8, 64, 1);
      size_t at = 0;
      for (int64_t row = 0; row < attend.row_count(); ++row)
        for (int32_t head = 0; head < attend.heads(); ++head)
          for (int32_t i = 0; i < shape.value_dim(); ++i, ++at)
            ASSERT_NEAR(static_cast<double>(got[at]), attend.reference(row, head, i),
                        shape.type == KvType::kBFloat16 ? 4e-5 : 5e-6)
                << "row " << row << " head " << head << " of head_dim " << shape.head_dim << ", window "
                << look.window;
    }
  }
}

TEST_F(CudaOps, AttentionBitsDependOnNoNeighbour) {
  for (const Shape& shape : kShapes) {
    Attention attend(shape, border_rows(), *stream);
    attend.look.window = shape.head_dim % 5 * 40;  // 0 for some
    const auto alone = attend(1, 64, 1);
    const KvLayer layer{.type = shape.type, .head_dim = shape.head_dim, .latent_dim = shape.latent_dim};
    const int32_t most = attention_tile(shape.heads_per_kv, layer, info.shared_bytes).rows;
    EXPECT_EQ(most, (shape.latent_dim > 0 ? 32 : 64) / shape.heads_per_kv);
    for (const auto& [tile_rows, turn_rows, multiprocessors] :
         {std::tuple<int32_t, int64_t, int>{most, 64, 132}, {3, 64, 1}, {most, 5, 132}}) {
      const auto together = attend(tile_rows, turn_rows, multiprocessors);
      EXPECT_EQ(std::memcmp(alone.data(), together.data(), alone.size() * sizeof(float)), 0)
          << "tiles of " << tile_rows << ", turns of " << turn_rows << ", head_dim " << shape.head_dim;
    }
    attend.most_tile_heads = 2;
    const auto in_groups = attend(1, 64, 3);
    EXPECT_EQ(std::memcmp(alone.data(), in_groups.data(), alone.size() * sizeof(float)), 0)
        << "head_dim " << shape.head_dim;
  }
}

// Nodes behind some positions of a sequence, and chains of others beside them.
TEST_F(CudaOps, AttentionOfANodeHasTheBitsOfItsChain) {
  const std::vector<int32_t> parents{-1, -1, 1, 0, 1, 3, 5, 2, 6, 8, 9, 10, 4, -1, 11, 14, 15, 16, 17};
  for (const Shape& shape : kShapes)
    for (const int32_t begin : {0, 16, 125, 250}) {
      std::vector<std::pair<int32_t, int32_t>> rows;
      std::vector<std::vector<int32_t>> tails;
      for (int32_t p = std::max(0, begin - 2); p < begin; ++p) rows.emplace_back(0, p), tails.emplace_back();
      for (int32_t node = 0; node < static_cast<int32_t>(parents.size()); ++node) {
        std::vector<int32_t> tail;
        for (int32_t at = node; at >= 0; at = parents[static_cast<size_t>(at)])
          tail.insert(tail.begin(), begin + at);
        rows.emplace_back(0, begin + static_cast<int32_t>(tail.size()) - 1);
        tails.push_back(std::move(tail));
      }
      for (int32_t p : {254, 255, 256}) rows.emplace_back(1, p), tails.emplace_back();
      Attention attend(shape, rows, *stream, tails);
      attend.look.window = (begin + shape.head_dim) % 3 * 3;  // 0, 3 or 6, with some nodes in front of it
      std::vector<float> chains;
      for (size_t row = 0; row < rows.size(); ++row) {
        const auto chain = Attention(attend, row)(1, 64, 1);
        chains.insert(chains.end(), chain.begin(), chain.end());
      }
      const int32_t most = 64 / shape.heads_per_kv;
      for (const auto& [tile_rows, turn_rows, multiprocessors] :
           {std::tuple<int32_t, int64_t, int>{most, 64, 132}, {3, 64, 1}, {most, 5, 132}}) {
        const auto together = attend(tile_rows, turn_rows, multiprocessors);
        EXPECT_EQ(std::memcmp(chains.data(), together.data(), chains.size() * sizeof(float)), 0)
            << "behind " << begin << ", tiles of " << tile_rows << ", turns of " << turn_rows << ", head_dim "
            << shape.head_dim;
      }
    }
}

// A rank may have a part of the heads that share a KV head, when there are more ranks than those.
TEST_F(CudaOps, AttentionOfSomeHeadsHasTheBitsOfAll) {
  for (const Shape& shape : {Shape{KvType::kFloat32, 24, 1, 7}, Shape{KvType::kBFloat16, 24, 1, 7}}) {
    const Attention attend(shape, border_rows(), *stream);
    const auto all = attend(8, 64, 1), some = attend.of_heads(3, 5, 8, 64, 1);
    const auto d = static_cast<size_t>(shape.head_dim), row_count = static_cast<size_t>(attend.row_count());
    for (size_t row = 0; row < row_count; ++row)
      EXPECT_EQ(std::memcmp(some.data() + row * 2 * d, all.data() + (row * 7 + 3) * d, 2 * d * sizeof(float)),
                0)
          << row;
  }
}

// Three rows of one sequence in one tile, whose keys and values are written as a forward pass does.
class NewRows {
 public:
  explicit NewRows(StreamView stream)
      : stream_(stream),
        batch_ints_(to_device(std::vector<int32_t>{0, 1, 2, 0, 0, 0, kRows, 0, 0, 0}, stream)),
        cosines_(to_device(std::vector<float>(kRows * kDim / 2, 1.0f), stream)),
        sines_(kRows * kDim / 2),
        keys_(kBlockTokens * kDim),
        values_(kBlockTokens * kDim),
        workspace_(attention_workspace(kRows, 1, kDim, kRows)),
        out_(kRows * kDim) {}

  // Row 2's value number 5 is `value`.
  std::vector<float> operator()(float value) const {
    auto qkv = random_floats(kRows * 3 * kDim, 8);
    qkv[2 * 3 * kDim + 2 * kDim + 5] = value;
    const auto device_qkv = to_device(qkv, stream_);
    const int32_t* ints = batch_ints_.data();
    const DeviceBatch batch{.positions = ints,
                            .row_table = ints + 3,
                            .tables = ints + 9,
                            .tile_rows = ints + 6,
                            .table_stride = 1};
    const KvLayer layer{.type = KvType::kBFloat16,
                        .keys = keys_.data(),
                        .values = values_.data(),
                        .kv_heads = 1,
                        .head_dim = kDim};
    rotate_and_store(stream_, batch, layer,
                     {.qkv = device_qkv.data(),
                      .rows = kRows,
                      .q_heads = 1,
                      .turned = kDim / 2,
                      .cosines = cosines_.data(),
                      .sines = sines_.data()});
    attention(stream_, batch, layer,
              {.q = device_qkv.data(),
               .q_stride = 3 * kDim,
               .out = out_.data(),
               .out_type = WeightType::kFloat32,
               .rows = kRows,
               .heads = 1,
               .max_positions = kRows,
               .tile_rows = kRows,
               .turn_rows = kRows,
               .workspace = workspace_.data()});
    return to_host(out_, stream_);
  }

  static constexpr int32_t kRows = 3, kDim = 32;

 private:
  StreamView stream_;
  DeviceBuffer<int32_t> batch_ints_;  // positions, row_table, tile_rows, the table
  DeviceBuffer<float> cosines_, sines_;
  DeviceBuffer<bf16> keys_, values_;
  DeviceBuffer<float> workspace_, out_;
};

// Rows of a tile have the values of later rows before them, with weights of 0, and 0 times infinity is not 0.
TEST_F(CudaOps, ValuesThatAreNotFiniteReachOnlyTheRowsThatAttendToThem) {
  const NewRows attend(*stream);
  const auto finite = attend(1.0f);
  constexpr size_t kEarlier = size_t{2} * NewRows::kDim;
  for (float value :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 3.4e38f}) {
    const auto got = attend(value);  // the last one is infinite as bf16
    EXPECT_EQ(std::memcmp(got.data(), finite.data(), kEarlier * sizeof(float)), 0) << value;
    for (size_t i = kEarlier; i < got.size(); ++i) EXPECT_TRUE(std::isnan(got[i])) << value;
  }
  const auto again = attend(1.0f);
  EXPECT_EQ(std::memcmp(again.data(), finite.data(), finite.size() * sizeof(float)), 0);
}

TEST_F(CudaOps, AttentionTilesFitTheSharedMemory) {
  constexpr int64_t kHopper = int64_t{227} << 10, kAmpere = int64_t{163} << 10;
  const auto tile = [](int64_t heads, int32_t head_dim, int64_t shared_bytes, int32_t latent_dim = 0) {
    return attention_tile(heads, {.type = KvType::kBFloat16, .head_dim = head_dim, .latent_dim = latent_dim},
                          shared_bytes);
  };
  EXPECT_EQ(tile(4, 128, kHopper).rows, 16);
  EXPECT_EQ(tile(4, 128, kHopper).heads, 4);
  EXPECT_EQ(tile(8, 128, kHopper).rows, 8);
  EXPECT_EQ(tile(65, 64, kHopper).rows, 1);
  EXPECT_EQ(tile(65, 64, kHopper).heads, 33);
  const int32_t narrower = tile(1, 256, kAmpere).rows;
  EXPECT_GT(narrower, 0);
  EXPECT_LT(narrower, 64);
  // DeepSeek's: of all its heads 32 fit, or two rows of a rank's 16.
  EXPECT_EQ(tile(128, 576, kHopper, 512).rows, 1);
  EXPECT_EQ(tile(128, 576, kHopper, 512).heads, 32);
  EXPECT_EQ(tile(16, 576, kHopper, 512).rows, 2);
  EXPECT_EQ(tile(16, 576, kAmpere, 512).rows, 0);
}

}  // namespace
}  // namespace outrider::cuda
