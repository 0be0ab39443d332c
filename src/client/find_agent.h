#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "os/daemon.h"
#include "os/unix_channel.h"

namespace verbena::client {

// Limits two waits of a program: the wait until its agent has started, and the wait until the agent
// has answered Hello.
inline constexpr Duration kAgentTimeout = std::chrono::seconds(10);

// Connects to root's agent for all users, if there is one that this process may use.
std::optional<os::UnixChannel> find_all_users_agent(Time deadline);

// Connects to the agent for this program: root's agent for all users, the agent of the virtual
// host, or the user's agent.  Starts the user's agent if necessary.  If this function starts an
// agent, `daemon` receives the reaper of the agent's process.  `problem` explains a failure in one
// line.
Result<os::UnixChannel> find_agent(std::string& problem, os::Daemon& daemon);

}  // namespace verbena::client
