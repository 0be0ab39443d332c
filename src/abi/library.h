#pragma once

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "verbena/c_api.h"
#include "verbena_build.h"

namespace verbena::abi {

// Returns ELIBBAD if the loaded libverbena is not of the same build as this drop-in library, and
// prints this once.  In that case only vb_build_id() may be called, because the two versions of the
// C API may differ.
inline int check_library(const char* library, const char* build_id) {
  const char* loaded = vb_build_id();
  if (std::strcmp(loaded, build_id) == 0) return 0;
  static std::atomic<bool> printed{false};
  if (!printed.exchange(true)) {
    std::fprintf(stderr, "verbena: %s is of build %s but libverbena.so.0 is of build %s\n", library,
                 build_id, loaded);
  }
  return ELIBBAD;
}

// These functions call check_library() for libibverbs and librdmacm.
int check_verbs_library();
int check_cm_library();

// Prints the reason of the last failure to stderr, but only once.  Programs print only strerror(),
// if anything.
inline void explain_once() {
  static std::atomic<bool> printed{false};
  if (*vb_last_error() != '\0' && !printed.exchange(true))
    std::fprintf(stderr, "verbena: %s\n", vb_last_error());
}

}  // namespace verbena::abi
