// The forward pass against Hugging Face, and the contract that no bit depends on batch, chunking or ranks:
// the same tests for every back-end. A program names its device in suite_device().
#include "tests/model/model_suite.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <random>

#include "model/quantized_file.h"
#include "model_files/safetensors.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

using testing::golden_model;
using testing::load_or_die;
using testing::logits_in_chunks;
using testing::logits_of_group;
using testing::random_ids;
using testing::rows_of;
using testing::same_bits;
using testing::suite_device;

struct Golden {
  std::vector<TokenId> ids;
  std::vector<float> logits;  // [ids, vocab]
};

std::vector<Golden> read_goldens(const std::string& name) {
  auto file = SafetensorsFile::open(golden_model(name) / "golden.safetensors");
  EXPECT_TRUE(file.ok()) << file.status().message();
  std::vector<Golden> goldens;
  for (int i = 0;; ++i) {
    const TensorInfo* ids = file->find("input_ids." + std::to_string(i));
    if (!ids) return goldens;
    const TensorInfo* logits = file->find("logits." + std::to_string(i));
    Golden golden;
    std::vector<int32_t> raw(ids->data.size() / 4);
    std::memcpy(raw.data(), ids->data.data(), ids->data.size());
    for (int32_t id : raw) golden.ids.emplace_back(id);
    golden.logits.resize(logits->data.size() / 4);
    std::memcpy(golden.logits.data(), logits->data.data(), logits->data.size());
    goldens.push_back(std::move(golden));
  }
}

// Ids of one tensor; empty if there is none.
std::vector<TokenId> read_ids(const std::string& name, const std::string& tensor) {
  auto file = SafetensorsFile::open(golden_model(name) / "golden.safetensors");
  EXPECT_TRUE(file.ok()) << file.status().message();
  std::vector<TokenId> ids;
  if (const TensorInfo* info = file->find(tensor))
    for (size_t i = 0; i < info->data.size(); i += sizeof(int32_t)) {
      int32_t id = 0;
      std::memcpy(&id, info->data.data() + i, sizeof id);
      ids.emplace_back(id);
    }
  return ids;
}

// A copy of a golden model in which one token's embedding is not finite.
class PoisonedToken {
 public:
  PoisonedToken(const std::string& name, TokenId token) : path_(directory_.copy(golden_model(name), name)) {
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      const std::string file = entry.path().filename();
      if (!file.ends_with(".safetensors") || file == "golden.safetensors") continue;
      std::ifstream in(entry.path(), std::ios::binary);
      std::vector<char> bytes((std::istreambuf_iterator<char>(in)), {});
      const auto tensors = parse_safetensors(std::as_bytes(std::span(bytes)), file).value();
      for (const TensorInfo& tensor : tensors) {
        if (tensor.name != "model.embed_tokens.weight") continue;
        const size_t row = tensor.data.size() / static_cast<size_t>(tensor.shape[0]);
        const auto begin = reinterpret_cast<const char*>(tensor.data.data()) - bytes.data();
        auto* at = bytes.data() + begin + static_cast<size_t>(token.value()) * row;
        std::fill(at, at + row, '\xff');  // NaN in every type
        changed_ = true;
      }
      std::ofstream(entry.path(), std::ios::binary)
          .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }
    CHECK(changed_, "{} has no embedding", name);
  }
  std::filesystem::path path() const { return path_; }

 private:
  const TemporaryDirectory directory_;
  const std::filesystem::path path_;
  bool changed_ = false;
};

class ModelTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string reason = testing::no_suite_device(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

// fp32: the golden values differ from exact arithmetic by 4e-5, so the same error is allowed here. bf16
// rounds the inputs of projections to 8 bits; the largest logits are about 30, and the measured difference is
// 0.18.
TEST_P(ModelTest, AgreesWithHuggingFace) {
  auto single = make_single_collectives();
  auto model = load_or_die(golden_model(GetParam()), {.device = suite_device()}, *single);
  const float tolerance = GetParam() == "qwen3-bf16" ? 0.4f : 2e-4f;
  float worst = 0;
  const auto goldens = read_goldens(GetParam());
  ASSERT_FALSE(goldens.empty());
  for (const Golden& golden : goldens) {
    const auto logits = logits_in_chunks(*model, golden.ids, 64);
    ASSERT_EQ(logits.size(), golden.logits.size());
    for (size_t i = 0; i < logits.size(); ++i)
      worst = std::max(worst, std::abs(logits[i] - golden.logits[i]));
  }
  std::printf("%s: largest difference %.2g\n", GetParam().c_str(), static_cast<double>(worst));
  EXPECT_LT(worst, tolerance);
}

// Token by token through the cache; the goldens' text was written without one.
TEST_P(ModelTest, GreedyTextIsThatOfHuggingFace) {
  const auto prompt = read_ids(GetParam(), "greedy_prompt"), expected = read_ids(GetParam(), "greedy");
  if (expected.empty()) GTEST_SKIP() << "no greedy text among these goldens";
  auto single = make_single_collectives();
  auto model = load_or_die(golden_model(GetParam()), {.device = suite_device()}, *single);
  const KvHandle sequence = model->kv().create();
  std::vector<TokenId> text, input = prompt;
  while (text.size() < expected.size()) {
    const BatchSlice slice{sequence, input, 1};
    const auto logits = rows_of(model->forward({&slice, 1}).value().logits);
    text.emplace_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    input = {text.back()};
  }
  EXPECT_EQ(text, expected);
}

TEST_P(ModelTest, BitsDoNotDependOnChunks) {
  auto single = make_single_collectives();
  auto model = load_or_die(golden_model(GetParam()),
                           {.device = suite_device(), .threads = 2, .bytes_per_thread = 1}, *single);
  const auto ids = random_ids(50, model->config().vocab_size, 7);
  const auto one_by_one = logits_in_chunks(*model, ids, 1);
  for (size_t chunk : {2u, 3u, 5u, 8u, 9u, 16u, 50u})
    EXPECT_TRUE(same_bits(one_by_one, logits_in_chunks(*model, ids, chunk))) << "chunk " << chunk;
}

TEST_P(ModelTest, BitsDoNotDependOnTheBatch) {
  auto single = make_single_collectives();
  auto model = load_or_die(golden_model(GetParam()), {.device = suite_device(), .kv_tokens = 1024}, *single);
  const int64_t vocab = model->config().vocab_size;
  std::vector<std::vector<TokenId>> texts;
  for (uint32_t i = 0; i < 6; ++i) texts.push_back(random_ids(3 + 7 * static_cast<int>(i), vocab, i));
  std::vector<BatchSlice> batch;
  for (const auto& text : texts)
    batch.push_back({model->kv().create(), text, static_cast<int64_t>(std::min<size_t>(text.size(), 4))});
  auto logits = model->forward(batch);
  ASSERT_TRUE(logits.ok());
  const auto together = rows_of(logits->logits);
  std::vector<float> alone;
  for (const auto& text : texts) {
    const auto all = logits_in_chunks(*model, text, 1);
    const auto kept = std::min<size_t>(text.size(), 4) * static_cast<size_t>(vocab);
    alone.insert(alone.end(), all.end() - static_cast<ptrdiff_t>(kept), all.end());
  }
  EXPECT_TRUE(same_bits(together, alone));
}

// A draft may hold any token. One whose row is not finite changes no bit of the rows in front of it, of other
// sequences, nor of what takes its place after a rollback.
TEST_P(ModelTest, ATokenThatIsNotFiniteReachesOnlyTheRowsThatAttendToIt) {
  const TokenId poison(7);
  const PoisonedToken directory(GetParam(), poison);
  auto single = make_single_collectives();
  auto model = load_or_die(directory.path(), {.device = suite_device(), .kv_tokens = 1024}, *single);
  const auto vocab = static_cast<ptrdiff_t>(model->config().vocab_size);
  const auto finite_ids = [&](int count, uint32_t seed) {
    auto ids = random_ids(count, vocab, seed);
    std::replace(ids.begin(), ids.end(), poison, TokenId(8));
    return ids;
  };
  constexpr ptrdiff_t kBefore = 18, kAll = 21;  // the token and what follows lie in a block with others
  const auto text = finite_ids(kAll, 5), other = finite_ids(9, 6);
  const auto expected = logits_in_chunks(*model, text, 1),
             expected_of_other = logits_in_chunks(*model, other, 1);
  auto drafted = text;
  drafted[kBefore] = poison;
  const KvHandle sequence = model->kv().create();
  const BatchSlice slices[]{{sequence, drafted, kAll}, {model->kv().create(), other, 9}};
  const auto got = rows_of(model->forward(slices).value().logits);
  const auto rows = [vocab](const std::vector<float>& logits, ptrdiff_t begin, ptrdiff_t end) {
    return std::vector<float>(logits.begin() + begin * vocab, logits.begin() + end * vocab);
  };
  EXPECT_TRUE(same_bits(rows(got, 0, kBefore), rows(expected, 0, kBefore)));
  EXPECT_TRUE(same_bits(rows(got, kAll, kAll + 9), expected_of_other));
  for (const float logit : rows(got, kBefore, kAll)) ASSERT_FALSE(std::isfinite(logit));

  model->kv().truncate(sequence, kBefore);
  const BatchSlice rest{sequence, std::span(text).subspan(kBefore), kAll - kBefore};
  EXPECT_TRUE(same_bits(rows_of(model->forward({&rest, 1}).value().logits), rows(expected, kBefore, kAll)));
}

TEST_P(ModelTest, BitsDoNotDependOnRanks) {
  auto single = make_single_collectives();
  auto config = read_model_config(golden_model(GetParam()));
  ASSERT_TRUE(config.ok());
  const auto ids = random_ids(21, config->vocab_size, 3);
  const auto reference = logits_of_group(GetParam(), 1, ids, 5);
  for (int tp_size : {2, 4, 8})
    EXPECT_TRUE(same_bits(reference, logits_of_group(GetParam(), tp_size, ids, 5))) << tp_size;
}

// Random accept and reject histories, forks among them: the cache always equals a fresh prefill.
TEST_P(ModelTest, KvAfterRollbackEqualsFreshPrefill) {
  auto single = make_single_collectives();
  auto model = load_or_die(golden_model(GetParam()), {.device = suite_device(), .kv_tokens = 512}, *single);
  std::mt19937 random(99);
  std::vector<TokenId> truth = random_ids(5, model->config().vocab_size, 1);
  const KvHandle sequence = model->kv().create();
  for (int round = 0; round < 12; ++round) {
    const auto length = static_cast<size_t>(model->kv().length(sequence));
    std::vector<TokenId> inputs(truth.begin() + static_cast<ptrdiff_t>(length), truth.end());
    const auto draft = random_ids(static_cast<int>(random() % 6), model->config().vocab_size, random());
    inputs.insert(inputs.end(), draft.begin(), draft.end());
    const KvHandle branch = model->kv().fork(sequence);  // a branch that is thrown away must leave no trace
    const auto other = random_ids(4, model->config().vocab_size, random());
    const BatchSlice slices[]{{sequence, inputs, 1}, {branch, other, 1}};
    ASSERT_TRUE(model->forward(slices).ok());
    model->kv().release(branch);
    const size_t accepted = draft.empty() ? 0 : random() % (draft.size() + 1);
    truth.insert(truth.end(), draft.begin(), draft.begin() + static_cast<ptrdiff_t>(accepted));
    model->kv().truncate(sequence, static_cast<int64_t>(truth.size()));
    model->kv().truncate(sequence, static_cast<int64_t>(truth.size()));
    truth.push_back(random_ids(1, model->config().vocab_size, random())[0]);

    const KvHandle fresh = model->kv().create();
    const BatchSlice prefill{fresh, std::span(truth).first(truth.size() - 1), 0};
    ASSERT_TRUE(model->forward({&prefill, 1}).ok());
    EXPECT_EQ(model->kv().content_hash(sequence), model->kv().content_hash(fresh)) << "round " << round;
    model->kv().release(fresh);
    ASSERT_TRUE(model->kv().check_invariants().ok()) << model->kv().check_invariants().message();
  }
  model->kv().release(sequence);
  EXPECT_EQ(model->kv().free_blocks(), model->kv().num_blocks());
}

INSTANTIATE_TEST_SUITE_P(Goldens, ModelTest, ::testing::ValuesIn(testing::suite_models()),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

TEST(ModelForward, FullCacheIsAnErrorAndChangesNothing) {
  auto single = make_single_collectives();
  if (const std::string reason = testing::no_suite_device(); !reason.empty()) GTEST_SKIP() << reason;
  auto model = load_or_die(golden_model("llama2"), {.device = suite_device(), .kv_tokens = 32}, *single);
  const auto ids = random_ids(20, 256, 1);
  const KvHandle a = model->kv().create(), b = model->kv().create();
  const BatchSlice slices[]{{a, std::span(ids).first(4), 1}, {b, ids, 1}};
  auto result = model->forward(slices);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(model->kv().length(a), 0);
  EXPECT_EQ(model->kv().free_blocks(), 2);
}

}  // namespace

void testing::expect_stored_equals_quantised_at_load(const std::string& name, WeightFormat format) {
  const auto original = golden_model(name);
  const TemporaryDirectory directory;
  const std::filesystem::path& stored = directory.path();
  std::filesystem::copy_file(original / "config.json", stored / "config.json");
  const auto config = read_model_config(original);
  auto files = TensorFiles::open(original);
  ASSERT_TRUE(config.ok() && files.ok());
  ThreadPool pool(2);
  std::FILE* to = std::fopen((stored / "model.safetensors").c_str(), "wb");
  EXPECT_TRUE(write_quantized(*files, *config, format, pool, {}, to).ok());
  std::fclose(to);
  const auto ids = random_ids(20, config->vocab_size, 7);
  for (int tp_size : {1, 2, 8}) {
    const auto at_load = logits_of_group(name, tp_size, ids, 7, format);
    EXPECT_TRUE(same_bits(at_load, logits_of_group(stored.string(), tp_size, ids, 7))) << tp_size;
    EXPECT_TRUE(same_bits(at_load, logits_of_group(stored.string(), tp_size, ids, 7, format)));
  }
  const auto single = make_single_collectives();
  const auto other =
      Model::load(stored, {.device = suite_device(), .weight_format = WeightFormat::kBFloat16}, *single);
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("leave the flag out"), std::string::npos)
      << other.status().message();
  auto again = TensorFiles::open(stored);
  to = std::tmpfile();
  EXPECT_FALSE(write_quantized(*again, *config, format, pool, {}, to).ok()) << "integers quantised once more";
  std::fclose(to);
}

double testing::relative_difference(const std::vector<float>& values, const std::vector<float>& truth) {
  double differences = 0, squares = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    const auto expected = static_cast<double>(truth[i]);
    differences += (static_cast<double>(values[i]) - expected) * (static_cast<double>(values[i]) - expected);
    squares += expected * expected;
  }
  return std::sqrt(differences / squares);
}

}  // namespace outrider
