#pragma once

#include <cerrno>

#include "fake_border.h"

// Helps the functions of the fake libverbena, whose verbs are in fake_verbs.cc and whose connection
// manager is in fake_cm.cc.
namespace fake {

// Returns the errno with which the test lets this function fail, or 0.
int refused(const char* function);

// Makes a handle that no object has had.  Returns 0.
int make(vb_handle* handle);

// Returns the object with this handle, or null.
template <class Map>
auto* find(Map& map, vb_handle handle) {
  const auto it = map.find(handle);
  return it != map.end() ? &it->second : nullptr;
}

// Makes and destroys channels, of completions or of the connection manager.  They return 0 or
// errno.
int make_channel(vb_handle* channel, int* fd);
int destroy_channel(vb_handle channel);
// Returns the queue of a channel, or null.
Queue* channel_of(vb_handle handle);

// Returns true if the host of the test has this port.
bool has_port(std::uint32_t device, std::uint32_t port);

}  // namespace fake

// Returns the error that the test wants from the calling function, or else locks the state until it
// returns.
#define REFUSED_OR_LOCKED()                  \
  if (int no = refused(__func__)) return no; \
  const std::scoped_lock locked(state().mutex)

// Declares a pointer to the object with this handle.  The calling function returns EINVAL if there
// is none.
#define FOUND(object, map, handle)          \
  auto* object = find(state().map, handle); \
  if (object == nullptr) return EINVAL
