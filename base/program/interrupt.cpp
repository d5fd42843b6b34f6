#include "base/program/interrupt.h"

#include <atomic>
#include <csignal>
#include <cstdlib>

#include "base/program/exit_codes.h"
#include "base/program/temporary_file.h"

namespace outrider {
namespace {

std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void note_signal(int signal) {
  noted = signal;
  remove_temporary_file_on_signals();
}

extern "C" void leave(int) {
  remove_temporary_file();
  std::_Exit(kExitOk);
}

}  // namespace

void note_first_signal() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    if (std::signal(signal, note_signal) == SIG_IGN) std::signal(signal, SIG_IGN);  // nohup
}

void leave_at_first_signal() {
  for (const int signal : {SIGINT, SIGTERM})
    if (std::signal(signal, leave) == SIG_IGN) std::signal(signal, SIG_IGN);  // nohup
}

int noted_signal() { return noted; }

void end_as_noted() {
  if (noted != 0) std::raise(noted);
}

}  // namespace outrider
