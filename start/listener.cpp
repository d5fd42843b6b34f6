#include "start/listener.h"

#include <algorithm>
#include <cstdio>

namespace outrider {

Result<ZmqOptions> listener_options(const RunOptions& options, const Preparation& prepared) {
  ASSIGN_OR_RETURN(const QFormat q, parse_q_format(options.q_format));
  ZmqOptions zmq;
  // The longest Open, and a Draft with a row of q for each token.
  constexpr int64_t kStateHeader = 16;
  const int64_t state_bytes = q.kind == QKind::kHidden ? prepared.draft->hidden_size + kStateHeader : 0;
  const int64_t row_bytes = q.kind == QKind::kDense
                                ? prepared.target.vocab_size * int64_t{sizeof(uint32_t)}
                                : std::max<int64_t>(q.row_bytes(prepared.target.vocab_size), state_bytes);
  const int64_t q_bytes = kMaxSpeculativeTokens * row_bytes;
  zmq.max_message_bytes = (int64_t{1} << 20) + prepared.max_model_len * int64_t{sizeof(TokenId)} + q_bytes;
  ASSIGN_OR_RETURN(zmq.curve, listener_keys(options));
  return zmq;
}

Result<std::optional<CurveKeys>> listener_keys(const RunOptions& options) {
  if (options.curve_secret_key.empty()) return std::optional<CurveKeys>();
  auto own = read_curve_keys(options.curve_secret_key);
  if (!own.ok()) return own.status().in("--curve-secret-key");
  auto allowed = read_public_keys(options.allowed_keys);
  if (!allowed.ok()) return allowed.status().in("--allowed-keys");
  CurveKeys keys;
  keys.own = std::move(own).value();
  keys.allowed = std::move(allowed).value();
  return std::optional(std::move(keys));
}

void tell_where_to_join(const RunOptions& options, const std::string& endpoint) {
  const std::string keys = options.curve_secret_key.empty()
                               ? ""
                               : " --curve-secret-key FILE --server-key " + options.curve_secret_key + ".pub";
  std::fprintf(stderr,
               "outrider: draft workers may join: outrider draft-worker --connect %s%s --draft-model DIR\n",
               endpoint.c_str(), keys.c_str());
}

}  // namespace outrider
