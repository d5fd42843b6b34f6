#include "comm/zmq_room.h"

#include "base/program/descriptors.h"
#include "base/threads.h"

namespace outrider {
namespace {

constexpr int kThreads = 4;  // libzmq's own two, the doorkeeper's and the watch's
// One end opens 8 to 15 with libzmq 4.3.4, its first connection among them. The rest is for what other
// threads open meanwhile.
constexpr long kDescriptors = 20;

}  // namespace

Status check_room_for_zmq() {
  const Descriptors descriptors = count_descriptors();
  if (descriptors.free < kDescriptors)
    return unavailable(
        fmt::format("too few file descriptors: {} of {} are free and a connection between roles needs {}; "
                    "raise the limit (ulimit -n)",
                    descriptors.free, descriptors.limit, kDescriptors));
  if (const std::string why = why_no_threads(kThreads); !why.empty()) return unavailable(why);
  return {};
}

}  // namespace outrider
