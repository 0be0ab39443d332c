#pragma once

#include <cstdint>
#include <string>

namespace verbena::ipc {

// The abstract socket name of a user's agent, the same for whoever looks for it.  Abstract names
// belong to the network namespace, so there is one agent for each user of each.
inline std::string agent_socket_name(std::uint32_t uid) { return "verbena-" + std::to_string(uid); }

}  // namespace verbena::ipc
