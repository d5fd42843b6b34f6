// What both ends of a ZeroMQ connection do with their socket: bounded options, sends that never block,
// receives with a deadline. Internal to comm.
#pragma once

#include <array>
#include <chrono>
#include <span>
#include <string_view>

#include <zmq.hpp>

#include "comm/transport.h"

namespace outrider {

// kInvalidArgument, kUnsupported: what is wrong with these options, in words for who set them.
Status check_zmq_options(const ZmqOptions& options, bool is_server);
// libzmq takes any number, and of too large a one its last 16 bits. `binds`: 0 and * are any free port.
Status check_port(const std::string& endpoint, bool binds);
// `safe`: strangers are kept out, so other machines may reach it.
Status check_bind_endpoint(const std::string& endpoint, bool safe);

// Where to bind or connect: "localhost" and other names of tcp endpoints become addresses, because libzmq
// takes them for interfaces, or looks for them in silence. `binds`: an interface's name stays. An IPv6
// address has brackets. kUnavailable: the name is not known now.
Result<std::string> resolve_endpoint(const std::string& endpoint, bool binds);

// Every option whose default is unbounded, infinite or surprising, for both ends.
void set_socket_options(zmq::socket_t& socket, const ZmqOptions& options);

// Milliseconds for zmq_poll, rounded up; bounded so that "no deadline" fits.
std::chrono::milliseconds until(Clock::time_point deadline);
// False when interrupted by a signal or nothing came.
bool poll_in(zmq::socket_ref socket, std::chrono::milliseconds timeout);
// For a socket that was just found empty. Returns at the deadline, when something may have come, when one of
// `fds` can be read (-1: none), or when interrupted by a signal.
void wait_in(zmq::socket_ref socket, Clock::time_point deadline, std::array<int, 2> fds);
bool can_be_read(int fd);

// False when nothing is there.
bool receive_now(zmq::socket_t& socket, zmq::message_t& part);
// True when the socket took all of it. `route`: whom a ROUTER sends to; empty on other sockets.
bool send_now(zmq::socket_t& socket, std::string_view route, std::span<const std::byte> frame);

// One life of an end.
Generation random_generation();

inline std::span<const std::byte> bytes_of(const zmq::message_t& part) {
  return {part.data<std::byte>(), part.size()};
}

}  // namespace outrider
