#pragma once

#include <string>

#include "client/agent_connection.h"

namespace verbena::cli {

using client::AgentConnection;
using client::Answer;

// Returns the directory of Verbena's libraries and of verbenad.  It is ../lib/verbena relative to
// the directory of this program, both in the build tree and when installed.
Answer<std::string> library_directory();

// Starts this user's agent, or the agent for all users.  Returns a text that describes the agent.
// Fails if this user may not start the agent, or if the agent cannot open the port.
Answer<std::string> start_agent(bool all_users);
// Stops the agent, even if it is of another build, and waits until it has ended.  Returns a text
// that describes the result.
Answer<std::string> stop_agent();

}  // namespace verbena::cli
