#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "broker/messages.h"

// Implements `verbena sockets trace`, which prints events of connections as they happen.
namespace verbena::cli {

struct TraceOptions {
  bool json = false;
  std::vector<std::uint32_t> pids{};  // only connections of these processes; empty: all
};
// Runs until a signal ends it, or until nobody reads the output.  Returns the exit code.
int trace_sockets(const TraceOptions& options);

// Returns true if one of the processes is at an end of the event's connection.
bool is_event_of(const broker::Event& event, const std::vector<std::uint32_t>& pids);

// Each of these returns one line.
std::string event_as_text(const broker::Event& event);
std::string event_as_json(const broker::Event& event);

}  // namespace verbena::cli
