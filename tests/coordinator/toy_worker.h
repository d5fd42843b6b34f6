// A draft worker of a page: what the protocol asks of one, and nothing of how the production worker does it.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "comm/messages.h"

namespace outrider {

// Drafts from the toy model, right with the given chance.
class ToyWorker {
 public:
  ToyWorker(double accuracy, std::mt19937_64* random) : accuracy_(accuracy), random_(random) {}
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
  std::map<SequenceId, Held> sequences_;
};

}  // namespace outrider
