#pragma once

#include <string>

#include "client/agent_connection.h"

namespace verbena::cli {

using client::AgentConnection;
using client::Answer;

// Returns the directory of Verbena's libraries and of verbenad.  It is ../lib/verbena relative to
// the directory of this program, both in the build tree and when installed.
Answer<std::string> library_directory();

// Starts this user's agent if none runs, or starts the agent for all users.  Returns a text that
// describes the agent.  Fails if the agent does not start.  The agent for all users starts only for
// root, and only if it can open UDP port 4791.
Answer<std::string> start_agent(bool all_users);
// Stops the agent, even if it is of another build, and waits until it has ended.  Returns a text
// that describes the result.
Answer<std::string> stop_agent();

}  // namespace verbena::cli
