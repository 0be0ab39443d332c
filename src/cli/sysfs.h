#pragma once

#include <optional>
#include <string>

#include "cli/agent_connection.h"

namespace verbena::cli {

// Makes the files of an RDMA device that programs read directly, without a library, visible to this
// process and to the program that it becomes.  They are /sys/class/infiniband/verbena0 with its
// port, GIDs and network interface, /sys/class/infiniband_verbs, and /dev/infiniband/uverbs0, which
// is /dev/null.  The files do not change afterwards, so addresses that the host gets later are
// missing.  Returns an error text, or nothing.
std::optional<std::string> provide_sysfs(AgentConnection& agent);
// Makes the agent add files with the port's counters and update them.  Returns an error text, or
// nothing.
std::optional<std::string> provide_port_counters(AgentConnection& agent);

// Returns true if this program is known to look for RDMA devices in /sys, where it finds none
// without --sysfs.
bool looks_in_sysfs(const std::string& path);

}  // namespace verbena::cli
