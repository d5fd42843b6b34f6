#include "cluster/topology.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/log.h"
#include "base/parse_number.h"

namespace outrider {
namespace {

constexpr int kTargetSizes[] = {1, 2, 4, 8};
constexpr int kMaxRanks = 4096;  // of one role; catches typing errors

bool is_target_size(int count) {
  return std::find(std::begin(kTargetSizes), std::end(kTargetSizes), count) != std::end(kTargetSizes);
}

std::optional<Role> role_from_name(std::string_view name) {
  for (Role role : {Role::kCoordinator, Role::kDraft, Role::kTarget})
    if (name == role_name(role)) return role;
  return std::nullopt;
}

int count_of(const Layout& layout, Role role) {
  for (const RoleRanks& part : layout)
    if (part.role == role) return part.count;
  return 0;
}

int groups_of(const Layout& layout) {
  for (const RoleRanks& part : layout)
    if (part.role == Role::kTarget) return part.groups;
  return 1;
}

int prefill_groups_of(const Layout& layout) {
  for (const RoleRanks& part : layout)
    if (part.role == Role::kTarget) return part.prefill_groups;
  return 0;
}

int draft_width_of(const Layout& layout) {
  for (const RoleRanks& part : layout)
    if (part.role == Role::kDraft) return part.width;
  return 1;
}

bool names(const Layout& layout, Role role) {
  return std::any_of(layout.begin(), layout.end(),
                     [role](const RoleRanks& part) { return part.role == role; });
}

int world_of(const Layout& layout) {
  int sum = 0;
  for (const RoleRanks& part : layout) sum += part.count;
  return sum;
}

std::string to_text(const Layout& layout) {
  std::string text;
  for (const RoleRanks& part : layout) {
    if (part.prefill_groups > 0) {
      const int each = part.count / part.groups;
      text += fmt::format("{}target=prefill:{}x{},decode:{}x{}", text.empty() ? "" : ",", part.prefill_groups,
                          each, part.groups - part.prefill_groups, each);
      continue;
    }
    const int each = part.width > 1 ? part.width : part.count / part.groups;
    text +=
        fmt::format("{}{}={}{}", text.empty() ? "" : ",", role_name(part.role),
                    each < part.count || part.width > 1 ? fmt::format("{}x", part.count / each) : "", each);
  }
  return text;
}

// "role=count", "target=groupsxranks" or "draft=workersxranks"
Result<RoleRanks> parse_part(std::string_view part) {
  const size_t equals = part.find('=');
  if (equals == std::string_view::npos) return invalid_argument(fmt::format("'{}' is not ROLE=COUNT", part));
  const std::string_view name = part.substr(0, equals), number = part.substr(equals + 1);
  const auto role = role_from_name(name);
  if (!role)
    return invalid_argument(fmt::format("'{}' is no role; roles are coordinator, draft and target", name));
  const size_t times = number.find('x');
  const bool has_groups = times != std::string_view::npos;
  if (has_groups && *role == Role::kCoordinator)
    return invalid_argument(
        fmt::format("{}={}: only targets and draft workers have several ranks", name, number));
  const auto groups = has_groups ? parse_number<int>(number.substr(0, times)) : std::optional(1);
  const auto count = parse_number<int>(has_groups ? number.substr(times + 1) : number);
  if (has_groups && (!groups || *groups < 1 || !count || *count < 1 || *count > kMaxRanks / *groups))
    return invalid_argument(
        *role == Role::kTarget
            ? fmt::format(
                  "{}={}: it is groups and the ranks of each, as in target=2x4, which is two groups of "
                  "four ranks",
                  name, number)
            : fmt::format(
                  "{}={}: it is workers and the ranks of each, as in draft=1x2, which is one worker of "
                  "two ranks",
                  name, number));
  if (!count || *count < 0 || *count > kMaxRanks)
    return invalid_argument(fmt::format("{}: '{}' is not a number of ranks", name, number));
  if (*role == Role::kDraft && has_groups) return RoleRanks{*role, *groups * *count, 1, *count};
  return RoleRanks{*role, *groups * *count, *groups};
}

// "prefill:groupsxranks" or "decode:groupsxranks"
Result<RoleRanks> parse_groups(std::string_view text, std::string_view kind) {
  const std::string_view form =
      "target=prefill:1x2,decode:2x2 is one group of two ranks that only prefills, and two that decode";
  if (!text.starts_with(kind) || text.find('x') == std::string_view::npos)
    return invalid_argument(fmt::format("'{}': it is {}GROUPSxRANKS, prefill first: {}", text, kind, form));
  auto part = parse_part(fmt::format("target={}", text.substr(kind.size())));
  if (!part.ok())
    return invalid_argument(
        fmt::format("'{}': groups and ranks are numbers from 1; {}{}", text, form,
                    text.starts_with("prefill:0") ? "; without groups that prefill say target=2x2" : ""));
  return part;
}

// Whether a target's groups have kinds: "target=prefill:..."
bool has_kinds(std::string_view text) {
  return text.starts_with("target=") && text.substr(0, text.find(',')).find(':') != std::string_view::npos;
}

// "target=prefill:...,decode:..."; `length`: of both.
Result<RoleRanks> parse_two_kinds(std::string_view text, size_t* length) {
  constexpr std::string_view kTarget = "target=", kPrefill = "prefill:", kDecode = "decode:";
  const size_t comma = text.find(',');
  const std::string_view first =
      text.substr(kTarget.size(), comma == std::string_view::npos ? comma : comma - kTarget.size());
  const std::string_view rest = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  const std::string_view second = rest.substr(0, rest.find(','));
  for (const std::string_view each : {first, second})
    if (const std::string_view kind = each.substr(0, each.find(':'));
        !each.empty() && each.find('=') == std::string_view::npos && kind != "prefill" && kind != "decode")
      return invalid_argument(
          fmt::format("'{}' is no kind of target group; kinds are prefill and decode, as in "
                      "target=prefill:1x2,decode:2x2",
                      kind));
  ASSIGN_OR_RETURN(const RoleRanks prefill, parse_groups(first, kPrefill));
  if (second.empty()) return invalid_argument("target=prefill:... needs decode:GROUPSxRANKS behind it");
  ASSIGN_OR_RETURN(const RoleRanks decode, parse_groups(second, kDecode));
  if (prefill.count / prefill.groups != decode.count / decode.groups)
    return unsupported(fmt::format(
        "groups that prefill have {} ranks each, and groups that decode {}: give both the same number",
        prefill.count / prefill.groups, decode.count / decode.groups));
  *length = comma + 1 + second.size();
  return RoleRanks{Role::kTarget, prefill.count + decode.count, prefill.groups + decode.groups, 1,
                   prefill.groups};
}

Result<Layout> parse_parts(std::string_view text) {
  Layout layout;
  while (true) {
    size_t comma = text.find(',');
    const bool kinds = has_kinds(text);
    auto parsed = kinds ? parse_two_kinds(text, &comma) : parse_part(text.substr(0, comma));
    if (kinds && comma == text.size()) comma = std::string_view::npos;
    ASSIGN_OR_RETURN(const RoleRanks part, std::move(parsed));
    if (names(layout, part.role))
      return invalid_argument(
          fmt::format("{} is named twice; its ranks are consecutive", role_name(part.role)));
    layout.push_back(part);
    if (comma == std::string_view::npos) return layout;
    text.remove_prefix(comma + 1);
  }
}

Status check(const Layout& layout, int world_size) {
  const int coordinators = count_of(layout, Role::kCoordinator), targets = count_of(layout, Role::kTarget);
  if (coordinators != 1)
    return invalid_argument(fmt::format("coordinator={}: there must be exactly 1", coordinators));
  const int groups = groups_of(layout);
  if (targets % groups != 0)
    return invalid_argument(fmt::format("{} target ranks are not {} groups of one size", targets, groups));
  if (!is_target_size(targets / groups) && groups == 1)
    return invalid_argument(
        fmt::format("target={}: a target group has 1, 2, 4 or 8 ranks{}", targets,
                    targets > 8 ? "; several groups are target=2x4, say, which is two of four" : ""));
  if (!is_target_size(targets / groups))
    return invalid_argument(
        fmt::format("target={0}x{1}: {0} groups of {1} ranks each, but a target group has 1, 2, 4 or 8",
                    groups, targets / groups));
  if (const int width = draft_width_of(layout); !is_target_size(width))
    return invalid_argument(fmt::format("draft={}x{}: a draft worker has 1, 2, 4 or 8 ranks",
                                        count_of(layout, Role::kDraft) / width, width));
  if (world_of(layout) != world_size)
    return invalid_argument(
        fmt::format("it names {0} ranks, but {1} were started; start with -n {0} or change the layout",
                    world_of(layout), world_size));
  return {};
}

}  // namespace

const char* role_name(Role role) {
  switch (role) {
    case Role::kCoordinator:
      return "coordinator";
    case Role::kDraft:
      return "draft";
    case Role::kTarget:
      return "target";
  }
  return "unknown";
}

Result<Layout> parse_layout(std::string_view text, int world_size, int groups, int draft_width,
                            int prefill_groups) {
  const std::string where = fmt::format("--layout {}", text);
  auto parts = parse_parts(text);
  if (!parts.ok()) return parts.status().in(where);
  Layout layout = std::move(parts).value();
  if (!names(layout, Role::kCoordinator)) layout.insert(layout.begin(), {Role::kCoordinator, 1});
  if (!names(layout, Role::kTarget))
    layout.push_back({Role::kTarget, std::max(0, world_size - world_of(layout)), groups, 1, prefill_groups});
  const int decode = groups - prefill_groups, decode_here = groups_of(layout) - prefill_groups_of(layout);
  if (prefill_groups > 0 && prefill_groups_of(layout) != prefill_groups)
    return invalid_argument(fmt::format(
        "{}: --prefill-groups {} but it names {}; say target=prefill:{}xRANKS,decode:{}xRANKS, or "
        "drop the flag",
        where, prefill_groups, prefill_groups_of(layout), prefill_groups, decode));
  if (decode > 1 && decode_here != decode)
    return invalid_argument(fmt::format(
        "{}: --data-parallel-size {} but it names {} target group{}; say target={}xRANKS, or drop the flag",
        where, decode, decode_here, decode_here == 1 ? "" : "s", decode));
  if (draft_width > 1 && names(layout, Role::kDraft) && draft_width_of(layout) != draft_width)
    return invalid_argument(fmt::format(
        "{}: --draft-tensor-parallel-size {} but its draft workers have {} rank{}; say draft=1x{}, or drop "
        "the "
        "flag",
        where, draft_width, draft_width_of(layout), draft_width_of(layout) == 1 ? "" : "s", draft_width));
  if (const Status status = check(layout, world_size); !status.ok()) return status.in(where);
  return layout;
}

// "2xRANKS", or "prefill:1xRANKS,decode:1xRANKS"
static std::string form_of_targets(int groups, int prefill_groups) {
  if (prefill_groups > 0)
    return fmt::format("prefill:{}xRANKS,decode:{}xRANKS", prefill_groups, groups - prefill_groups);
  return groups > 1 ? fmt::format("{}xRANKS", groups) : "RANKS";
}

Result<Layout> default_layout(int world_size, int groups, int draft_width, int prefill_groups) {
  const int drafts = world_size >= 1 + draft_width + groups ? draft_width : 0;
  const int targets = world_size - 1 - drafts;
  if (targets % groups == 0 && is_target_size(targets / groups)) {
    Layout layout{{Role::kCoordinator, 1}};
    if (drafts > 0) layout.push_back({Role::kDraft, drafts, 1, draft_width});
    layout.push_back({Role::kTarget, targets, groups, 1, prefill_groups});
    return layout;
  }
  if (draft_width > 1)
    return invalid_argument(fmt::format(
        "{} ranks would leave {} for the target, beside {} of a draft worker (--draft-tensor-parallel-size): "
        "say what is what with --layout coordinator=1,draft=1x{},target={}",
        world_size, std::max(0, targets), drafts, draft_width, form_of_targets(groups, prefill_groups)));
  if (groups > 1)
    return invalid_argument(fmt::format(
        "{} ranks would leave {} for {} target groups, which have 1, 2, 4 or 8 each: start with "
        "-n {}, or say "
        "what is what with --layout coordinator=1,draft=1,target={}",
        world_size, std::max(0, targets), groups, 2 + groups, form_of_targets(groups, prefill_groups)));
  if (world_size < 2)
    return invalid_argument(
        "1 rank cannot be coordinator and target group: start with -n 2 or more, or without mpirun, in one "
        "process");
  constexpr int kWorlds[] = {2, 3, 4, 6,
                             10};  // coordinator, draft worker and 1, 2, 4, 8 target ranks; or no draft
  const int nearest = *std::min_element(std::begin(kWorlds), std::end(kWorlds), [world_size](int a, int b) {
    return std::abs(a - world_size) < std::abs(b - world_size);
  });
  int target = 1;  // the largest group that fits
  for (const int size : kTargetSizes)
    if (size <= targets) target = size;
  return invalid_argument(fmt::format(
      "{} ranks would leave {} for the target group, which has 1, 2, 4 or 8: start with -n {}, or draft on "
      "the others with --layout coordinator=1,draft={},target={}",
      world_size, targets, nearest, world_size - 1 - target, target));
}

Topology::Topology(const Layout& layout, const std::vector<HostInfo>& hosts) {
  CHECK(world_of(layout) == static_cast<int>(hosts.size()), "layout={} hosts={}", to_text(layout),
        hosts.size());
  std::map<std::string, int> ranks_on, workers_on;
  groups_ = groups_of(layout);
  prefill_groups_ = prefill_groups_of(layout);
  draft_width_ = draft_width_of(layout);
  for (const RoleRanks& part : layout)
    for (int index = 0; index < part.count; ++index) {
      const HostInfo& host = hosts[ranks_.size()];
      const int size = part.role == Role::kDraft ? part.width : part.count / part.groups;
      RankPlace place{.rank = Rank(static_cast<int32_t>(ranks_.size())),
                      .role = part.role,
                      .index = index,
                      .group = index / size,
                      .tp_rank = part.role == Role::kTarget ? index % size : -1,
                      .draft_rank = part.role == Role::kDraft ? index % size : -1,
                      .host = host.name,
                      .local_rank = ranks_on[host.name]++};
      if (part.role != Role::kCoordinator && host.gpus > 0)
        place.device = fmt::format("cuda:{}", workers_on[host.name]++ % host.gpus);
      ranks_.push_back(std::move(place));
    }
}

const RankPlace& Topology::at(Rank rank) const {
  CHECK(rank.value() >= 0 && rank.value() < static_cast<int32_t>(ranks_.size()), "rank={}", rank.value());
  return ranks_[static_cast<size_t>(rank.value())];
}

int Topology::count(Role role) const {
  return static_cast<int>(std::count_if(ranks_.begin(), ranks_.end(),
                                        [role](const RankPlace& place) { return place.role == role; }));
}

Rank Topology::first(Role role) const {
  for (const RankPlace& place : ranks_)
    if (place.role == role) return place.rank;
  check_failed(__FILE__, __LINE__, "a role without ranks", role_name(role));
}

std::string Topology::describe() const {
  std::string text;
  for (const RankPlace& place : ranks_) {
    std::string name = role_name(place.role);
    if (place.role == Role::kTarget && groups_ > 1)
      name += fmt::format("/{}.{}", place.group, place.tp_rank);
    else if (place.role == Role::kDraft && draft_width_ > 1)
      name += fmt::format("/{}.{}", place.group, place.draft_rank);
    else if (place.role != Role::kCoordinator)
      name += fmt::format("/{}", place.index);
    text +=
        fmt::format("rank {:<3} {:<12} {:<8} on {} (local rank {}){}\n", place.rank.value(), name,
                    place.device, place.host, place.local_rank,
                    !place.is_leader() ? ""
                    : groups_ > 1      ? fmt::format(", leader of group {}{}", place.group,
                                                place.group < prefill_groups_ ? ", which only prefills" : "")
                                       : ", leader");
  }
  return text;
}

}  // namespace outrider
