#pragma once

#include <optional>
#include <string>

#include "cli/agent_connection.h"

namespace verbena::cli {

// Provides the files of an RDMA device that programs read without a library.  Only this process and
// the program that replaces it by exec see the files.  The files are /sys/class/infiniband/verbena0
// with its port, GIDs and network interface, /sys/class/infiniband_verbs, and
// /dev/infiniband/uverbs0, which is /dev/null.  They do not change afterwards, so they do not show
// addresses that the host gets later.  Returns an error text, or nothing.
std::optional<std::string> provide_sysfs(AgentConnection& agent);
// Makes the agent add files with the port's counters and update them.  Returns an error text, or
// nothing.
std::optional<std::string> provide_port_counters(AgentConnection& agent);

// Returns true if this program is known to look for RDMA devices in /sys, where it finds none
// without --sysfs.
bool looks_in_sysfs(const std::string& path);

}  // namespace verbena::cli
