// Drafts for the draft model: tokens that a look at the text alone expects are read by the draft model in one
// pass, and those that are what it draws itself need no pass of their own (staged speculative decoding,
// Spector and Re 2023). Its drafts are the same tokens, only earlier. Internal to the model drafter.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/types.h"

namespace outrider {

class TextGuesser;

// Whether passes that read guesses bring more tokens a second than passes that could and did not. Both are
// tried at first, and the slower one now and then. Plain values, no clock.
class StageGain {
 public:
  bool next();  // whether the next pass reads guesses
  void took(bool with_guesses, int64_t tokens, int64_t ns);

 private:
  static constexpr int kFirst = 4;             // passes of each kind
  static constexpr int kTrialEvery = 32;       // passes
  static constexpr double kForget = 1 / 16.0;  // of what passes of a kind took, with each
  struct Kind {
    int passes = 0;
    double tokens = 0, ns = 0;
    double rate() const { return tokens / ns; }
  };
  std::array<Kind, 2> kinds_;  // without and with guesses
  int since_trial_ = 0;
};

class StagedDrafts {
 public:
  explicit StagedDrafts(std::shared_ptr<TextGuesser> guesser);
  ~StagedDrafts();

  void open(SequenceId sequence, std::span<const TokenId> text, int32_t prompt_length, bool alone);
  void extend(SequenceId sequence, std::span<const TokenId> text);  // committed
  void close(SequenceId sequence);

  void begin_pass();
  // At most `most` tokens behind the committed text and what was drafted behind it; none where this pass does
  // without.
  void guess(SequenceId sequence, std::span<const TokenId> committed, std::span<const TokenId> drafted,
             int32_t most, std::vector<TokenId>& out);
  // The draft model drew the first `right` of the guessed tokens, and then another one.
  void verified(SequenceId sequence, int32_t right);
  // So many tokens were drawn. `comparable`: the pass read no prompt.
  void end_pass(int64_t tokens, int64_t ns, bool comparable);

  static constexpr int32_t kMostGuesses = 16;  // a pass of one sequence reads

 private:
  const std::shared_ptr<TextGuesser> guesser_;
  StageGain gain_;
  bool reads_ = false;    // this pass
  bool offered_ = false;  // there was a guess in this pass, read or not
  std::vector<TokenId> text_;
};

}  // namespace outrider
