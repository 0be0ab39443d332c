#pragma once

#include <chrono>
#include <cstdint>

// Fakes the C API by an adapter that carries out each command after some virtual time.
namespace fake {

using Duration = std::chrono::milliseconds;

// Removes all objects and requests.  From now on each command takes `command_time`.
void reset(Duration command_time);
// Advances the time, and carries out all due commands in the order of submission.
void advance(Duration time);
Duration now();
// These return the numbers of commands that were carried out, of objects that exist, and of
// requests that are pending or were not taken.
std::uint64_t carried_out();
std::uint64_t objects();
std::uint64_t requests();
// Fakes a peer that requests a connection from the listener, which creates an id, and then leaves.
void connect_and_leave(std::uint64_t listener);
// Raises an asynchronous event (enum ibv_event_type) for the object with this handle.
void raise_event(std::uint64_t object, std::uint32_t type);
// Adds a completion to the CQ with this handle.
void add_completion(std::uint64_t cq, std::uint64_t wr_id);

}  // namespace fake
