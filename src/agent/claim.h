#pragma once

#include <sys/types.h>

#include <expected>
#include <optional>
#include <string>

#include "base/time.h"
#include "os/unix_channel.h"

namespace verbena::agent {

// Who of many agents started at once is the agent: the one that gets the name.  The others find out
// that it serves, and go.
//
// Gives the listener; or nothing if another agent of this user listens on the name, so whoever
// started this one can connect to it now; or why neither can be had until the deadline.
std::expected<std::optional<os::UnixListener>, std::string> claim_name(const std::string& name,
                                                                       uid_t uid, Time deadline);

}  // namespace verbena::agent
