#pragma once

#include <fmt/format.h>

#include <string>

#include "cli/agent_connection.h"
#include "client/fabric_client.h"
#include "ipc/fabric.h"

// The commands of `verbena fabric` share these functions.
namespace verbena::cli {

using client::connect_to_fabric;
using client::resolve_fabric_name;
using client::running_fabrics;

std::string joined(const auto& parts) { return fmt::format("{}", fmt::join(parts, ", ")); }

// Asks a fabric for its state, with all hosts.  The hosts come in several pages.
Answer<ipc::FabricReply> ask_fabric(const std::string& name);

}  // namespace verbena::cli
