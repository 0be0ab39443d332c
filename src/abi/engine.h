#pragma once

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "verbena/border.h"
#include "verbena_build.h"

namespace verbena::abi {

// 0, or ELIBBAD if the engine that was loaded is not of the same build as this drop-in: then their
// idea of the border may differ, and nothing beyond vb_build_id() can be called.  Said once.
inline int check_engine(const char* library, const char* build_id) {
  const char* engine = vb_build_id();
  if (std::strcmp(engine, build_id) == 0) return 0;
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) {
    std::fprintf(stderr, "verbena: %s is of build %s but libverbena.so.0 is of build %s\n", library,
                 build_id, engine);
  }
  return ELIBBAD;
}

// Of libibverbs, and of librdmacm.
int check_verbs_engine();
int check_cm_engine();

// Programs print strerror() at best; what the engine knows goes to stderr, once.
inline void explain_once() {
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) std::fprintf(stderr, "verbena: %s\n", vb_last_error());
}

}  // namespace verbena::abi
