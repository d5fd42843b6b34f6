#include "model/cuda/code_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/cpu/packed_matrix.h"

namespace outrider::cuda {
namespace {

constexpr int64_t kAlignedColumns = 8;  // 16 bytes of activations

// A column by where it comes from.
struct Place {
  int32_t piece = 0, group = 0;
  bool operator==(const Place&) const = default;
};

std::vector<Place> places_of(std::span<const CodedPiece> pieces) {
  std::vector<Place> places;
  for (size_t p = 0; p < pieces.size(); ++p)
    for (int64_t c = pieces[p].columns.begin; c < pieces[p].columns.end; ++c)
      places.push_back({static_cast<int32_t>(p), static_cast<int32_t>(pieces[p].coded->group_of(c))});
  return places;
}

bool has_order(std::span<const CodedPiece> pieces) {
  return std::any_of(pieces.begin(), pieces.end(),
                     [](const CodedPiece& p) { return !p.coded->order().empty(); });
}

// Columns of one slice or, where nothing cuts them, of all, put by groups into units.
class Layout {
 public:
  Layout(std::span<const CodedPiece> pieces, int64_t unit)
      : places_(places_of(pieces)),
        has_order_(has_order(pieces)),
        unit_(unit),
        groups_together_(static_cast<int32_t>(pieces.front().coded->scheme().groups_together)) {}

  // Appends columns [begin, end); units are counted from where they begin.
  void add(int64_t begin, int64_t end) {
    std::vector<int32_t> sorted(static_cast<size_t>(end - begin));
    std::iota(sorted.begin(), sorted.end(), static_cast<int32_t>(begin));
    const auto place = [&](int32_t column) { return places_[static_cast<size_t>(column)]; };
    if (has_order_)
      std::stable_sort(sorted.begin(), sorted.end(), [&](int32_t a, int32_t b) {
        const Place x = place(a), y = place(b);
        return x.piece != y.piece ? x.piece < y.piece : x.group < y.group;
      });
    const auto first = static_cast<int64_t>(columns.size());
    for (size_t i = 0; i < sorted.size(); ++i) {
      if (i > 0) {
        const int64_t multiple = alignment(place(sorted[i - 1]), place(sorted[i]));
        columns.resize(static_cast<size_t>(first + round_up(size() - first, multiple)), -1);
      }
      columns.push_back(sorted[i]);
    }
  }
  void fill_up(int64_t multiple) { columns.resize(static_cast<size_t>(round_up(size(), multiple)), -1); }
  int64_t size() const { return static_cast<int64_t>(columns.size()); }
  bool is_in_order() const {
    for (size_t i = 0; i < columns.size(); ++i)
      if (columns[i] != static_cast<int32_t>(i)) return false;
    return true;
  }
  Place place_at(int64_t i) const { return places_[static_cast<size_t>(columns[static_cast<size_t>(i)])]; }

  std::vector<int32_t> columns;

 private:
  // Where a column may lie behind another one. A step has the nested numbers of one group of groups.
  int64_t alignment(const Place& before, const Place& own) const {
    if (before == own) return 1;
    const bool meet =
        before.piece == own.piece && before.group / groups_together_ == own.group / groups_together_;
    return meet || groups_together_ == 1 ? unit_ : kGroupStep;
  }

  const std::vector<Place> places_;
  const bool has_order_;
  const int64_t unit_;
  const int32_t groups_together_;
};

// Leaf by leaf. aligned: every leaf begins where activations can be read 16 bytes at a time.
std::vector<int64_t> add_leaves(const std::vector<int64_t>& leaf_ends, bool aligned, Layout& layout) {
  std::vector<int64_t> ends;
  int64_t begin = 0;
  for (const int64_t end : leaf_ends) {
    layout.add(begin, end);
    if (aligned) layout.fill_up(kAlignedColumns);
    ends.push_back(layout.size());
    begin = end;
  }
  return ends;
}

std::vector<CodePlan::Unit> units_of(const CodeForm& form, const Slices& slices, const Layout& layout) {
  std::vector<CodePlan::Unit> units(static_cast<size_t>(slices.steps() * form.units()));
  for (int32_t s = 0; s < slices.count; ++s)
    for (int32_t at = slices.begin[s]; at < slices.begin[s + 1]; at += form.unit) {
      const int32_t index = slices.first_step[s] * form.units() + (at - slices.begin[s]) / form.unit;
      if (layout.columns[static_cast<size_t>(at)] < 0) continue;  // a unit that has columns begins with one
      const Place place = layout.place_at(at);
      units[static_cast<size_t>(index)] = {place.piece, place.group};
    }
  return units;
}

uint16_t upper_half(float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); }
uint16_t lower_half(float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value)); }

void put_byte(int index, int32_t value, uint16_t* words) {
  words[index / 2] =
      static_cast<uint16_t>(words[index / 2] | static_cast<uint32_t>(value & 255) << (index % 2 * 8));
}

// words: of the step, zero at first.
void put_numbers(const CodeForm& form, int unit, const GroupNumbers& g, uint16_t* words) {
  switch (form.scale) {
    case ScaleType::kFloat16:
      words[unit] = half_of(g.scale);
      break;
    case ScaleType::kBFloat16:
      words[unit] = to_bf16(g.scale).bits;
      break;
    case ScaleType::kFloat32:
      words[2 * unit] = lower_half(g.scale);
      words[2 * unit + 1] = upper_half(g.scale);
      break;
    case ScaleType::kPowerOfTwo:
      put_byte(unit, code_of_power(g.scale), words);
      break;
    case ScaleType::kNested:
      put_byte(unit, g.scale_code, words);
      words[2] = half_of(g.scale);
      break;
  }
  if (form.zero_type == ZeroType::kStored) put_byte(2 * form.zeros_word() + unit, g.zero, words);
  if (form.zero_type == ZeroType::kMinimum) {
    put_byte(2 + unit, g.minimum_code, words);
    words[3] = half_of(g.minimum);
  }
}

bool has_nan(const CodeForm& form, std::span<const uint8_t> codes) {
  return form.code == CodeType::kE4m3 &&
         std::any_of(codes.begin(), codes.end(), [](uint8_t code) { return (code & 127) == 127; });
}

// In the order of the device.
std::vector<uint8_t> ordered_codes(const CodePlan& plan, std::span<const CodedPiece> pieces, int64_t row) {
  int64_t k = 0;
  for (const CodedPiece& piece : pieces) k += piece.columns.size();
  std::vector<uint8_t> own(static_cast<size_t>(k));
  int64_t at = 0;
  for (const CodedPiece& piece : pieces) {
    const auto count = static_cast<size_t>(piece.columns.size());
    piece.coded->read_codes(row, piece.columns.begin, std::span(own).subspan(static_cast<size_t>(at), count));
    at += piece.columns.size();
  }
  if (plan.columns.empty()) return own;
  std::vector<uint8_t> codes(plan.columns.size());
  for (size_t i = 0; i < codes.size(); ++i)
    if (plan.columns[i] >= 0) codes[i] = own[static_cast<size_t>(plan.columns[i])];
  return codes;
}

}  // namespace

Result<CodePlan> plan_codes(std::span<const CodedPiece> pieces, const std::vector<int64_t>& leaf_ends) {
  const CodedMatrix& first = *pieces.front().coded;
  const bool is_scattered = !leaf_ends.empty() && has_order(pieces);
  const auto form = code_form(first.scheme(), first.k(), is_scattered);
  if (!form)
    return unsupported(
        fmt::format("{} holds {}, whose groups and scales the CUDA kernels do not take; use --device cpu, or "
                    "--weight-format (of a draft model or head: --draft-weight-format) bf16, int8, int4 or "
                    "fp8, which dequantises it while loading",
                    first.tensors().front()->name, first.name()));
  CodePlan plan{.form = *form};
  Layout layout(pieces, form->unit);
  std::vector<int64_t> ends = leaf_ends;
  if (ends.empty()) {
    ends.push_back(0);
    for (const CodedPiece& piece : pieces) ends.back() += piece.columns.size();
  }
  std::vector<int64_t> own_ends = add_leaves(ends, false, layout);
  if (!layout.is_in_order()) {
    layout.columns.clear();
    own_ends = add_leaves(ends, true, layout);
  }
  plan.slices =
      leaf_ends.empty() ? even_slices(layout.size(), kGroupStep) : slices_from_ends(own_ends, kGroupStep);
  plan.units = units_of(*form, plan.slices, layout);
  if (!layout.is_in_order()) plan.columns = std::move(layout.columns);
  return plan;
}

int64_t staged_code_bytes(const CodePlan& plan) {
  return (plan.slices.k() * code_bits(plan.form.code) + 7) / 8;
}
int64_t staged_words(const CodePlan& plan) { return int64_t{plan.slices.steps()} * plan.form.words; }

void stage_codes(const CodePlan& plan, std::span<const CodedPiece> pieces, int64_t row, std::byte* codes,
                 uint16_t* words) {
  const CodeForm& form = plan.form;
  const std::vector<uint8_t> own = ordered_codes(plan, pieces, row);
  auto* to = reinterpret_cast<uint8_t*>(codes);
  if (form.is_half_bytes()) {
    for (size_t i = 0; i < own.size(); i += 2)
      *to++ = static_cast<uint8_t>(own[i] | (i + 1 < own.size() ? own[i + 1] << 4 : 0));
  } else {
    const uint8_t flip = form.code == CodeType::kUnsigned8 ? 0x80 : 0;
    for (const uint8_t code : own) *to++ = code ^ flip;
  }
  std::fill_n(words, staged_words(plan), uint16_t{0});
  const auto units = static_cast<size_t>(form.units());
  CodePlan::Unit known;
  GroupNumbers numbers;
  for (int32_t s = 0; s < plan.slices.count; ++s)
    for (int32_t at = plan.slices.begin[s]; at < plan.slices.begin[s + 1]; at += form.unit) {
      const int32_t step = plan.slices.first_step[s] + (at - plan.slices.begin[s]) / kGroupStep;
      const int32_t unit = (at - plan.slices.begin[s]) % kGroupStep / form.unit;
      const CodePlan::Unit& of = plan.units[static_cast<size_t>(step) * units + static_cast<size_t>(unit)];
      if (of.piece < 0) continue;
      if (of.piece != known.piece || of.group != known.group)
        numbers = pieces[static_cast<size_t>(of.piece)].coded->group(row, of.group);
      known = of;
      const int32_t end = std::min(at + form.unit, plan.slices.begin[s + 1]);
      GroupNumbers own_numbers = numbers;
      if (has_nan(form, std::span(own).subspan(static_cast<size_t>(at), static_cast<size_t>(end - at))))
        own_numbers.scale = std::bit_cast<float>(0x7fc00000u);
      put_numbers(form, unit, own_numbers, words + step * form.words);
    }
}

}  // namespace outrider::cuda
