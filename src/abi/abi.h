#pragma once

#include <cerrno>
#include <cstdint>
#include <new>

// What all files of the drop-in libraries share: how a C function is exported, and how it says no.
//
// No exception of ours leaves a C function: what allocates runs inside guarded().  Thread
// cancellation is not ours and must pass (rping cancels its thread inside ibv_get_cq_event), so
// nothing here catches everything and nothing that waits is noexcept.

// The headers declare the C functions without a visibility, so each definition says that it leaves
// the library; the version script says under which version.
#define VB_EXPORT extern "C" [[gnu::visibility("default")]]

namespace verbena::abi {

// The convention of rdma_*(), and of the ibv_*() that answer -1.
inline int failed(int error) {
  errno = error;
  return -1;
}

// The convention of the ibv_*() that return an error number.  They set errno, too, as those of
// rdma-core do: programs call perror() after either kind.
inline int with_errno(int error) {
  if (error != 0) errno = error;
  return error;
}

// The convention of functions that return a pointer: return null_with(error);
struct NullWith {
  int error;
  template <class T>
  operator T*() const {  // NOLINT(google-explicit-constructor): it stands for any null pointer
    errno = error;
    return nullptr;
  }
};
inline NullWith null_with(int error) { return NullWith{error}; }

// The positive errno that `body` gives, with "no memory" as ENOMEM.
int guarded(auto&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

// The 32 bits of a handle that fit into the public `handle` members; nobody looks them up.
inline std::uint32_t low_bits(std::uint64_t handle) { return static_cast<std::uint32_t>(handle); }

}  // namespace verbena::abi
