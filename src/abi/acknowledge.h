#pragma once

#include <pthread.h>

#include <cstdint>

// Counting acknowledgements with the mutex and condition that the C structures carry.
namespace verbena::abi {

// Lets go on any way out, cancellation included.
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

// Both counts wrap together; what was given later may be completed first.
inline void wait_acknowledged(pthread_mutex_t& mutex, pthread_cond_t& cond,
                              const std::uint32_t& completed, std::uint32_t given) {
  PthreadLock lock(mutex);
  while (static_cast<std::int32_t>(given - completed) > 0) pthread_cond_wait(&cond, &mutex);
}

}  // namespace verbena::abi
