#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

// Finds out which user has taken an abstract socket name.  Any user can take any name, so a process
// must not wait for a connection before it knows who would accept it.
namespace verbena::os {

// Returns the user of the socket that is bound to this name in this network namespace.  If sockets
// of several kinds have the name, returns the user of one that listens.  Returns nothing if there
// is no such socket, or if the kernel does not tell (before Linux 5.3, or without sock_diag).
std::optional<uid_t> find_name_owner(std::string_view name);

// Returns true if the owner of a name is neither this user nor root, whom all users trust.
bool is_stranger(uid_t owner);

// Describes the owner for messages: "a process of another user (uid 1000)".
std::string describe_stranger(uid_t owner);

}  // namespace verbena::os
