#pragma once

#include <string>
#include <vector>

#include "cli/agent_connection.h"
#include "cli/sa.h"
#include "ipc/subnet_messages.h"

// Implements `verbena sa services` and `verbena sa register`.
namespace verbena::cli {

// Carries out one of the two commands, and returns its exit code.  `register` returns only if the
// registration fails or ends; usually a signal ends the process.  REQUIRES: `agent` is a connection
// with Role::kProgram.
int sa_services(AgentConnection& agent, const SaOptions& options);

// These functions return what `services` prints.
std::string as_text(const ipc::ServicesFound& found);
std::string as_json(const ipc::ServicesFound& found);

}  // namespace verbena::cli
