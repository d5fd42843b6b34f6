#include "launch/commands/shared_worker.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <sstream>

#include "base/program/interrupt.h"
#include "base/threads.h"
#include "comm/endpoint.h"

namespace outrider {
namespace {

// OUTRIDER_CONNECT has the coordinators as words of one text.
std::vector<std::string> words_of(const std::vector<std::string>& texts) {
  std::vector<std::string> words;
  for (const std::string& text : texts) {
    std::istringstream from(text);
    if (text.empty()) words.emplace_back();
    for (std::string word; from >> word;) words.push_back(word);
  }
  return words;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream from(text);
  for (std::string part; std::getline(from, part, ',');) parts.push_back(part);
  if (text.empty() || text.back() == ',') parts.emplace_back();
  return parts;
}

std::vector<double> weights_of(const DraftWorkerSettings& settings) {
  return settings.share_weights.empty() ? std::vector<double>(settings.coordinators.size(), 1)
                                        : settings.share_weights;
}

Status check_weights(const DraftWorkerSettings& settings) {
  const auto& weights = settings.share_weights;
  if (weights.empty()) return {};
  if (!settings.share) return invalid_argument("--share-weights without --share: one coordinator has all");
  if (weights.size() != settings.coordinators.size())
    return invalid_argument(fmt::format("--share-weights {}: {} numbers for {} coordinators (--connect)",
                                        fmt::join(weights, ","), weights.size(),
                                        settings.coordinators.size()));
  for (const double weight : weights)
    if (!(weight > 0 && weight <= 1e6))
      return invalid_argument(
          fmt::format("--share-weights {}: {} is no share; use numbers above 0, up to a million",
                      fmt::join(weights, ","), weight));
  return {};
}

Status check_shared(const DraftWorkerSettings& settings) {
  const auto& all = settings.coordinators;
  if (all.size() == 1 && all[0].find(',') != std::string::npos)
    return invalid_argument(
        fmt::format("--share --connect {}: after a comma stands a standby of the same coordinator. Give each "
                    "coordinator a "
                    "--connect of its own: --share --connect {}",
                    all[0], fmt::join(split(all[0]), " --connect ")));
  if (settings.run.models.head())
    return unsupported(fmt::format(
        "--share with --drafter {}: a head reads the hidden states of one target; start a worker for each "
        "coordinator",
        settings.run.models.drafter));
  if (settings.run.models.draft_tensor_parallel_size > 1)
    return unsupported(
        "--share with --draft-tensor-parallel-size: a draft model over several ranks serves one coordinator; "
        "drop one of them");
  if (static_cast<size_t>(settings.run.models.max_num_seqs) < all.size())
    return invalid_argument(
        fmt::format("--max-num-seqs {}: {} coordinators share these sequences, and each needs one at least",
                    settings.run.models.max_num_seqs, all.size()));
  return {};
}

struct Session {
  DraftWorkerSettings settings;
  std::unique_ptr<JoinedWorker> worker;
  Status end;
};

class SharedWorker {
 public:
  SharedWorker(const DraftWorkerSettings& settings, const Preparation& prepared, const ZmqOptions& zmq,
               const WorkerModels& models)
      : parts_(parts_by_weight(settings.run.models.max_num_seqs, weights_of(settings))),
        turns_(weights_of(settings), divided(models)),
        sessions_(parts_.size()) {
    for (size_t i = 0; i < sessions_.size(); ++i) {
      Session& session = sessions_[i];
      session.settings = settings;
      session.settings.connect = split(settings.coordinators[i]);
      session.settings.run.models.max_num_seqs = static_cast<int>(parts_[i]);
      session.worker =
          std::make_unique<JoinedWorker>(session.settings, prepared, zmq, SharedSession{&turns_, i, &models});
    }
  }

  Status run() {
    const auto begun = Clock::now();
    run_on_threads(1 + static_cast<int>(sessions_.size()), [&](int thread) {
      if (thread == 0) return turns_.run();
      set_thread_role("draft");
      live(sessions_[static_cast<size_t>(thread) - 1]);
    });
    report(Clock::now() - begun);
    return end();
  }

 private:
  // The KV cache with a part for each session, as large as its part of the sequences.
  KvCache* divided(const WorkerModels& models) const {
    if (!models.draft.model) return nullptr;
    KvCache& kv = models.draft.model->kv();
    kv.divide(parts_by_weight(kv.num_blocks(), {parts_.begin(), parts_.end()}));
    return &kv;
  }

  void live(Session& session) {
    try {
      session.end = session.worker->run();
    } catch (const std::exception& error) {
      session.end = unavailable(what_failed(error));
    }
    turns_.leave();
    if (!session.end.ok())
      session.worker->messages().tell(LogLevel::kWarning, is_final(session.end) ? "refusal" : "loss",
                                      session.end.message() + "; this worker drafts for it no more");
  }

  void report(Clock::duration time) const {
    using Seconds = std::chrono::duration<double>;
    for (size_t i = 0; i < sessions_.size(); ++i) {
      const JoinedWorker& worker = *sessions_[i].worker;
      const Seconds used = turns_.used(i);
      worker.messages().tell(fmt::format(
          "{} tokens in {} drafts, {:.1f} s of computing ({:.0f} % of {:.0f} s)", worker.drafted_tokens(),
          worker.drafts(), used.count(), 100 * used / Seconds(time), Seconds(time).count()));
    }
  }

  Status end() const {
    if (noted_signal() != 0) return {};
    const Session* worst = nullptr;
    for (const Session& session : sessions_)
      if (!session.end.ok() && (!worst || (is_final(session.end) && !is_final(worst->end)))) worst = &session;
    if (!worst) return {};
    return worst->end.in(fmt::format("{}", fmt::join(worst->settings.connect, ",")));
  }

  const std::vector<int64_t> parts_;  // of the sequences
  DraftTurns turns_;
  std::vector<Session> sessions_;
};

}  // namespace

Status check_sharing(DraftWorkerSettings& settings) {
  settings.coordinators = words_of(settings.coordinators);
  const auto& all = settings.coordinators;
  if (all.empty())
    return invalid_argument(
        "--connect is missing: name the endpoint that `outrider generate --listen` prints");
  if (all.size() > 1 && !settings.share)
    return invalid_argument(fmt::format(
        "--connect {}: one worker for several coordinators needs --share. If the second address is a standby "
        "of the first coordinator, write --connect {}",
        fmt::join(all, " --connect "), fmt::join(all, ",")));
  std::set<std::string> seen;
  for (const std::string& one : all) {
    for (const std::string& endpoint : split(one)) {
      if (const Status status = check_endpoint(endpoint); !status.ok()) return status.in("--connect");
      if (!seen.insert(endpoint).second)
        return invalid_argument(fmt::format("--connect: {} is there twice", endpoint));
    }
  }
  RETURN_IF_ERROR(check_weights(settings));
  if (settings.share) {
    RETURN_IF_ERROR(check_shared(settings));
    // A chunk of a prompt is one turn, and the others' drafts wait for it.
    constexpr int64_t kPrefillRows = 64;
    settings.run.draft_prefill_rows = std::max(kPrefillRows, int64_t{settings.run.models.max_num_seqs});
    return {};
  }
  settings.connect = split(all[0]);
  return {};
}

Status serve_shared(const DraftWorkerSettings& settings, const Preparation& prepared, const ZmqOptions& zmq,
                    const LoadWorkerModels& load) {
  ASSIGN_OR_RETURN(const WorkerModels models, load());
  SharedWorker worker(settings, prepared, zmq, models);
  note_first_signal();
  return worker.run();
}

}  // namespace outrider
