#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "cli/agent_connection.h"
#include "ipc/fabric.h"

// The commands of `verbena fabric` share these functions.
namespace verbena::cli {

std::string joined(const auto& parts) { return fmt::format("{}", fmt::join(parts, ", ")); }

// Returns the names of this user's fabrics that are up, in alphabetical order.
std::vector<std::string> fabrics_that_are_up();

// Returns the given name, or that of the only fabric that is up.
Answer<std::string> name_or_only_one(const std::string& name);

// Connects to a fabric.
Answer<AgentConnection> connect_to_fabric(const std::string& name);

// Asks a fabric for all pages of its hosts.
Answer<ipc::FabricReply> ask_fabric(const std::string& name);

}  // namespace verbena::cli
