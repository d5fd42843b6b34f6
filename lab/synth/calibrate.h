// Finds the gains that give a synthesised pair its entropy and its acceptance, on the engine's own forward
// pass.
#pragma once

#include <filesystem>
#include <functional>

#include "lab/synth/probe.h"
#include "lab/synth/weight_file.h"

namespace outrider {

struct Calibration {
  double acceptance = 0.8;
  double entropy = 2.5;  // nats
  int64_t layers = 0;    // of the target
  int64_t draft_layers = 0;
  Device device;
  int threads = 1;  // on the CPU
  ProbeOptions probe;
  std::function<void(const std::string&)> tell;  // one line per step, for people
  std::function<bool()> interrupted;
};

// A model directory whose weights may still be changed.
struct SynthModel {
  std::filesystem::path directory;
  SynthWeightFile* weights = nullptr;
};

struct Calibrated {
  double final_gain = 1;  // of the last norm of both: sets the entropy
  double upper_gain = 1;  // of the norms of the target's layers above the draft: sets the acceptance
  // Measured at last, along text sampled from the target itself.
  double acceptance = 0;
  double entropy = 0;
};

// Writes the gains into both files. kInvalidArgument: this shape cannot reach them.
Result<Calibrated> calibrate(const SynthModel& target, const SynthModel& draft, const Calibration& options);

}  // namespace outrider
