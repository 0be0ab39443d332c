#pragma once

#include <chrono>
#include <cstdint>

// A border whose commands are carried out when the test says so: an adapter that holds each of them
// for a second of its own, virtual time.
namespace held {

using Duration = std::chrono::milliseconds;

// Forgets everything.
void reset(Duration hold);
// Time goes by: what is due is carried out, in the order of submitting.
void advance(Duration time);
Duration now();
// Commands carried out so far; objects that there are; requests that are pending or not taken.
std::uint64_t carried_out();
std::uint64_t objects();
std::uint64_t requests();
// Somebody asks the listening id for a connection, with an id that is made for it, and gives up.
void ask_and_leave(std::uint64_t listener);
// An asynchronous event (enum ibv_event_type) is there for the object with this handle.
void tell(std::uint64_t object, std::uint32_t type);
// A completion is there for the CQ with this handle.
void complete(std::uint64_t cq, std::uint64_t wr_id);

}  // namespace held
