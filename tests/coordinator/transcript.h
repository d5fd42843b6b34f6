// Runs of the protocol machine as text: lines of events, each followed by the actions it must cause. How to
// read one:
//
//   # comment
//   set gamma fixed:gamma=2         options, before the first event
//   5 hello draft                   at 5 ms the peer "draft" says hello; peers are "target" and any other
//   name
//     > welcome draft               an action the machine must answer with; all of them, in order
//
// Events: hello PEER [version=V vocabulary=F sequences=N role=target door=outside kv_blocks=N],
// submit ID ids... [key=value...], cancel ID, lost
// PEER, heartbeat PEER, failure PEER TEXT, resync PEER ID length=N [hash=bad], refused PEER (the last message
// to it bounced), tick, draft PEER ID ids... [epoch= round= base= hash=bad parents=-1,0,... q=bad] (as last
// proposed unless given), result [ID accepted next [path=NODE,...]]... [ID nonfinite] [from=PEER, not
// "target"].
#pragma once

#include <map>
#include <string>
#include <vector>

#include "coordinator/protocol.h"
#include "toy_tokenizer.h"

namespace outrider {

class Transcript {
 public:
  // The lines of `text` with the actions that were really taken. Throws std::runtime_error on a line it
  // cannot read.
  std::string replay(const std::string& text);
  const Totals& totals() const { return protocol_->totals(); }

 private:
  struct Line;
  void set(const std::string& key, const std::string& value);
  Event parse(Line& line);
  Event parse_hello(Line& line);
  Event parse_submit(Line& line);
  Event parse_draft(Line& line);
  Event parse_result(Line& line);
  Event parse_resync(Line& line);
  std::string show(const Action& action);
  std::string show_message(const std::string& peer, const Message& message);
  std::string show_plan(const std::string& peer, const StepPlan& plan);
  PeerId peer(const std::string& name);
  std::string name_of(PeerId peer) const;

  ProtocolOptions options_;
  std::string gamma_ = "fixed:gamma=4";
  ToyTokenizer tokenizer_;
  std::unique_ptr<Protocol> protocol_;
  std::map<std::string, PeerId> peers_;
  std::map<PeerId, Message> last_sent_;
  std::map<SequenceId, std::vector<TokenId>> ids_;  // committed, as emitted
  std::map<SequenceId, Propose> proposed_;
  std::map<std::string, StepPlan> plans_;  // the last of each target
  uint64_t generation_ = 1;
};

}  // namespace outrider
