// A wake-up that any thread may send to one thread that waits in poll().
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"

namespace outrider {

class Bell {
 public:
  Bell() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    CHECK(fd_ >= 0, "eventfd: {}", std::strerror(errno));
  }
  ~Bell() { close(fd_); }
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  int fd() const { return fd_; }
  void ring() { (void)eventfd_write(fd_, 1); }
  // Whether it was rung since the last call.
  bool heard() {
    eventfd_t count = 0;
    return eventfd_read(fd_, &count) == 0;
  }

 private:
  const int fd_;
};

}  // namespace outrider
