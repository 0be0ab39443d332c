#pragma once

#include <string>

#include "os/fd.h"

namespace verbena::wire_bench {

// Our end of a new Ethernet interface in a network namespace ("/proc/PID/ns/net"); non-blocking,
// one frame a read.  The interface goes when it is closed.  The error names the step.
os::Fd open_tap(const std::string& network_namespace, const std::string& name,
                std::string& problem);

}  // namespace verbena::wire_bench
