#include <pthread.h>

#include "abi/cm/cm.h"

// Locks shared data across a fork: see abi/verbs/fork.cc.

namespace verbena::abi {
namespace {

void before_fork() {
  cm_lock_requests();
  cm_ids().lock();
}

void after_fork_in_parent() {
  cm_ids().unlock();
  cm_unlock_requests(false);
}

void after_fork_in_child() {
  cm_ids().unlock();
  cm_unlock_requests(true);
  cm_forget_devices();
  cm_forget_lookups();
}

__attribute__((constructor)) void at_load() {
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

}  // namespace
}  // namespace verbena::abi
