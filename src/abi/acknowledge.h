#pragma once

#include <pthread.h>

#include <cstdint>

// Counts the events of a CQ, a QP, an SRQ or an rdma_cm_id that the program has acknowledged.  The
// structure of the object (ibv_cq, ibv_qp, ibv_srq, CmId) has the counter, the mutex that guards
// the counter, and the condition variable that wakes the waiting threads.
namespace verbena::abi {

// Unlocks on every exit, including thread cancellation.
class PthreadLock {
 public:
  explicit PthreadLock(pthread_mutex_t& mutex) : mutex_(mutex) { pthread_mutex_lock(&mutex_); }
  ~PthreadLock() { pthread_mutex_unlock(&mutex_); }
  PthreadLock(const PthreadLock&) = delete;
  PthreadLock& operator=(const PthreadLock&) = delete;

 private:
  pthread_mutex_t& mutex_;
};

inline void acknowledge(pthread_mutex_t& mutex, pthread_cond_t& cond, std::uint32_t& completed,
                        std::uint32_t events) {
  PthreadLock lock(mutex);
  completed += events;
  pthread_cond_broadcast(&cond);
}

// Waits until all events are acknowledged.  The program may acknowledge them in any order.
// `completed` and `delivered` may wrap.
inline void wait_until_acknowledged(pthread_mutex_t& mutex, pthread_cond_t& cond,
                                    const std::uint32_t& completed, std::uint32_t delivered) {
  PthreadLock lock(mutex);
  while (static_cast<std::int32_t>(delivered - completed) > 0) pthread_cond_wait(&cond, &mutex);
}

}  // namespace verbena::abi
