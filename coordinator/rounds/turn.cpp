#include "coordinator/rounds/turn.h"

namespace outrider {

// Not inline: GCC 12 then takes members of other alternatives for uninitialised ones.
void Turn::send(PeerId to, Message message) { actions_.push_back(Send{to, std::move(message)}); }
void Turn::add(Action action) { actions_.push_back(std::move(action)); }

}  // namespace outrider
