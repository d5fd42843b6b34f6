// Structured output: the form a text must have (one of a few texts, JSON of a schema, a regular expression),
// and the tokens that may come next in a text that is being written. The allowed tokens depend on the text so
// far and on nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace outrider {

// One text on its way, from its first token on. One thread at a time.
class TokenMatcher {
 public:
  virtual ~TokenMatcher() = default;

  // Which tokens may come next: bits as in TokenSet, overwritten; an end-of-sequence token where the text may
  // end. Not asked behind an end. An error, such as a limit of the library: this text cannot go on.
  virtual Status allow(std::span<uint32_t> bits) = 0;
  // Goes on with a token that allow() allows. False: the token does not fit, and nothing changed; or the
  // matcher can do no more, which error() says.
  virtual bool accept(TokenId id) = 0;
  // Why this matcher can do no more, such as a limit of the library; OK: it goes on.
  virtual Status error() const { return {}; }
  // A copy for looking ahead: whatever becomes of it, this one goes on as if there were none. Nothing takes
  // accepted tokens back, for a matcher that met a limit cannot.
  virtual std::unique_ptr<TokenMatcher> clone() const = 0;
  // The text is whole, and nothing but its end can follow.
  virtual bool is_over() const = 0;
  // Appends at most `most` tokens that will, or most likely will, come next (jump-forward). They may depend
  // on the text so far alone. `allowed`: the result of allow() at this point of the text.
  virtual void foresee(std::span<const uint32_t> allowed, int32_t most, std::vector<TokenId>& ids) const {
    (void)allowed;
    (void)most;
    (void)ids;
  }
};

// Immutable; safe to share between threads.
class Grammar {
 public:
  virtual ~Grammar() = default;
  virtual std::unique_ptr<TokenMatcher> matcher() const = 0;
  virtual int32_t vocab_size() const = 0;  // ids that allow() has bits for
};

}  // namespace outrider
