#include "start/listener.h"

#include <algorithm>
#include <filesystem>

#include "base/printable.h"
#include "cluster/host_address.h"

namespace outrider {
namespace {

// Empty without --curve-secret-key. `flag`: that of the file with the admitted keys.
Result<std::optional<CurveKeys>> listener_keys(const PoolSettings& pool, const char* flag,
                                               const std::string& allowed_keys) {
  if (pool.curve_secret_key.empty()) return std::optional<CurveKeys>();
  auto own = read_curve_keys(pool.curve_secret_key);
  if (!own.ok()) return own.status().in("--curve-secret-key");
  auto allowed = read_public_keys(allowed_keys);
  if (!allowed.ok()) return allowed.status().in(flag);
  CurveKeys keys;
  keys.own = std::move(own).value();
  // A regular file is read again for every worker that connects; a pipe is read once.
  std::error_code unknown;
  if (std::filesystem::is_regular_file(allowed_keys, unknown))
    keys.allowed_file = allowed_keys;
  else
    keys.allowed = std::move(allowed).value();
  return std::optional(std::move(keys));
}

// Reads keys from their files, and sets limits on the bytes of a worker.
Result<ZmqOptions> listener_options(const ClusterSettings& settings, const Preparation& prepared) {
  const QFormat& q = *settings.speculation.q_format;
  ZmqOptions zmq;
  // Room for the longest Open, and for a Draft with a row of q for each token.
  constexpr int64_t kStateHeader = 16;
  const int64_t hidden_state_bytes =
      q.kind == QKind::kHidden ? prepared.draft->hidden_size + kStateHeader : 0;
  const int64_t row_bytes =
      q.kind == QKind::kDense
          ? prepared.target.vocab_size * int64_t{sizeof(uint32_t)}
          : std::max<int64_t>(q.row_bytes(prepared.target.vocab_size), hidden_state_bytes);
  const int64_t q_bytes = kMaxSpeculativeTokens * row_bytes;
  zmq.max_message_bytes = (int64_t{1} << 20) + prepared.max_model_len * int64_t{sizeof(TokenId)} + q_bytes;
  // One worker at a time drafts for a sequence, so this allows several drafts of each.
  constexpr int64_t kDraftBytes = int64_t{16} << 10;  // without its q
  zmq.outside = OutsideLimits{.member_bytes = zmq.max_message_bytes +
                                              4 * settings.models.sequences() * (q_bytes + kDraftBytes)};
  ASSIGN_OR_RETURN(zmq.curve, listener_keys(settings.pool, "--allowed-keys", settings.pool.allowed_keys));
  return zmq;
}

std::string key_flags(const PoolSettings& pool) {
  return pool.curve_secret_key.empty()
             ? ""
             : " --curve-secret-key FILE --server-key " + pool.curve_secret_key + ".pub";
}

// The address for others: a socket that is bound to every address has no single one.
std::string for_others(const std::string& endpoint) {
  for (const std::string_view any : {"tcp://0.0.0.0:", "tcp://[::]:"}) {
    if (!endpoint.starts_with(any)) continue;
    const auto addresses = host_addresses();
    const std::string host = addresses.empty() ? "THIS_HOST" : to_string(addresses.front());
    return fmt::format("tcp://{}:{}", host, endpoint.substr(any.size()));
  }
  return endpoint;
}

void tell_where_targets_join(const ClusterSettings& settings, const std::string& endpoint) {
  tell_error(fmt::format("target groups may join: outrider target-group --connect {}{} --model {}",
                         for_others(endpoint), key_flags(settings.pool), settings.models.model));
}

void tell_where_to_join(const PoolSettings& pool, const std::string& endpoint) {
  tell_error(fmt::format("draft workers may join: outrider draft-worker --connect {}{} --draft-model DIR",
                         for_others(endpoint), key_flags(pool)));
}

template <class Inside>
Result<std::unique_ptr<Transport>> open(const ClusterSettings& settings, const Preparation& prepared,
                                        Inside&& inside) {
  ASSIGN_OR_RETURN(const ZmqOptions zmq, listener_options(settings, prepared));
  auto end = make_joined_end(std::forward<Inside>(inside), settings.pool.listen, zmq);
  if (!end.ok()) return end.status().in("--listen");
  tell_where_to_join(settings.pool, end.value()->endpoint());
  return end;
}

// The targets' endpoint comes first, since target groups are a part of the job.
Result<std::unique_ptr<Transport>> open_to_targets(const ClusterSettings& settings,
                                                   const Preparation& prepared, InprocHub& inside) {
  const PoolSettings& pool = settings.pool;
  std::vector<ZoneEndpoint> endpoints{
      {.zone = TrustZone::kTargets, .endpoint = pool.listen_targets, .zmq = {}}};
  ASSIGN_OR_RETURN(endpoints[0].zmq.curve,
                   listener_keys(pool, "--allowed-target-keys", pool.allowed_target_keys));
  if (!pool.listen.empty()) {
    ASSIGN_OR_RETURN(const ZmqOptions zmq, listener_options(settings, prepared));
    endpoints.push_back({.zone = TrustZone::kOutside, .endpoint = pool.listen, .zmq = zmq});
  }
  auto end = make_joined_end(inside, endpoints);
  if (!end.ok())
    return end.status().in(pool.listen.empty() ? "--listen-targets" : "--listen-targets, --listen");
  tell_where_targets_join(settings, endpoints[0].endpoint);
  if (!pool.listen.empty()) tell_where_to_join(pool, endpoints[1].endpoint);
  return end;
}

}  // namespace

Result<std::unique_ptr<Transport>> open_to_others(const ClusterSettings& settings,
                                                  const Preparation& prepared, InprocHub& inside) {
  return settings.targets_join() ? open_to_targets(settings, prepared, inside)
                                 : open(settings, prepared, inside);
}

Result<std::unique_ptr<Transport>> open_to_others(const ClusterSettings& settings,
                                                  const Preparation& prepared,
                                                  std::unique_ptr<Transport> inside) {
  return open(settings, prepared, std::move(inside));
}

}  // namespace outrider
