#include "cluster/slice_endpoints.h"
#include "base/log_line.h"

#include <algorithm>
#include <array>
#include <random>
#include <span>
#include <vector>

namespace outrider {
namespace {

using Text = std::array<char, 256>;  // ends with zeros

Text text_of(const std::string& from) {
  Text text{};
  std::copy_n(from.begin(), std::min(from.size(), text.size() - 1), text.begin());
  return text;
}

uint64_t random_number() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// Made by rank 0, known to all.
struct Secrets {
  uint64_t cluster = 0;
  Text server_public{}, server_secret{}, worker_public{}, worker_secret{};
};

Secrets agree_on_secrets(Collectives& group, bool encrypted) {
  Secrets secrets;
  if (group.rank() == 0) {
    secrets.cluster = random_number();
    const auto server = make_curve_key_pair(), worker = make_curve_key_pair();
    if (encrypted && server.ok() && worker.ok()) {
      secrets.server_public = text_of(server->public_key);
      secrets.server_secret = text_of(server->secret_key);
      secrets.worker_public = text_of(worker->public_key);
      secrets.worker_secret = text_of(worker->secret_key);
    }
  }
  group.broadcast(std::as_writable_bytes(std::span(&secrets, 1)), 0);
  return secrets;
}

Result<std::unique_ptr<Transport>> bind(const SliceEndpointOptions& options, const Secrets& secrets) {
  RETURN_IF_ERROR(options.possible);
  ZmqOptions zmq;
  zmq.cluster = secrets.cluster;
  zmq.max_message_bytes = options.max_message_bytes;
  zmq.high_water_mark = options.high_water_mark;
  zmq.allow_remote = options.allow_remote;
  if (secrets.server_public[0] != 0) {
    CurveKeys keys;
    keys.own = {secrets.server_public.data(), secrets.server_secret.data()};
    keys.allowed = {secrets.worker_public.data()};
    zmq.curve = std::move(keys);
  }
  const std::string endpoint = options.host.empty() ? fmt::format("ipc://@outrider-slices-{:016x}{:016x}",
                                                                  random_number(), random_number())
                                                    : fmt::format("tcp://{}:*", options.host);
  return make_zmq_server(endpoint, zmq);
}

std::vector<Text> gather(Collectives& group, const Text& mine) {
  std::vector<Text> all(static_cast<size_t>(group.size()));
  group.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

}  // namespace

OpenSliceEndpoint open_slice_endpoints(Collectives& group, const SliceEndpointOptions& options) {
  const Secrets secrets = agree_on_secrets(group, options.encrypted);
  OpenSliceEndpoint endpoint;
  Text mine{};
  if (auto bound = bind(options, secrets); bound.ok()) {
    endpoint.own = std::move(bound).value();
    mine = text_of(endpoint.own->endpoint());
  } else {
    log_line(LogLevel::kWarning, "no {}: {}", options.purpose, bound.status().message());
  }
  const std::vector<Text> all = gather(group, mine), gpus = gather(group, text_of(options.gpu));
  if (std::any_of(all.begin(), all.end(), [](const Text& text) { return text[0] == 0; })) return {};
  for (size_t r = 0; r < all.size(); ++r)
    endpoint.all.of_rank.push_back({.endpoint = all[r].data(), .gpu = gpus[r].data()});
  endpoint.all.cluster = secrets.cluster;
  endpoint.all.server_key = secrets.server_public.data();
  endpoint.all.public_key = secrets.worker_public.data();
  endpoint.all.secret_key = secrets.worker_secret.data();
  return endpoint;
}

}  // namespace outrider
