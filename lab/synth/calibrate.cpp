#include "lab/synth/calibrate.h"

#include <algorithm>
#include <cmath>

namespace outrider {
namespace {

constexpr int kMaxSteps = 9;
constexpr double kCloseEnough = 0.004;  // below what the number of positions can tell
constexpr double kTolerance = 0.03;     // beyond it the shape cannot do what was asked

class Calibrator {
 public:
  Calibrator(const SynthModel& target, const SynthModel& draft, const Calibration& options)
      : target_(target), draft_(draft), options_(options), single_(make_single_collectives()) {}

  Result<Calibrated> run() {
    RETURN_IF_ERROR(reach_entropy());
    RETURN_IF_ERROR(reach_acceptance());
    RETURN_IF_ERROR(measure());
    return result_;
  }

 private:
  Result<std::unique_ptr<Model>> load(const SynthModel& model) {
    if (options_.interrupted()) return unavailable("interrupted");
    ModelOptions model_options = probe_model_options(options_.probe, options_.threads);
    model_options.device = options_.device;
    return Model::load(model.directory, model_options, *single_);
  }

  Status set_final_gain(double gain) {
    result_.final_gain = gain;
    RETURN_IF_ERROR(target_.weights->set_constant(kSynthFinalNorm, static_cast<float>(gain)));
    return draft_.weights->set_constant(kSynthFinalNorm, static_cast<float>(gain));
  }

  Status set_upper_gain(double gain) {
    for (int64_t layer = options_.draft_layers; layer < options_.layers; ++layer)
      for (const std::string& name : synth_layer_gains(layer))
        RETURN_IF_ERROR(target_.weights->set_constant(name, static_cast<float>(gain)));
    return {};
  }

  // Draft and target share head and final norm and their hidden states are alike, so the draft, which is
  // small, finds the gain. Independent normal logits of deviation d lose d^2 / 2 nats against a uniform
  // distribution; that is where the search begins.
  Status reach_entropy() {
    const double temperature = options_.probe.temperature > 0 ? options_.probe.temperature : 1;
    ASSIGN_OR_RETURN(auto model, load(draft_));
    const double uniform = std::log(static_cast<double>(model->config().vocab_size));
    double gain = temperature * std::sqrt(2 * std::max(0.1, uniform - options_.entropy));
    for (int round = 0; round < 2; ++round) {  // the second with text of about the right entropy
      RETURN_IF_ERROR(set_final_gain(gain));
      ASSIGN_OR_RETURN(model, load(draft_));
      ASSIGN_OR_RETURN(text_, sample_text(*model, options_.probe));
      ASSIGN_OR_RETURN(const double factor,
                       factor_for_entropy(*model, text_, options_.entropy, options_.probe));
      gain *= factor;
    }
    RETURN_IF_ERROR(set_final_gain(gain));
    ASSIGN_OR_RETURN(model, load(draft_));
    ASSIGN_OR_RETURN(text_, sample_text(*model, options_.probe));
    ASSIGN_OR_RETURN(draft_choices_, choose_along(*model, text_, options_.probe));
    options_.tell(fmt::format("entropy {:.2f} nats with final gain {:.3f}", draft_choices_.entropy, gain));
    return {};
  }

  Result<double> acceptance_at(double gain) {
    RETURN_IF_ERROR(set_upper_gain(gain));
    ASSIGN_OR_RETURN(const auto model, load(target_));
    ASSIGN_OR_RETURN(const ProbeChoices choices, choose_along(*model, text_, options_.probe));
    const double acceptance = agreement(choices, draft_choices_);
    options_.tell(fmt::format("acceptance {:.3f} with upper gain {:.4f}", acceptance, gain));
    return acceptance;
  }

  // Secant steps on ln(1 - acceptance) against ln(gain), which is nearly a line: what a layer adds grows as
  // the square of its gain while that is small, and rejection with what is added.
  Status reach_acceptance() {
    const auto smallest = 0.5 / static_cast<double>(draft_choices_.tokens.size());
    const double wanted = std::log(1 - options_.acceptance);
    double x = std::log(0.3), last_x = 0, last_y = 0, slope = 1.5, best_error = 1;
    for (int step = 0; step < kMaxSteps && best_error > kCloseEnough; ++step) {
      ASSIGN_OR_RETURN(const double acceptance, acceptance_at(std::exp(x)));
      const double y = std::log(std::max(1 - acceptance, smallest));
      const double error = std::abs(acceptance - options_.acceptance);
      if (error < best_error) {
        best_error = error;
        result_.upper_gain = std::exp(x);
      }
      if (step > 0 && x != last_x) slope = std::clamp((y - last_y) / (x - last_x), 0.25, 4.0);
      last_x = x;
      last_y = y;
      x = std::clamp(x + (wanted - y) / slope, std::log(1e-3), std::log(64.0));
    }
    if (best_error > kTolerance)
      return invalid_argument(fmt::format(
          "--acceptance {}: the nearest this shape comes is off by {:.2f}; choose another, or more layers",
          options_.acceptance, best_error));
    return set_upper_gain(result_.upper_gain);
  }

  Status measure() {
    ASSIGN_OR_RETURN(const auto target, load(target_));
    ASSIGN_OR_RETURN(text_, sample_text(*target, options_.probe));
    ASSIGN_OR_RETURN(const ProbeChoices choices, choose_along(*target, text_, options_.probe));
    ASSIGN_OR_RETURN(const auto draft, load(draft_));
    ASSIGN_OR_RETURN(draft_choices_, choose_along(*draft, text_, options_.probe));
    result_.acceptance = agreement(choices, draft_choices_);
    result_.entropy = choices.entropy;
    return {};
  }

  const SynthModel target_, draft_;
  const Calibration& options_;
  const std::unique_ptr<Collectives> single_;
  ProbeText text_;
  ProbeChoices draft_choices_;
  Calibrated result_;
};

}  // namespace

Result<Calibrated> calibrate(const SynthModel& target, const SynthModel& draft, const Calibration& options) {
  return Calibrator(target, draft, options).run();
}

}  // namespace outrider
