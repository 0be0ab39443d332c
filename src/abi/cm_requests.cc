#include <fcntl.h>
#include <pthread.h>

#include <cerrno>
#include <ctime>

#include "abi/acknowledge.h"
#include "abi/cm.h"

// A listener's requests, one at a time.
//
// Programs hand a request from the thread that takes events to another one through a single
// variable (rping -s -P, up to rdma-core 56): a second request that comes before the first was
// picked up overwrites it, and the server then runs two threads on one id and none on the other.
// With an adapter the requests come far enough apart.  Here a thread that waits for events is given
// the next one when the program has begun to use the id that the last request brought, which
// nothing that looks at its ids at once notices.  A program that takes requests and leaves them for
// later is made to wait once; one that has set O_NONBLOCK never is.
namespace verbena::abi {
namespace {

constexpr long kTurnSeconds = 1;

pthread_mutex_t turns_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t turns = PTHREAD_COND_INITIALIZER;

}  // namespace

void cm_await_turn(CmChannel& channel) {
  const std::uint64_t last = channel.last_request.load();
  if (last == 0 || channel.hoards.load() || !cm_ids().is(last, &CmId::untouched)) return;
  if ((fcntl(channel.fd, F_GETFL) & O_NONBLOCK) != 0) return;
  timespec deadline{};
  clock_gettime(CLOCK_MONOTONIC, &deadline);
  deadline.tv_sec += kTurnSeconds;
  PthreadLock lock(turns_mutex);
  while (cm_ids().is(last, &CmId::untouched)) {
    if (pthread_cond_clockwait(&turns, &turns_mutex, CLOCK_MONOTONIC, &deadline) == ETIMEDOUT) {
      channel.hoards.store(true);
      return;
    }
  }
}

void cm_request_given(CmChannel& channel, CmId& id) {
  id.untouched.store(true);
  channel.last_request.store(id.cookie);
}

void cm_touched(CmId& id) {
  if (!id.untouched.exchange(false)) return;
  PthreadLock lock(turns_mutex);
  pthread_cond_broadcast(&turns);
}

void cm_hold_turns() { pthread_mutex_lock(&turns_mutex); }

void cm_release_turns(bool in_child) {
  if (in_child) turns = PTHREAD_COND_INITIALIZER;  // its waiters are the parent's
  pthread_mutex_unlock(&turns_mutex);
}

}  // namespace verbena::abi
