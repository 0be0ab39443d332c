#pragma once

#include <string>

#include "cli/agent_connection.h"
#include "cli/run.h"

namespace verbena::cli {

// Adds a library of Verbena to the end of LD_PRELOAD, so that the program loads it before its own
// libraries.  Libraries that are already in LD_PRELOAD remain in front, because some libraries,
// such as a sanitizer's, must be the first.  Fails if the library does not exist, or if its path
// cannot be in LD_PRELOAD.
Answer<void> preload(const std::string& directory, const std::string& library);

// Lets getifaddrs() show the program the interfaces of the virtual host on which it will run,
// unless the options ask for this machine's.  REQUIRES: enter_host() has been called.
Answer<void> provide_interfaces(const RunOptions& options, const std::string& host,
                                const std::string& directory);

}  // namespace verbena::cli
