// Describes a prepared run for readers of requests and writers of reports.
#pragma once

#include <memory>

#include "requests/finished_results.h"
#include "requests/report.h"
#include "requests/request_builder.h"
#include "start/prepare.h"
#include "start/settings.h"

namespace outrider {

// The prepared target as readers of requests see it; `prepared` and `chat` must outlive it.
RequestModel request_model(const ModelSettings& models, const SpeculationSettings& speculation,
                           const Preparation& prepared, const Result<std::unique_ptr<ChatTemplate>>& chat);
// For RequestModel::grammars, of --grammar-library. `prepared` outlives it.
Result<std::unique_ptr<GrammarCompiler>> make_grammars(const Preparation& prepared,
                                                       const std::vector<std::string>& libraries);
// Reads all weights of the target. An error: its files cannot be read.
Result<RequestFingerprints> request_fingerprints(const ModelSettings& models,
                                                 const SpeculationSettings& speculation);
RunDescription describe_run(const ClusterSettings& settings, const Preparation& prepared);

}  // namespace outrider
