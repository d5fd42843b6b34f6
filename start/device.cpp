#include "start/device.h"

#include "base/parse_number.h"
#include "model/cuda_backend.h"

namespace outrider {

Result<DeviceChoice> parse_device(const std::string& text) {
  if (text == "cpu" || text == "auto") return DeviceChoice{};
  if (text == "cuda") return DeviceChoice{.kind = Device::Kind::kCuda};
  constexpr std::string_view kPrefix = "cuda:";
  if (text.starts_with(kPrefix)) {
    const auto index = parse_number<int>(std::string_view(text).substr(kPrefix.size()));
    if (index && *index >= 0) return DeviceChoice{.kind = Device::Kind::kCuda, .index = *index};
  }
  return invalid_argument(fmt::format("--device {}: choose cpu, cuda, cuda:N or auto", text));
}

Result<DeviceChoice> check_device(const std::string& text) {
  ASSIGN_OR_RETURN(const DeviceChoice choice, parse_device(text));
  if (choice.kind == Device::Kind::kCpu) return choice;
  const auto count = cuda_device_count();
  if (!count.ok()) return invalid_argument("--device " + text + ": " + count.status().message());
  if (choice.index && *choice.index >= *count)
    return invalid_argument(fmt::format("--device {}: this machine has {} CUDA device{}, numbered from 0",
                                        text, *count, *count == 1 ? "" : "s"));
  return choice;
}

int gpus_for(const ModelSettings& models) {
  const auto choice = parse_device(models.device);
  if (!choice.ok() || choice->kind == Device::Kind::kCpu || choice->index) return 0;
  const auto count = cuda_device_count();
  return count.ok() ? *count : 0;
}

Device device_of_worker(const ModelSettings& models, int worker) {
  const DeviceChoice choice = parse_device(models.device).value();
  if (choice.kind == Device::Kind::kCpu) return {};
  return {.kind = choice.kind, .index = choice.index ? *choice.index : worker % gpus_for(models)};
}

}  // namespace outrider
