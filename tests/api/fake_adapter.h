#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

// Implements the C API as a fake, which carries out each command after some virtual time.
namespace fake {

using Duration = std::chrono::milliseconds;

// Removes all objects and requests.  From now on each command takes `command_time`.
void reset(Duration command_time);
// Advances the time, and carries out all due commands in the order of submission.
void advance(Duration time);
Duration now();
// These return the number of commands that were carried out, the number of objects that exist, and
// the number of requests that are pending or not yet returned to the program.
std::uint64_t carried_out();
std::uint64_t objects();
std::uint64_t requests();
// From now on, creating an event channel fails with this errno; 0: it succeeds.
void fail_event_channels(int error);
// Adds the events of a peer that requests a connection from the listener, and then aborts it.  The
// request creates an id.
void request_and_abort(std::uint64_t listener);
// Returns the ids that have moved to another channel, in the order of their moves.
std::vector<std::uint64_t> moved_ids();
// Raises an asynchronous event (enum ibv_event_type) for the object with this handle.
void raise_event(std::uint64_t object, std::uint32_t type);
// Adds a completion to the CQ with this handle.
void add_completion(std::uint64_t cq, std::uint64_t wr_id);

}  // namespace fake
