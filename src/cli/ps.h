#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/agent_connection.h"
#include "ipc/counters.h"
#include "ipc/messages.h"
#include "ipc/qp_table.h"
#include "ipc/tool_messages.h"

// Implements `verbena ps`, which lists the QPs, CM ids and counters of all programs of this user on
// this host.
namespace verbena::cli {

struct ProcessQps {
  ipc::ProcessInfo process{};
  std::vector<ipc::QpTableRow> qps{};
  std::uint32_t qps_not_shown = 0;  // number of QPs that do not fit into the process's table
  std::vector<ipc::NamedCount> counters{};
};

struct Listing {
  std::vector<ProcessQps> processes{};
  std::vector<ipc::ConnectionInfo> connections{};
  ipc::StatusReply agent{};
};

// Asks the agent for all programs and connections, and reads the programs' tables.
Answer<Listing> read_listing(AgentConnection& agent);

// These two return what `verbena ps` prints.
std::string as_text(const Listing& listing);
std::string as_json(const Listing& listing);
// These two return the counters of every program and of the agent.  The text leaves out counters
// that are 0.
std::string counters_as_text(const Listing& listing);
std::string counters_as_json(const Listing& listing);

struct PsOptions {
  bool json = false;
  bool counters = false;
};
// Carries out `verbena ps`, and returns its exit code.
int ps(const PsOptions& options);

}  // namespace verbena::cli
