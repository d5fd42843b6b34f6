// A minimal draft worker: it follows the protocol and shares no code with the production worker.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "comm/messages.h"
#include "toy_model.h"

namespace outrider {

// Drafts from the toy model, right with the given chance.
class ToyWorker {
 public:
  // `vocabulary`: of its dense rows of q.
  ToyWorker(double accuracy, std::mt19937_64* random, int32_t vocabulary = kToyVocab)
      : accuracy_(accuracy), random_(random), vocabulary_(vocabulary) {}
  std::vector<Message> handle(const Message& message);
  size_t open_sequences() const { return sequences_.size(); }

 private:
  struct Held {
    std::vector<TokenId> ids;
    int32_t prompt_length = 0;
  };
  std::vector<Message> propose(const Propose& message);

  double accuracy_;
  std::mt19937_64* random_;
  int32_t vocabulary_;
  std::map<SequenceId, Held> sequences_;
};

}  // namespace outrider
