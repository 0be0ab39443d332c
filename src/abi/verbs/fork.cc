#include <infiniband/verbs.h>
#include <pthread.h>

#include "abi/abi.h"
#include "abi/verbs/events.h"
#include "abi/verbs/ops.h"

// Makes fork() safe.  No adapter reads the parent's pages, so copy-on-write does no harm.  The
// handlers lock the data that all threads share before a fork, and unlock it afterwards.  So the
// child has no lock that belongs to a thread which exists only in the parent.

namespace verbena::abi {
namespace {

void before_fork() {
  lock_device();
  cqs().lock();
  qps().lock();
  srqs().lock();
}

void after_fork() {
  srqs().unlock();
  qps().unlock();
  cqs().unlock();
  unlock_device();
}

__attribute__((constructor)) void at_load() { pthread_atfork(before_fork, after_fork, after_fork); }

}  // namespace
}  // namespace verbena::abi

extern "C" {
int ibv_dontfork_range(void* base, size_t size);
int ibv_dofork_range(void* base, size_t size);
}

VB_EXPORT int ibv_fork_init() { return 0; }
VB_EXPORT ibv_fork_status ibv_is_fork_initialized() { return IBV_FORK_UNNEEDED; }
VB_EXPORT int ibv_dontfork_range(void*, size_t) { return 0; }
VB_EXPORT int ibv_dofork_range(void*, size_t) { return 0; }
