// Shared socket handling of both ends of a ZeroMQ connection: bounded options, sends that never block,
// receives with a deadline. Internal to comm.
#pragma once

#include <array>
#include <chrono>
#include <span>
#include <string_view>

#include <zmq.hpp>

#include "comm/transport.h"

namespace outrider {

// kInvalidArgument, kUnsupported: the error in these options, worded for the user who set them.
Status check_zmq_options(const ZmqOptions& options, bool is_server);
// libzmq accepts any number and uses the last 16 bits of a larger one. `binds`: 0 and * mean any free port.
Status check_port(const std::string& endpoint, bool binds);
// `safe`: only clients with a key are admitted, so other machines may reach it.
Status check_bind_endpoint(const std::string& endpoint, bool safe);

// The address to bind or connect to: "localhost" and other names in tcp endpoints become addresses, because
// libzmq takes them for interfaces, or resolves them without an error. `binds`: an interface's name stays. An
// IPv6 address has brackets. kUnavailable: the name is unknown now.
Result<std::string> resolve_endpoint(const std::string& endpoint, bool binds);

// Sets every option whose default is unbounded, infinite or surprising, for both ends.
void set_socket_options(zmq::socket_t& socket, const ZmqOptions& options);

// Milliseconds for zmq_poll, rounded up; bounded so that "no deadline" fits.
std::chrono::milliseconds until(Clock::time_point deadline);
// False after a signal, or if nothing came.
bool poll_in(zmq::socket_ref socket, std::chrono::milliseconds timeout);
// For a socket that was just found empty. Returns at the deadline, when a message may have come, when an
// `fds` entry is readable (-1: none), or after a signal.
void wait_in(zmq::socket_ref socket, Clock::time_point deadline, std::array<int, 2> fds);
bool can_be_read(int fd);

// False if no part is available.
bool receive_now(zmq::socket_t& socket, zmq::message_t& part);
// True if the socket accepted the whole message. `route`: the receiver, for a ROUTER; empty on other sockets.
bool send_now(zmq::socket_t& socket, std::string_view route, std::span<const std::byte> frame);

// A number for one life of an end.
Generation random_generation();

inline std::span<const std::byte> bytes_of(const zmq::message_t& part) {
  return {part.data<std::byte>(), part.size()};
}

}  // namespace outrider
