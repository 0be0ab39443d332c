#pragma once

#include <cerrno>
#include <cstdint>
#include <new>

// Provides helpers for the files of the drop-in libraries: they export C functions and report
// errors.
//
// No C++ exception leaves a C function: code that allocates runs inside guarded().  Thread
// cancellation must pass through (rping cancels its thread inside ibv_get_cq_event).  So nothing
// here catches all exceptions, and no function that waits is noexcept.

// The headers declare the C functions without a visibility, so each definition exports itself.  The
// version script gives the function a version.
#define VB_EXPORT extern "C" [[gnu::visibility("default")]]

namespace verbena::abi {

// Sets errno and returns -1, as rdma_*() and some ibv_*() functions do.
inline int failed(int error) {
  errno = error;
  return -1;
}

// Sets errno and returns it, for the ibv_*() functions that return an error number.  rdma-core also
// sets errno, and programs rely on this when they call perror().
inline int with_errno(int error) {
  if (error != 0) errno = error;
  return error;
}

// Converts to a null pointer of any type, and sets errno.  Functions that return a pointer use this
// type with `return null_with(error);`.
struct NullWith {
  int error;
  template <class T>
  operator T*() const {  // NOLINT(google-explicit-constructor): it stands for any null pointer
    errno = error;
    return nullptr;
  }
};
inline NullWith null_with(int error) { return NullWith{error}; }

// Returns the result of `body`, 0 or a positive errno; std::bad_alloc becomes ENOMEM.
int guarded(auto&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

// Returns the lower 32 bits of a handle, for the public `handle` members.  Commands compare them:
// see check_handles().
inline std::uint32_t low_bits(std::uint64_t handle) { return static_cast<std::uint32_t>(handle); }

}  // namespace verbena::abi
