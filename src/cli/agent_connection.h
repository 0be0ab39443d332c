#pragma once

#include <string>

#include "client/agent_connection.h"

namespace verbena::cli {

using client::AgentConnection;
using client::Answer;

// Returns the directory of the drop-in libraries and verbenad.  It is ../lib/verbena relative to
// this program, both in the build tree and when installed.
Answer<std::string> library_directory();

// Starts an agent: that of this user, or the one for all users.  Returns a text that says what
// runs.  Fails if this user may not start it, or if it cannot open the port.
Answer<std::string> start_agent(bool all_users);
// Stops the agent, whatever build it is of, and waits until it has ended.  Returns a text that says
// what was done.
Answer<std::string> stop_agent();

}  // namespace verbena::cli
