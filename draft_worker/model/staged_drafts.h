// Drafts for the draft model (staged speculative decoding, Spector and Re 2023): it reads tokens guessed from
// the text in one pass, and guesses that equal its own draws need no pass of their own. Its drafts are the
// same tokens, only earlier. Internal to the model drafter.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/types.h"

namespace outrider {

class TextGuesser;

// Compares passes that read guesses with passes that could and did not: which draw more tokens per second?
// Both are tried at first, and the slower kind now and then. Plain values, no clock.
class StageGain {
 public:
  bool next();  // whether the next pass reads guesses
  void took(bool with_guesses, int64_t tokens, int64_t ns);

 private:
  static constexpr int kFirst = 4;             // passes of each kind
  static constexpr int kTrialEvery = 32;       // passes
  static constexpr double kForget = 1 / 16.0;  // decay of a kind's pass time, at each of its passes
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
  // Writes at most `most` guesses for the tokens after the committed text and `drafted`; none in a pass
  // without guesses.
  void guess(SequenceId sequence, std::span<const TokenId> committed, std::span<const TokenId> drafted,
             int32_t most, std::vector<TokenId>& out);
  // The draft model drew the first `right` guesses, and then another token.
  void verified(SequenceId sequence, int32_t right);
  // A pass drew `tokens` tokens. `comparable`: the pass prefilled no prompt.
  void end_pass(int64_t tokens, int64_t ns, bool comparable);

  static constexpr int32_t kMostGuesses = 16;  // limit for a pass of one sequence

 private:
  const std::shared_ptr<TextGuesser> guesser_;
  StageGain gain_;
  bool reads_ = false;    // this pass reads guesses
  bool offered_ = false;  // this pass had a guess, read or not
  std::vector<TokenId> text_;
};

}  // namespace outrider
