#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"

namespace verbena::os {

// Returns the abstract socket name of this user's agent.  The agent, programs and tools all compute
// the same name.  Abstract names belong to the network namespace, so each user has one agent in
// each network namespace.
//
// The name uses the user id outside of this process's user namespace, because several user
// namespaces may share one network.  `unshare --user --map-root-user` makes a root that is not the
// host's root; such a root finds the agent of the user that it is on the host.
std::string agent_socket_name();

// Returns the abstract socket name of the agent that serves all users, if root has started one
// (`verbena agent start --all-users`).  Check who holds the name: anybody can take it.
std::string all_users_agent_name();
// Returns true if this process may use the agent that serves all users.  Its environment must name
// no virtual host, and must not set VERBENA_BIND, which asks for an agent of the user's own.
bool may_use_all_users_agent();

// Returns the abstract socket name of this user's socket service, made from the agent's name.
std::string socket_service_name();
// Returns the name of the socket service of root, as seen from this process's user namespace.
std::string root_socket_service_name();

// Names a host of a simulated fabric.
struct FabricHost {
  std::string fabric{};
  std::string host{};
};
// Returns the abstract socket name of the agent for a host of a fabric.  It consists of
// `user_agent`, the name of the user's agent on this machine, and of the two names in
// `fabric_host`.  kInvalidArgument: a name is empty, is longer than 32 characters, or has
// characters other than letters, digits, '_' and '-'.
Result<std::string> agent_socket_name(const std::string& user_agent, const FabricHost& fabric_host);

// Returns the host in VERBENA_FABRIC and VERBENA_NODE, which `verbena run --node` sets; none if
// they are not set, or if this program is privileged.
std::optional<FabricHost> fabric_host_of_environment();
// Returns the abstract socket name of the agent that serves this process: the agent of the host in
// the environment, or else the user's agent.  kInvalidArgument: the environment holds an invalid
// name.
Result<std::string> name_of_own_agent();
// Returns the abstract socket name on which the process of a fabric receives commands.
std::string fabric_socket_name(const std::string& fabric);

// Returns the abstract socket name on which programs of a host of a fabric find the service of
// libibumad.  Fails as agent_socket_name() does.
Result<std::string> mad_socket_name(const FabricHost& fabric_host);

// The two functions below are parts of agent_socket_name(); the header declares them for tests.

// Translates a user id to the user id outside of the user namespace, by the lines of
// /proc/PID/uid_map ("inside outside count").  Returns the same id if no line covers it.
std::uint32_t uid_outside(std::uint32_t uid, const std::string& uid_map);
// Makes the name of a user's agent.  `owns_proc_sys`: /proc/sys belongs to this user, which is true
// only for the host's root.  `user_namespace` tells apart the roots of nested user namespaces.
std::string agent_socket_name(std::uint32_t uid_outside, bool owns_proc_sys,
                              std::uint64_t user_namespace);

}  // namespace verbena::os
