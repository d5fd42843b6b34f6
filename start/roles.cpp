#include "start/roles.h"

#include <random>

namespace outrider {

Generation new_generation() {
  std::random_device random;
  return Generation(static_cast<uint64_t>(random()) << 32 | random());
}

uint64_t this_process() {
  static const uint64_t id = new_generation().value();
  return id;
}

Status report_failure(Transport* transport, Status status) {
  if (!status.ok() && transport) (void)transport->send(kCoordinatorPeer, Failure{status.message()});
  return status;
}

}  // namespace outrider
