// Errors that a caller must handle: bad input, a peer that is gone, a deadline that passed.
// Programmer errors use CHECK (base/log.h); a broken environment (MPI, CUDA) throws.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/log.h"

namespace outrider {

enum class StatusCode {
  kOk,
  kInvalidArgument,  // the user's flag, file or request is wrong
  kNotFound,         // a named file or object does not exist
  kMalformed,        // bytes from a file or the wire break their format
  kUnsupported,      // understood, and refused by name
  kDeadlineExceeded,
  kUnavailable,        // the peer is gone
  kResourceExhausted,  // memory, KV blocks, queue space
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // The same error with the place in front: "model.safetensors: header is cut short".
  Status in(std::string_view where) const {
    return ok() ? *this : Status(code_, std::string(where) + ": " + message_);
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status invalid_argument(std::string m) { return {StatusCode::kInvalidArgument, std::move(m)}; }
inline Status not_found(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
inline Status malformed(std::string m) { return {StatusCode::kMalformed, std::move(m)}; }
inline Status unsupported(std::string m) { return {StatusCode::kUnsupported, std::move(m)}; }
inline Status deadline_exceeded(std::string m) { return {StatusCode::kDeadlineExceeded, std::move(m)}; }
inline Status unavailable(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }
inline Status resource_exhausted(std::string m) { return {StatusCode::kResourceExhausted, std::move(m)}; }

// A T, or the reason why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {
    CHECK(!std::get<1>(state_).ok(), "a Result without a value needs an error");
  }

  bool ok() const { return state_.index() == 0; }
  const Status& status() const {
    static const Status kOkStatus;
    return ok() ? kOkStatus : std::get<1>(state_);
  }
  T& value() & {
    CHECK(ok(), "{}", std::get<1>(state_).message());
    return std::get<0>(state_);
  }
  const T& value() const& {
    CHECK(ok(), "{}", std::get<1>(state_).message());
    return std::get<0>(state_);
  }
  T&& value() && {
    CHECK(ok(), "{}", std::get<1>(state_).message());
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace outrider

#define OUTRIDER_CONCAT_INNER(a, b) a##b
#define OUTRIDER_CONCAT(a, b) OUTRIDER_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expression)                                               \
  do {                                                                            \
    if (::outrider::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

// ASSIGN_OR_RETURN(auto config, read_config(path));
#define ASSIGN_OR_RETURN(lhs, expression) \
  ASSIGN_OR_RETURN_IMPL(OUTRIDER_CONCAT(result_, __LINE__), lhs, expression)
#define ASSIGN_OR_RETURN_IMPL(result, lhs, expression) \
  auto result = (expression);                          \
  if (!result.ok()) return result.status();            \
  lhs = std::move(result).value()
