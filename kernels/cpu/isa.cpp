#include "kernels/cpu/isa.h"

#include <hwy/targets.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/log.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace outrider {
namespace {

// Instructions that Highway has no target for, on top of its best target; best first.
enum class Extension : uint8_t { kAmx, kAvx512Bf16, kNone };
constexpr std::array kExtensions{std::pair{"amx", Extension::kAmx},
                                 std::pair{"avx512_bf16", Extension::kAvx512Bf16}};

bool cpu_has_avx512_bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

// The kernel gives a process the 8 KiB of tile registers only on request (Linux 5.16), once for all threads.
bool cpu_has_amx() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;  // of CPUID 7.0 EDX
  constexpr long kRequestPermission = 0x1023, kTileData = 18;               // ARCH_REQ_XCOMP_PERM
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  constexpr unsigned kAll = kBf16 | kTile | kInt8;
  return (edx & kAll) == kAll && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool cpu_has(Extension extension) {
  static const bool bf16 = cpu_has_avx512_bf16(), amx = bf16 && cpu_has_amx();
  return extension == Extension::kAmx ? amx : extension == Extension::kAvx512Bf16 ? bf16 : true;
}

// Instruction sets are a property of the process: chosen once, before the first op.
Extension& chosen_extension() {
  static Extension chosen = cpu_has(Extension::kAmx)          ? Extension::kAmx
                            : cpu_has(Extension::kAvx512Bf16) ? Extension::kAvx512Bf16
                                                              : Extension::kNone;
  return chosen;
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

bool isa_has_amx() { return chosen_extension() == Extension::kAmx; }
bool isa_has_avx512_bf16() { return chosen_extension() != Extension::kNone; }

bool isa_has_avx512_vnni() {
#if defined(__x86_64__)
  static const bool cpu_has = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw");
  return cpu_has && chosen_highway_target() == HWY_AVX3;
#else
  return false;
#endif
}

std::string isa_name() {
  for (const auto& [name, extension] : kExtensions)
    if (extension == chosen_extension()) return name;
  return lower(hwy::TargetName(chosen_highway_target()));
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const auto& [name, extension] : kExtensions)
    if (cpu_has(extension)) names.emplace_back(name);
  for (int64_t target : highway_targets()) names.push_back(lower(hwy::TargetName(target)));
  return names;
}

Status pin_isa(const std::string& name) {
  if (name == "auto" || name == isa_name()) return {};
  for (const auto& [extension_name, extension] : kExtensions) {
    if (name != extension_name || !cpu_has(extension)) continue;
    choose_highway_target(highway_targets().front());
    chosen_extension() = extension;
    return {};
  }
  for (int64_t target : highway_targets()) {
    if (lower(hwy::TargetName(target)) != name) continue;
    choose_highway_target(target);
    chosen_extension() = Extension::kNone;
    return {};
  }
  std::string offered;
  for (const std::string& isa : available_isas()) offered += (offered.empty() ? "" : ", ") + isa;
  return invalid_argument(fmt::format("--isa {}: not on this machine; it has {}", name, offered));
}

}  // namespace outrider
