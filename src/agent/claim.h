#pragma once

#include <sys/types.h>

#include <expected>
#include <optional>
#include <string>

#include "base/time.h"
#include "os/unix_channel.h"

namespace verbena::agent {

// Claims the agent's name.  If several agents are started at once, only the agent that gets the
// name serves.  The other agents find that the name is taken, and end.
//
// Returns a listener on the name.  Returns nothing if another agent of this user listens on the
// name, so that the program that started this agent can connect to the other agent.  Otherwise
// returns an error text, at the deadline or earlier.
std::expected<std::optional<os::UnixListener>, std::string> claim_name(const std::string& name,
                                                                       uid_t uid, Time deadline);

}  // namespace verbena::agent
