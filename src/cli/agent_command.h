#pragma once

#include <string>

#include "ipc/messages.h"
#include "ipc/tool_messages.h"

// Implements `verbena agent status`, `start` and `stop`.
namespace verbena::cli {

// These two return what `verbena agent status` prints.
std::string as_text(const ipc::StatusReply& status);
std::string as_json(const ipc::StatusReply& status);

// These three carry out the commands, and return their exit codes.
int agent_status(bool json);
int agent_start(bool all_users);
int agent_stop();

}  // namespace verbena::cli
