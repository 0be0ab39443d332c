#pragma once

#include <optional>
#include <string>

#include "cli/agent_connection.h"

namespace verbena::cli {

// Gives this process, and the program that it becomes, what programs read of an RDMA device without
// asking a library: /sys/class/infiniband/verbena0 with its port and GIDs, the network interface
// that it belongs to, /sys/class/infiniband_verbs, and /dev/infiniband/uverbs0, which is /dev/null.
// They are as of now: an address that comes later is not among them.  What is wrong, in words.
std::optional<std::string> provide_sysfs(AgentConnection& agent);
// Has the agent add the port's counters to them, and keep them current.  What is wrong, in words.
std::optional<std::string> provide_port_counters(AgentConnection& agent);

// True for programs that look for RDMA devices in /sys and so find none without --sysfs.
bool looks_in_sysfs(const std::string& path);

}  // namespace verbena::cli
