#pragma once

#include <string>

#include "cli/agent_connection.h"
#include "cli/run.h"

namespace verbena::cli {

// Lets the program load a library of ours before all others.  Libraries in LD_PRELOAD stay in front
// of it, because one that must be the first, such as a sanitizer's, may be among them.  Fails if
// the library is not there, or if its path cannot be in LD_PRELOAD.
Answer<void> preload(const std::string& directory, const std::string& library);

// Lets the program find the interfaces of the virtual host on which it will run, in place of this
// machine's.  REQUIRES: enter_host() has been called.
Answer<void> provide_interfaces(const RunOptions& options, const std::string& directory);

}  // namespace verbena::cli
