#pragma once

#include <string>

#include "base/error.h"
#include "os/daemon.h"
#include "os/unix_channel.h"

namespace verbena::client {

// How long a program waits for its agent: until it has started, and for the answer to Hello.
inline constexpr Duration kAgentTimeout = std::chrono::seconds(10);

// Connects to the user's agent, or starts one.  `daemon`: of an agent that was started here.  A
// failure is explained in one line in `problem`.
Result<os::UnixChannel> find_agent(std::string& problem, os::Daemon& daemon);

}  // namespace verbena::client
