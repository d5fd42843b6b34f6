#include "start/listener.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

namespace outrider {
namespace {

// None without --curve-secret-key.
Result<std::optional<CurveKeys>> listener_keys(const RunOptions& options) {
  if (options.curve_secret_key.empty()) return std::optional<CurveKeys>();
  auto own = read_curve_keys(options.curve_secret_key);
  if (!own.ok()) return own.status().in("--curve-secret-key");
  auto allowed = read_public_keys(options.allowed_keys);
  if (!allowed.ok()) return allowed.status().in("--allowed-keys");
  CurveKeys keys;
  keys.own = std::move(own).value();
  // A file is read again for every worker that connects; a pipe can be read once.
  std::error_code unknown;
  if (std::filesystem::is_regular_file(options.allowed_keys, unknown))
    keys.allowed_file = options.allowed_keys;
  else
    keys.allowed = std::move(allowed).value();
  return std::optional(std::move(keys));
}

// Keys from their files, and how much a worker may send.
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
  // Each sequence is drafted for by one worker at a time: this is several drafts of each.
  constexpr int64_t kDraftBytes = int64_t{16} << 10;  // without its q
  zmq.outside = OutsideLimits{.member_bytes =
                                  zmq.max_message_bytes + 4 * options.max_num_seqs * (q_bytes + kDraftBytes)};
  ASSIGN_OR_RETURN(zmq.curve, listener_keys(options));
  return zmq;
}

void tell_where_to_join(const RunOptions& options, const std::string& endpoint) {
  const std::string keys = options.curve_secret_key.empty()
                               ? ""
                               : " --curve-secret-key FILE --server-key " + options.curve_secret_key + ".pub";
  std::fprintf(stderr,
               "outrider: draft workers may join: outrider draft-worker --connect %s%s --draft-model DIR\n",
               endpoint.c_str(), keys.c_str());
}

template <class Inside>
Result<std::unique_ptr<Transport>> open(const RunOptions& options, const Preparation& prepared,
                                        Inside&& inside) {
  ASSIGN_OR_RETURN(const ZmqOptions zmq, listener_options(options, prepared));
  auto end = make_joined_end(std::forward<Inside>(inside), options.listen, zmq);
  if (!end.ok()) return end.status().in("--listen");
  tell_where_to_join(options, end.value()->endpoint());
  return end;
}

}  // namespace

Result<std::unique_ptr<Transport>> open_to_others(const RunOptions& options, const Preparation& prepared,
                                                  InprocHub& inside) {
  return open(options, prepared, inside);
}

Result<std::unique_ptr<Transport>> open_to_others(const RunOptions& options, const Preparation& prepared,
                                                  std::unique_ptr<Transport> inside) {
  return open(options, prepared, std::move(inside));
}

}  // namespace outrider
