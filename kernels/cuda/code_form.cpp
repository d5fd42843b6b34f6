#include "kernels/cuda/code_form.h"

namespace outrider::cuda {
namespace {

int32_t unit_of(const QuantScheme& scheme, int64_t k, bool is_scattered) {
  if (scheme.scale == ScaleType::kNested) return static_cast<int32_t>(scheme.group);
  const bool is_whole = scheme.group % kGroupStep == 0 || scheme.group >= k;
  return is_whole && !is_scattered ? kGroupStep : kGroupStep / 2;
}

// More than there may be where a scheme has no form.
int32_t words_of(const CodeForm& f) {
  const int32_t zeros = f.zero_type == ZeroType::kStored ? 1 : 0, none = CodeForm::kMaxWords + 1;
  switch (f.scale) {
    case ScaleType::kFloat16:
    case ScaleType::kBFloat16:
      return f.zero_type == ZeroType::kMinimum ? none : f.units() + zeros;
    case ScaleType::kFloat32:
      return f.zero_type == ZeroType::kMinimum ? none : 2 * f.units() + zeros;
    case ScaleType::kPowerOfTwo:
      return f.zero_type == ZeroType::kConstant ? 1 : none;
    case ScaleType::kNested:
      if (f.zero_type == ZeroType::kMinimum) return f.unit == 32 && f.is_half_bytes() ? 4 : none;
      return f.zero_type == ZeroType::kConstant && f.unit == 16 && f.code == CodeType::kUnsigned8 ? 3 : none;
  }
  return none;
}

}  // namespace

std::optional<CodeForm> code_form(const QuantScheme& scheme, int64_t k, bool is_scattered) {
  CodeForm form{.code = scheme.code,
                .scale = scheme.scale,
                .zero_type = scheme.zero_type,
                .zero = scheme.zero,
                .unit = unit_of(scheme, k, is_scattered)};
  if (form.unit != 64 && form.unit != 32 && form.unit != 16) return {};
  form.words = words_of(form);
  // Numbers of codes that are no whole ones have no zero.
  const bool has_zero = form.zero_type != ZeroType::kConstant || form.zero != 0;
  if ((form.code == CodeType::kE4m3 || form.code == CodeType::kE2m1) && has_zero) return {};
  return form.words <= CodeForm::kMaxWords ? std::optional(form) : std::nullopt;
}

}  // namespace outrider::cuda
