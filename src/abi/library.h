#pragma once

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "verbena/border.h"
#include "verbena_build.h"

namespace verbena::abi {

// 0, or ELIBBAD if the loaded that was loaded is not of the same build as this drop-in: then their
// idea of the border may differ, and nothing beyond vb_build_id() can be called.  Said once.
inline int check_library(const char* library, const char* build_id) {
  const char* loaded = vb_build_id();
  if (std::strcmp(loaded, build_id) == 0) return 0;
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) {
    std::fprintf(stderr, "verbena: %s is of build %s but libverbena.so.0 is of build %s\n", library,
                 build_id, loaded);
  }
  return ELIBBAD;
}

// Of libibverbs, and of librdmacm.
int check_verbs_library();
int check_cm_library();

// Programs print strerror() at best; what the engine knows goes to stderr, once.
inline void explain_once() {
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) std::fprintf(stderr, "verbena: %s\n", vb_last_error());
}

}  // namespace verbena::abi
