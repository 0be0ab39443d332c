#pragma once

#include <atomic>
#include <memory>

namespace verbena::c_api {

// Holds the only object of its kind of this process.  Never frees the object, because threads may
// use it at exit.  Any thread may call get().
template <class T>
class Single {
 public:
  // Makes the object at the first call.
  T& get() {
    if (T* const existing = instance_.load()) return *existing;
    auto made = std::make_unique<T>();
    T* expected = nullptr;
    return instance_.compare_exchange_strong(expected, made.get()) ? *made.release() : *expected;
  }
  // Lets the next get() make a new object.  A forked child needs this: the fork may have copied a
  // locked mutex, and the child shares the descriptors of the object with the parent.
  void forget() { instance_.store(nullptr); }

 private:
  std::atomic<T*> instance_{nullptr};
};

}  // namespace verbena::c_api
