#include "transcript.h"

#include <fmt/ranges.h>

#include <sstream>
#include <stdexcept>

namespace outrider {
namespace {

std::string list(std::span<const TokenId> ids) {
  std::string text = "[";
  for (TokenId id : ids) text += fmt::format("{}{}", text.size() > 1 ? " " : "", id.value());
  text += "]";
  return text;
}

std::vector<int32_t> numbers(const std::string& text) {
  std::vector<int32_t> out;
  std::istringstream in(text);
  for (std::string number; std::getline(in, number, ',');) out.push_back(std::stoi(number));
  return out;
}

std::string list(std::span<const int32_t> numbers) { return fmt::format("[{}]", fmt::join(numbers, " ")); }

}  // namespace

// "WORD number number key=value": words in order, settings by name.
struct Transcript::Line {
  explicit Line(const std::string& text) {
    std::istringstream in(text);
    for (std::string word; in >> word;) {
      const size_t equals = word.find('=');
      if (equals == std::string::npos)
        words.push_back(std::move(word));
      else
        settings.emplace(word.substr(0, equals), word.substr(equals + 1));
    }
  }
  std::string word() {
    if (at == words.size()) throw std::runtime_error("a word is missing");
    return words[at++];
  }
  bool more() const { return at < words.size(); }
  int64_t number() { return std::stoll(word()); }
  int64_t setting(const std::string& key, int64_t otherwise) const {
    const auto found = settings.find(key);
    return found == settings.end() ? otherwise : std::stoll(found->second);
  }
  bool is(const std::string& key, const std::string& value) const {
    const auto found = settings.find(key);
    return found != settings.end() && found->second == value;
  }
  std::vector<TokenId> rest() {
    std::vector<TokenId> ids;
    while (more()) ids.emplace_back(static_cast<int32_t>(number()));
    return ids;
  }

  std::vector<std::string> words;
  std::map<std::string, std::string> settings;
  size_t at = 0;
};

std::string Transcript::replay(const std::string& text) {
  std::istringstream in(text);
  std::string out;
  int number = 0;
  for (std::string raw; std::getline(in, raw);) {
    ++number;
    if (raw.starts_with("  >")) continue;
    out += fmt::format("{}\n", raw);
    if (raw.empty() || raw.front() == '#') continue;
    try {
      Line line(raw);
      const std::string first = line.word();
      if (first == "set") {
        const std::string key = line.word();
        set(key, raw.substr(raw.find(key) + key.size() + 1));
        continue;
      }
      if (!protocol_) {
        auto gamma = parse_gamma_policy(gamma_);
        protocol_ = std::make_unique<Protocol>(options_, gamma.value(), &tokenizer_);
      }
      const Clock::time_point now{std::chrono::milliseconds(std::stoll(first))};
      for (const Action& action : protocol_->step(parse(line), now)) {
        if (const std::string shown = show(action); !shown.empty()) out += fmt::format("  > {}\n", shown);
      }
    } catch (const std::exception& error) {
      throw std::runtime_error(fmt::format("line {}: {}: {}", number, raw, error.what()));
    }
  }
  return out;
}

void Transcript::set(const std::string& key, const std::string& value) {
  if (key == "gamma") {
    gamma_ = value;
    return;
  }
  if (key == "tree") {
    options_.tree.shape.widths = numbers(value);
    return;
  }
  const int number = std::stoi(value);
  const std::chrono::milliseconds time(number);
  if (key == "eos") {
    options_.eos_ids.assign(1, TokenId(number));
  } else if (key == "draft_timeout_ms") {
    options_.draft_timeout_min = time;
  } else if (key == "first_draft_timeout_ms") {
    options_.first_draft_timeout = time;
  } else if (key == "liveness_timeout_ms") {
    options_.liveness_timeout = time;
  } else if (key == "step_timeout_ms") {
    options_.step_timeout_min = time;
  } else if (key == "target_timeout_ms") {
    options_.target_timeout = time;
  } else if (key == "handoff_timeout_ms") {
    options_.handoff_timeout = time;
  } else if (key == "by_priority") {
    options_.by_priority = number != 0;
  } else {
    const std::map<std::string, int32_t*> numbers = {{"max_num_seqs", &options_.max_num_seqs},
                                                     {"max_queued", &options_.max_queued},
                                                     {"max_rows_per_step", &options_.max_rows_per_step},
                                                     {"prefill_chunk", &options_.prefill_chunk},
                                                     {"max_context", &options_.max_context},
                                                     {"target_groups", &options_.target_groups},
                                                     {"prefill_groups", &options_.prefill_groups},
                                                     {"min_handoff_tokens", &options_.min_handoff_tokens}};
    if (!numbers.contains(key)) throw std::runtime_error("unknown option " + key);
    *numbers.at(key) = number;
  }
}

PeerId Transcript::peer(const std::string& name) {
  return peers_.try_emplace(name, PeerId{peers_.size() + 1}).first->second;
}

std::string Transcript::name_of(PeerId peer) const {
  for (const auto& [name, id] : peers_)
    if (id == peer) return name;
  return "?";
}

// ---- events ---------------------------------------------------------------------------------------------

Event Transcript::parse(Line& line) {
  const std::string verb = line.word();
  if (verb == "tick") return Tick{};
  if (verb == "hello") return parse_hello(line);
  if (verb == "submit") return parse_submit(line);
  if (verb == "draft") return parse_draft(line);
  if (verb == "result") return parse_result(line);
  if (verb == "resync") return parse_resync(line);
  if (verb == "cancel") return Cancel{SequenceId(static_cast<uint64_t>(line.number()))};
  if (verb == "lost") return PeerLost{peer(line.word()), "connection closed"};
  if (verb == "leave") return MessageReceived{peer(line.word()), Shutdown{}};
  if (verb == "heartbeat") return MessageReceived{peer(line.word()), Heartbeat{}};
  if (verb == "failure") {
    const PeerId from = peer(line.word());
    return MessageReceived{from, Failure{line.word()}};
  }
  if (verb == "refused") {
    const PeerId to = peer(line.word());
    return SendFailed{to, last_sent_.at(to)};
  }
  throw std::runtime_error("unknown event " + verb);
}

Event Transcript::parse_hello(Line& line) {
  const std::string name = line.word();
  const bool says_target = name == "target" || line.is("role", "target");
  Hello hello{.role = says_target ? Role::kTarget : Role::kDraft,
              .generation = Generation(generation_++),
              .model = {}};
  hello.protocol_version = static_cast<uint32_t>(line.setting("version", kProtocolVersion));
  hello.model = {.name = name,
                 .vocab_size = 40,
                 .vocabulary_fingerprint = static_cast<uint64_t>(line.setting("vocabulary", 7)),
                 .max_context = static_cast<int32_t>(line.setting("context", 100)),
                 .isa = "none"};
  hello.max_sequences = static_cast<int32_t>(line.setting("sequences", 8));
  hello.kv_blocks = line.setting("kv_blocks", 0);
  hello.only_prefills = line.setting("only_prefills", 0) != 0;
  hello.block_inbox = static_cast<uint64_t>(line.setting("inbox", 0));
  return MessageReceived{peer(name), hello,
                         line.is("door", "outside")   ? TrustZone::kOutside
                         : line.is("door", "targets") ? TrustZone::kTargets
                                                      : TrustZone::kInside};
}

Event Transcript::parse_submit(Line& line) {
  Submit submit{SequenceId(static_cast<uint64_t>(line.number())), {}};
  submit.request.prompt = line.rest();
  submit.request.max_tokens = static_cast<int32_t>(line.setting("max_tokens", 20));
  submit.request.priority = static_cast<int32_t>(line.setting("priority", 0));
  submit.request.ignore_eos = line.setting("ignore_eos", 0) != 0;
  if (line.settings.contains("salt")) submit.request.cache_salt = line.settings["salt"];
  if (line.settings.contains("stop")) submit.request.stop = {line.settings["stop"]};
  if (line.settings.contains("rule"))
    submit.request.sampling.rule = rule_from_name(line.settings["rule"]).value();
  ids_[submit.id] = submit.request.prompt;
  return submit;
}

Event Transcript::parse_draft(Line& line) {
  const PeerId from = peer(line.word());
  const SequenceId sequence(static_cast<uint64_t>(line.number()));
  const Propose& asked = proposed_[sequence];
  Draft draft{.sequence = sequence,
              .epoch = asked.epoch,
              .round = asked.round,
              .base = asked.base,
              .ids = line.rest(),
              .parents = {},
              .q_kind = asked.q_kind,
              .q = {}};
  draft.prefix_hash = line.is("hash", "bad") ? 1 : prefix_hash(ids_[sequence]);
  draft.epoch = Epoch(static_cast<uint32_t>(line.setting("epoch", draft.epoch.value())));
  draft.round = Round(static_cast<uint32_t>(line.setting("round", draft.round.value())));
  draft.base = Position(static_cast<int32_t>(line.setting("base", draft.base.value())));
  if (line.is("parents", "tree"))
    draft.parents.assign(draft.ids.size(), 0);
  else if (line.settings.contains("parents"))
    draft.parents = numbers(line.settings["parents"]);
  if (asked.q_kind == QKind::kSparse) {
    for (TokenId id : draft.ids) draft.q.push_back({{static_cast<uint32_t>(id.value())}, {5}, 5});
    if (line.is("q", "bad")) draft.q.front().sum = 4;
  }
  return MessageReceived{from, draft};
}

Event Transcript::parse_result(Line& line) {
  const std::string from = line.settings.contains("from") ? line.settings["from"] : "target";
  const StepPlan& plan = plans_[from];
  StepResult result{.step = static_cast<uint64_t>(line.setting("step", static_cast<int64_t>(plan.step))),
                    .verdicts = {}};
  result.exported.assign(plan.exports.size(), line.setting("exported", 1000));
  result.imported.assign(plan.imports.size(), static_cast<uint8_t>(line.setting("imported", 0)));
  while (line.more()) {
    Verdict verdict{.sequence = SequenceId(static_cast<uint64_t>(line.number())),
                    .epoch = {},
                    .next = {},
                    .logprobs = {}};
    for (const PlanEntry& entry : plan.entries) {
      if (entry.sequence != verdict.sequence) continue;
      verdict.epoch = entry.epoch;
      verdict.round = entry.round;
      verdict.base = entry.base;
    }
    const std::string word = line.word();
    if (word == "nonfinite") {
      verdict.status = VerdictStatus::kNonFinite;
    } else {
      verdict.accepted_count = std::stoi(word);
      verdict.next = TokenId(static_cast<int32_t>(line.number()));
      if (line.settings.contains("path")) verdict.path = numbers(line.settings["path"]);
    }
    result.verdicts.push_back(verdict);
  }
  return MessageReceived{peer(from), result};
}

Event Transcript::parse_resync(Line& line) {
  const PeerId from = peer(line.word());
  const SequenceId sequence(static_cast<uint64_t>(line.number()));
  const auto length = static_cast<int32_t>(line.setting("length", 0));
  const uint64_t hash =
      line.is("hash", "bad") ? 1 : prefix_hash(std::span(ids_[sequence]).first(static_cast<size_t>(length)));
  return MessageReceived{
      from, Resync{.sequence = sequence, .epoch = {}, .committed = Position(length), .hash = hash}};
}

// ---- actions --------------------------------------------------------------------------------------------

std::string Transcript::show(const Action& action) {
  if (const auto* send = std::get_if<Send>(&action)) {
    last_sent_.insert_or_assign(send->to, send->message);
    return show_message(name_of(send->to), send->message);
  }
  if (const auto* emit = std::get_if<Emit>(&action)) {
    auto& ids = ids_[emit->request];
    ids.insert(ids.end(), emit->ids.begin(), emit->ids.end());
    return fmt::format("emit {} {} \"{}\"", emit->request.value(), list(emit->ids), emit->text);
  }
  if (const auto* finish = std::get_if<Finish>(&action))
    return fmt::format("finish {} {}{}{}", finish->request.value(), finish_reason_name(finish->reason),
                       finish->error.ok() ? "" : ": ", finish->error.message());
  if (const auto* lost = std::get_if<TargetLost>(&action))
    return fmt::format("group {} lost, {} {}: {}", lost->group, lost->handed_over,
                       lost->wait.count() > 0 ? "wait" : "handed over", lost->why.message());
  if (const auto* change = std::get_if<MemberChange>(&action);
      change && change->kind == MemberChange::Kind::kRests)
    return fmt::format("group {} rests: {}", *change->group, change->about);
  return {};  // RoundDone is for traces
}

std::string Transcript::show_message(const std::string& peer, const Message& message) {
  if (const auto* welcome = std::get_if<Welcome>(&message))
    return welcome->accepted ? fmt::format("welcome {}", peer)
                             : fmt::format("refuse {}: {}", peer, welcome->reason);
  if (const auto* open = std::get_if<Open>(&message))
    return fmt::format("open {} {} {} prompt={}", peer, open->sequence.value(), list(open->ids),
                       open->prompt_length);
  if (const auto* close = std::get_if<Close>(&message))
    return fmt::format("close {} {}", peer, close->sequence.value());
  if (const auto* propose = std::get_if<Propose>(&message)) {
    proposed_[propose->sequence] = *propose;
    return fmt::format("propose {} {} epoch={} round={} base={} committed={} gamma={}{}", peer,
                       propose->sequence.value(), propose->epoch.value(), propose->round.value(),
                       propose->base.value(), list(propose->committed), propose->gamma,
                       propose->tree.is_chain() ? "" : " tree=" + list(propose->tree.widths));
  }
  if (const auto* plan = std::get_if<StepPlan>(&message)) return show_plan(peer, *plan);
  return fmt::format("{} {}", kMessageNames[message.index()], peer);
}

std::string Transcript::show_plan(const std::string& peer, const StepPlan& plan) {
  plans_[peer] = plan;
  std::string text = fmt::format("plan {}{}", plan.step, peer == "target" ? "" : " to " + peer);
  for (const BlockExport& blocks : plan.exports)
    text += fmt::format(" export({} transfer={} tokens={}+{} inbox={})", blocks.sequence.value(),
                        blocks.transfer, blocks.first.value(), blocks.count, blocks.inbox);
  for (const PrefixChange& change : plan.prefixes)
    text += change.kind == PrefixChange::Kind::kKeep
                ? fmt::format(" keep(prefix {}: {} tokens of {})", change.prefix.value(), change.length,
                              change.sequence.value())
                : fmt::format(" cut(prefix {}: {} tokens)", change.prefix.value(), change.length);
  for (SequenceId id : plan.closes) text += fmt::format(" close({})", id.value());
  for (const Open& open : plan.opens)
    text += fmt::format(" open({} {}{})", open.sequence.value(), list(open.ids),
                        open.prefix_length == 0
                            ? ""
                            : fmt::format(" prefix={} length={}", open.prefix.value(), open.prefix_length));
  for (const PlanEntry& entry : plan.entries) {
    text += fmt::format(" entry({} epoch={} base={} feed={}+{}", entry.sequence.value(), entry.epoch.value(),
                        entry.base.value(), entry.first_input.value(), entry.input_count);
    if (entry.first_input + entry.input_count == entry.base)
      text += fmt::format(" round={} draft={}{}", entry.round.value(), list(entry.draft),
                          entry.parents.empty() ? "" : " parents=" + list(entry.parents));
    text += ")";
  }
  for (const BlockImport& blocks : plan.imports)
    text += fmt::format(" import({} transfer={} tokens={}+{})", blocks.sequence.value(), blocks.transfer,
                        blocks.first.value(), blocks.count);
  return text;
}

}  // namespace outrider
