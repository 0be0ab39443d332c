#pragma once

#include <cstdint>
#include <string>

namespace verbena::os {

// The abstract socket name of this user's agent, the same for whoever looks for it.  Abstract names
// belong to the network namespace, so there is one agent for each user of each.
//
// A user is known by the number outside of this process's user namespace, since that may share its
// network with others: `unshare --user --map-root-user` makes a root who is not the host's, and who
// finds the agent of the user that he is outside.
std::string agent_socket_name();

// The parts of it, for tests.

// The number outside of a user, by the lines of /proc/PID/uid_map ("inside outside count").  The
// same number where they say nothing of it.
std::uint32_t uid_outside(std::uint32_t uid, const std::string& uid_map);
// `owns_proc_sys`: this user is who /proc/sys belongs to, which only the host's root is.
// `user_namespace` tells apart those who call themselves root in nested namespaces.
std::string agent_socket_name(std::uint32_t uid_outside, bool owns_proc_sys,
                              std::uint64_t user_namespace);

}  // namespace verbena::os
