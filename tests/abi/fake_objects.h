#pragma once

#include <cerrno>

#include "fake_c_api.h"

// Provides helpers for the functions of the fake libverbena: for its verbs (fake_verbs.cc) and its
// connection manager (fake_cm.cc).
namespace fake {

// Returns the errno with which the function must fail (State::injected_errors), or 0.
int injected_error(const char* function);

// Stores a handle that no object has had.  Returns 0.
int make_handle(vb_handle* handle);

// Returns the object with this handle, or null.
template <class Map>
auto* find(Map& map, vb_handle handle) {
  const auto it = map.find(handle);
  return it != map.end() ? &it->second : nullptr;
}

// These two make and destroy channels, for completions or for the connection manager.  They return
// 0 or errno.
int make_channel(vb_handle* channel, int* fd);
int destroy_channel(vb_handle channel);
// Returns the queue of a channel, or null.
Queue* channel_of(vb_handle handle);

// Returns true if the fake host has this port.
bool has_port(std::uint32_t device, std::uint32_t port);

}  // namespace fake

// Lets the calling function return the error that State::injected_errors has for the function.  If
// there is no such error, locks the state until the calling function returns.
#define RETURN_ERROR_OR_LOCK()                            \
  if (int error = injected_error(__func__)) return error; \
  const std::scoped_lock lock(state().mutex)

// Declares a pointer to the object with this handle.  If no object has it, the calling function
// returns EINVAL.
#define FIND_OR_RETURN(object, map, handle) \
  auto* object = find(state().map, handle); \
  if (object == nullptr) return EINVAL
