#include <infiniband/verbs.h>

#include "abi/abi.h"

// Forking is safe whatever the program does: no adapter reads the parent's pages, so there is
// nothing to keep from the child's copy-on-write.

extern "C" {
int ibv_dontfork_range(void* base, size_t size);
int ibv_dofork_range(void* base, size_t size);
}

VB_EXPORT int ibv_fork_init() { return 0; }
VB_EXPORT ibv_fork_status ibv_is_fork_initialized() { return IBV_FORK_UNNEEDED; }
VB_EXPORT int ibv_dontfork_range(void*, size_t) { return 0; }
VB_EXPORT int ibv_dofork_range(void*, size_t) { return 0; }
