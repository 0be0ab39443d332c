#pragma once

#include <optional>
#include <string>

#include "cli/agent_connection.h"

namespace verbena::cli {

// Provides the files of the RDMA devices that programs read without a library.  Only this process,
// the program that replaces it by exec, and their children see the files.  For the first device,
// the files are /sys/class/infiniband/verbena0 with its ports, GIDs and network interfaces,
// /sys/class/infiniband_verbs/uverbs0, and /dev/infiniband/uverbs0, which is /dev/null.  Each port
// of a subnet's node also has /sys/class/infiniband_mad/umad0 and issm0, or higher numbers.  They
// do not change afterwards, so they do not show addresses that the host gets later.  Returns an
// error text, or nothing.
std::optional<std::string> provide_sysfs(AgentConnection& agent);
// Makes the agent add files with the counters of the first device's port 1, and update them.
// Returns an error text, or nothing.
std::optional<std::string> provide_port_counters(AgentConnection& agent);

// Returns true if the name or the libraries of the program at `path` tell that it looks for RDMA
// devices in /sys, where it finds none without --sysfs.
bool looks_in_sysfs(const std::string& path);

}  // namespace verbena::cli
