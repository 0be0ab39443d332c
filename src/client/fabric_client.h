#pragma once

#include <expected>
#include <string>
#include <vector>

#include "client/agent_connection.h"
#include "faults/fault.h"

// Finds running fabrics (of virtual hosts), and causes faults in them.  The commands of
// `verbena fabric` and the C API share these functions.
namespace verbena::client {

// Returns the names of this user's fabrics that are up, in alphabetical order.
std::vector<std::string> running_fabrics();

// Returns `name` if that fabric is up.  If `name` is empty, returns the name of the only fabric
// that is up.
Answer<std::string> resolve_fabric_name(const std::string& name);

// Connects to a fabric.
Answer<AgentConnection> connect_to_fabric(const std::string& name);

struct FaultError {
  bool refused = false;  // true: the fabric refused the fault; false: it was not reached
  std::string text{};    // a line for the user
};

// Causes or ends a fault in a fabric.  Returns the new state in a line for the user.
std::expected<std::string, FaultError> set_fault(const std::string& fabric,
                                                 const faults::Fault& fault);

}  // namespace verbena::client
