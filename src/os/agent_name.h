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
// namespaces may share one network.  A process in `unshare --user --map-root-user` has user id 0
// there, but is an ordinary user on the host.  It finds the agent of that ordinary user.
std::string agent_socket_name();

// Returns the abstract socket name of the agent that serves all users, if root has started one
// (`verbena agent start --all-users`).  Any user can take this name, so check the user of the
// process that listens on it.
std::string all_users_agent_name();
// Returns true if this process may use the agent that serves all users.  The environment must not
// set VERBENA_NODE, which names a virtual host, or VERBENA_BIND, which requires an agent of this
// user.
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
// `fabric_host`.  kInvalidArgument: is_host_name() does not allow a name.
Result<std::string> agent_socket_name(const std::string& user_agent, const FabricHost& fabric_host);

// Returns the host that VERBENA_FABRIC and VERBENA_NODE name (`verbena run --node` sets both).
// Returns std::nullopt if VERBENA_NODE is not set or is empty, or if this program is privileged.
std::optional<FabricHost> fabric_host_from_environment();
// Returns the abstract socket name of the agent that serves this process: the agent of the host
// that the environment names, or the user's agent if the environment names no host.
// kInvalidArgument: the environment has an invalid name.
Result<std::string> own_agent_socket_name();
// Returns the abstract socket name on which the process of a fabric receives commands.
std::string fabric_socket_name(const std::string& fabric);

// Returns the abstract socket name on which programs of a host of a fabric find the service of
// libibumad.  Returns the same errors as agent_socket_name().
Result<std::string> mad_socket_name(const FabricHost& fabric_host);

// The two functions below are parts of agent_socket_name(); the header declares them for tests.

// Translates a user id to the user id outside of the user namespace, according to `uid_map`, the
// text of /proc/PID/uid_map.  Each line of this text is "inside outside count".  Returns the same
// id if no line covers it.
std::uint32_t uid_outside(std::uint32_t uid, const std::string& uid_map);
// Makes the name of a user's agent.  `owns_proc_sys`: /proc/sys belongs to this user, which is true
// only for the host's root.  `user_namespace` is the inode of the user namespace; it distinguishes
// the roots of different user namespaces.
std::string agent_socket_name(std::uint32_t uid_outside, bool owns_proc_sys,
                              std::uint64_t user_namespace);

}  // namespace verbena::os
