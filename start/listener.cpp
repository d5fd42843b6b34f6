#include "start/listener.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

namespace outrider {
namespace {

// None without --curve-secret-key.
Result<std::optional<CurveKeys>> listener_keys(const PoolSettings& pool) {
  if (pool.curve_secret_key.empty()) return std::optional<CurveKeys>();
  auto own = read_curve_keys(pool.curve_secret_key);
  if (!own.ok()) return own.status().in("--curve-secret-key");
  auto allowed = read_public_keys(pool.allowed_keys);
  if (!allowed.ok()) return allowed.status().in("--allowed-keys");
  CurveKeys keys;
  keys.own = std::move(own).value();
  // A file is read again for every worker that connects; a pipe can be read once.
  std::error_code unknown;
  if (std::filesystem::is_regular_file(pool.allowed_keys, unknown))
    keys.allowed_file = pool.allowed_keys;
  else
    keys.allowed = std::move(allowed).value();
  return std::optional(std::move(keys));
}

// Keys from their files, and how much a worker may send.
Result<ZmqOptions> listener_options(const ClusterSettings& settings, const Preparation& prepared) {
  ASSIGN_OR_RETURN(const QFormat q, parse_q_format(settings.speculation.q_format));
  ZmqOptions zmq;
  // The longest Open, and a Draft with a row of q for each token.
  constexpr int64_t kStateHeader = 16;
  const int64_t state_bytes = q.kind == QKind::kHidden ? prepared.draft->hidden_size + kStateHeader : 0;
  const int64_t row_bytes = q.kind == QKind::kDense
                                ? prepared.target.vocab_size * int64_t{sizeof(uint32_t)}
                                : std::max<int64_t>(q.row_bytes(prepared.target.vocab_size), state_bytes);
  const int64_t q_bytes = kMaxSpeculativeTokens * row_bytes;
  zmq.max_message_bytes = (int64_t{1} << 20) + prepared.max_model_len * int64_t{sizeof(TokenId)} + q_bytes;
  // Each sequence is drafted for by one worker at a time: this is several drafts of each.
  constexpr int64_t kDraftBytes = int64_t{16} << 10;  // without its q
  zmq.outside = OutsideLimits{.member_bytes = zmq.max_message_bytes +
                                              4 * settings.models.sequences() * (q_bytes + kDraftBytes)};
  ASSIGN_OR_RETURN(zmq.curve, listener_keys(settings.pool));
  return zmq;
}

void tell_where_to_join(const PoolSettings& pool, const std::string& endpoint) {
  const std::string keys = pool.curve_secret_key.empty()
                               ? ""
                               : " --curve-secret-key FILE --server-key " + pool.curve_secret_key + ".pub";
  std::fprintf(stderr,
               "outrider: draft workers may join: outrider draft-worker --connect %s%s --draft-model DIR\n",
               endpoint.c_str(), keys.c_str());
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

}  // namespace

Result<std::unique_ptr<Transport>> open_to_others(const ClusterSettings& settings,
                                                  const Preparation& prepared, InprocHub& inside) {
  return open(settings, prepared, inside);
}

Result<std::unique_ptr<Transport>> open_to_others(const ClusterSettings& settings,
                                                  const Preparation& prepared,
                                                  std::unique_ptr<Transport> inside) {
  return open(settings, prepared, std::move(inside));
}

}  // namespace outrider
