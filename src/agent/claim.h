#pragma once

#include <sys/types.h>

#include <expected>
#include <optional>
#include <string>

#include "base/time.h"
#include "os/unix_channel.h"

namespace verbena::agent {

// Decides which agent serves if several are started at once: the agent that gets the name.  The
// others see that another one serves, and end.
//
// Returns the listener.  Returns nothing if another agent of this user listens on the name, so that
// the program that started this agent can connect to that one.  Returns an error text if neither is
// true before the deadline.
std::expected<std::optional<os::UnixListener>, std::string> claim_name(const std::string& name,
                                                                       uid_t uid, Time deadline);

}  // namespace verbena::agent
