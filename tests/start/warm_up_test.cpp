// Measurements that a target makes before it joins.
#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "comm/device_group.h"
#include "start/load_models.h"
#include "tests/support/source_dir.h"

namespace outrider {
namespace {

RoleSettings demo_settings(int ranks) {
  RoleSettings settings{.models = {}, .speculation = {}, .quiet = true};
  settings.models.model = (source_dir() / "launch/demo_pair/target").string();
  settings.models.tensor_parallel_size = ranks;
  return settings;
}

TEST(WarmUp, AllRanksHaveTheTimesOfPassesAndAnEmptyCache) {
  for (const int ranks : {1, 2}) {
    const RoleSettings settings = demo_settings(ranks);
    const Preparation prepared = prepare(settings).value();
    const auto group = make_thread_collectives(ranks);
    std::vector<LoadedModel> loaded(static_cast<size_t>(ranks));
    {
      std::vector<std::jthread> threads;
      for (int r = 0; r < ranks; ++r)
        threads.emplace_back([&, r] {
          const auto at = static_cast<size_t>(r);
          loaded[at] = load_target(settings, prepared, {}, *group[at]).value();
        });
    }
    for (const LoadedModel& rank : loaded) {
      const PassTimes &times = rank.pass_times, &first = loaded.front().pass_times;
      EXPECT_GT(times.row_ns, 0);
      EXPECT_EQ(times.row_ns, first.row_ns);
      ASSERT_EQ(times.by_rows.size(), 5u);
      for (size_t i = 0; i < 5; ++i) {
        EXPECT_EQ(times.by_rows[i].rows, (std::array{2, 3, 5, 9, 17})[i]);
        EXPECT_GT(times.by_rows[i].passes, 0);
        EXPECT_EQ(times.by_rows[i].passes, first.by_rows[i].passes);
      }
      EXPECT_EQ(rank.model->kv().free_blocks(), rank.model->kv().num_blocks());
    }
  }
}

// Rows for which the model has no room are not measured.
TEST(WarmUp, MeasuresNoMoreRowsThanThereIsRoomFor) {
  RoleSettings settings = demo_settings(1);
  settings.models.max_model_len = 4;
  const Preparation prepared = prepare(settings).value();
  const auto alone = make_single_collectives();
  const auto loaded = load_target(settings, prepared, {}, *alone);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  ASSERT_EQ(loaded->pass_times.by_rows.size(), 2u);
  EXPECT_EQ(loaded->pass_times.by_rows.back().rows, 3);
}

// A draft model is measured for a step and for a prefill.
TEST(WarmUp, ADraftModelHasTheTimeOfAStepAndOfAPrefill) {
  RoleSettings settings = demo_settings(1);
  settings.models.draft_model = (source_dir() / "launch/demo_pair/draft").string();
  const Preparation prepared = prepare(settings).value();
  const auto alone = make_single_collectives();
  const auto loaded = load_draft(settings, prepared, {}, *alone);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_GT(loaded->pass_times.row_ns, 0);
  EXPECT_GT(loaded->pass_times.prefill_token_ns, 0);
  ASSERT_EQ(loaded->pass_times.by_rows.size(), 1u);
  EXPECT_EQ(loaded->model->kv().free_blocks(), loaded->model->kv().num_blocks());
}

// A device that only counts how often it is waited for.
class CountedWaits : public cuda::DeviceGroup {
 public:
  int waits = 0;

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return "counted"; }
  int device() const override { return 0; }
  bool is_capturable() const override { return false; }
  void all_reduce(cuda::Reduction, void*, int64_t, cuda::StreamView) override {}
  void all_gather(const void*, void*, int64_t, cuda::StreamView) override {}
  void wait(cuda::StreamView) override { ++waits; }
  void abort() noexcept override {}
};

// Passes of a model on the host, as if it computed on a device.
class ModelOnADevice : public Model {
 public:
  int fetched = 0, in_place = 0;
  CountedWaits device;

  explicit ModelOnADevice(Model& host) : host_(host) {}
  Result<LogitsShard> forward(std::span<const BatchSlice> batch) override {
    ++fetched;
    return host_.forward(batch);
  }
  Result<PlacedLogits> forward_in_place(std::span<const BatchSlice> batch) override {
    EXPECT_EQ(device.waits, in_place) << "a pass begins before the last one ended";
    ++in_place;
    ASSIGN_OR_RETURN(const LogitsShard logits, host_.forward(batch));
    return PlacedLogits(DeviceLogits{
        .logits = logits.logits, .vocab_range = logits.vocab_range, .vocab_size = logits.vocab_size});
  }
  Result<LogitsShard> forward_first(std::span<const BatchSlice> batch, int64_t layers,
                                    std::span<ExitedTokens* const> exited) override {
    return host_.forward_first(batch, layers, exited);
  }
  cuda::DeviceGroup* device_group() override { return &device; }
  KvCache& kv() override { return host_.kv(); }
  const ModelConfig& config() const override { return host_.config(); }
  int64_t max_positions() const override { return host_.max_positions(); }
  int64_t max_rows() const override { return host_.max_rows(); }
  int64_t max_logit_rows() const override { return host_.max_logit_rows(); }
  int64_t weight_bytes() const override { return host_.weight_bytes(); }
  std::string isa() const override { return host_.isa(); }

 private:
  Model& host_;
};

// Verification and drafts use logits where a device computed them, so a pass is timed until the device is
// done and without a copy of its logits.
TEST(WarmUp, LogitsStayOnTheDevice) {
  const RoleSettings settings = demo_settings(1);
  const Preparation prepared = prepare(settings).value();
  const auto alone = make_single_collectives();
  const LoadedModel loaded = load_target(settings, prepared, {}, *alone, 0, false).value();
  for (const Role role : {Role::kTarget, Role::kDraft}) {
    ModelOnADevice model(*loaded.model);
    EXPECT_GT(warm_up(model, *alone, role).row_ns, 0);
    EXPECT_GT(model.in_place, 2);
    EXPECT_EQ(model.device.waits, model.in_place);
    EXPECT_EQ(model.fetched, 0);
  }
}

}  // namespace
}  // namespace outrider
