#include <fcntl.h>
#include <pthread.h>

#include <cerrno>
#include <ctime>

#include "abi/acknowledge.h"
#include "abi/cm/cm.h"

// Delivers the requests of a listener one at a time.
//
// Some programs pass a request from the thread that takes events to another thread through a single
// variable (rping -s -P, up to rdma-core 56).  A second request that comes too early overwrites the
// first one.  Then two threads of the server use the id of the second request, and no thread uses
// the id of the first request.  With an adapter, the time between two requests is long enough.
// Here, a thread that waits for events gets the next event only after the program has begun to use
// the id of the last request.  Programs that use their ids at once do not notice the wait.  A
// program that stores requests and uses them later waits only once.  A program that has set
// O_NONBLOCK never waits.
namespace verbena::abi {
namespace {

constexpr long kWaitSeconds = 1;

pthread_mutex_t used_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t used_cond = PTHREAD_COND_INITIALIZER;

}  // namespace

void cm_wait_until_used(CmChannel& channel) {
  const std::uint64_t last = channel.last_request.load();
  if (last == 0 || channel.defers_requests.load() || !cm_ids().is_set(last, &CmId::is_unused))
    return;
  if ((fcntl(channel.fd, F_GETFL) & O_NONBLOCK) != 0) return;
  timespec deadline{};
  clock_gettime(CLOCK_MONOTONIC, &deadline);
  deadline.tv_sec += kWaitSeconds;
  PthreadLock lock(used_mutex);
  while (cm_ids().is_set(last, &CmId::is_unused)) {
    if (pthread_cond_clockwait(&used_cond, &used_mutex, CLOCK_MONOTONIC, &deadline) == ETIMEDOUT) {
      channel.defers_requests.store(true);
      return;
    }
  }
}

void cm_request_delivered(CmChannel& channel, CmId& id) {
  id.is_unused.store(true);
  channel.last_request.store(id.cookie);
}

void cm_mark_used(CmId& id) {
  if (!id.is_unused.exchange(false)) return;
  PthreadLock lock(used_mutex);
  pthread_cond_broadcast(&used_cond);
}

void cm_lock_requests() { pthread_mutex_lock(&used_mutex); }

void cm_unlock_requests(bool in_child) {
  if (in_child) used_cond = PTHREAD_COND_INITIALIZER;  // only the parent has waiting threads
  pthread_mutex_unlock(&used_mutex);
}

}  // namespace verbena::abi
