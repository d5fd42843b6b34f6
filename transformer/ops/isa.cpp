#include "transformer/ops/isa.h"

#include <hwy/targets.h>

#include <algorithm>
#include <cctype>

#include "base/log.h"

namespace outrider {
namespace {

constexpr const char* kAvx512Bf16 = "avx512_bf16";

bool cpu_has_avx512_bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

// Instruction sets are a property of the process: chosen once, before the first op.
bool& use_avx512_bf16() {
  static bool use = cpu_has_avx512_bf16();
  return use;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// The Highway targets compiled in that this processor has, best first. Pinning narrows what Highway reports
// later.
const std::vector<int64_t>& highway_targets() {
  static const std::vector<int64_t> all = [] {
    std::vector<int64_t> targets;
    for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1)
      targets.push_back(left & -left);
    return targets;
  }();
  return all;
}

int64_t& chosen_highway_target() {
  static int64_t chosen = highway_targets().front();
  return chosen;
}

void choose_highway_target(int64_t target) {
  chosen_highway_target() = target;
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().DeInit();  // the next call looks again
}

}  // namespace

bool isa_has_avx512_bf16() { return use_avx512_bf16(); }

bool isa_has_avx512_vnni() {
#if defined(__x86_64__)
  static const bool cpu_has = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw");
  return cpu_has && chosen_highway_target() == HWY_AVX3;
#else
  return false;
#endif
}

std::string isa_name() {
  return use_avx512_bf16() ? kAvx512Bf16 : lower(hwy::TargetName(chosen_highway_target()));
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  if (cpu_has_avx512_bf16()) names.emplace_back(kAvx512Bf16);
  for (int64_t target : highway_targets()) names.push_back(lower(hwy::TargetName(target)));
  return names;
}

Status pin_isa(const std::string& name) {
  if (name == "auto" || name == isa_name()) return {};
  if (name == kAvx512Bf16 && cpu_has_avx512_bf16()) {
    choose_highway_target(highway_targets().front());
    use_avx512_bf16() = true;
    return {};
  }
  for (int64_t target : highway_targets()) {
    if (lower(hwy::TargetName(target)) != name) continue;
    choose_highway_target(target);
    use_avx512_bf16() = false;
    return {};
  }
  std::string offered;
  for (const std::string& isa : available_isas()) offered += (offered.empty() ? "" : ", ") + isa;
  return invalid_argument(fmt::format("--isa {}: not on this machine; it has {}", name, offered));
}

}  // namespace outrider
