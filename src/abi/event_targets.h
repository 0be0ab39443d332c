#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "base/handle.h"

namespace verbena::abi {

// The objects that events name.  The engine carries a 64-bit cookie for each and gives it back with
// its events.  The cookie is a handle, not a pointer, because a thread may have taken an event out
// of the engine and not yet counted it when another thread destroys the object: the cookie is then
// stale, and the event is dropped as if the object had been destroyed first.
//
// Any thread.  Lives until the process ends: no static destructor.
template <class T>
class EventTargets {
 public:
  // Ownership moves in; the object stays where it is.  0: no room, and the object is gone.
  std::uint64_t add(std::unique_ptr<T> object) {
    std::scoped_lock lock(mutex_);
    if (objects_ == nullptr) objects_ = new Slots<T>(kObjectsMax);
    auto cookie = objects_->insert(std::move(object));
    return cookie ? cookie->value : 0;
  }

  // Counts one event of the object as given to the program; null if it is gone.
  T* give(std::uint64_t cookie, std::uint32_t T::*events_given) {
    std::scoped_lock lock(mutex_);
    T* object = objects_ != nullptr ? objects_->find(Handle<T>{cookie}) : nullptr;
    if (object != nullptr) ++(object->*events_given);
    return object;
  }

  // Calls `use(object)` if it is there, which keeps it from being removed meanwhile.
  void with(std::uint64_t cookie, auto&& use) {
    std::scoped_lock lock(mutex_);
    T* object = objects_ != nullptr ? objects_->find(Handle<T>{cookie}) : nullptr;
    if (object != nullptr) use(*object);
  }

  // The object is there, and its flag is up.
  bool is(std::uint64_t cookie, std::atomic<bool> T::*flag) {
    std::scoped_lock lock(mutex_);
    T* object = objects_ != nullptr ? objects_->find(Handle<T>{cookie}) : nullptr;
    return object != nullptr && (object->*flag).load();
  }

  // From now on nothing is counted any more.
  std::unique_ptr<T> remove(std::uint64_t cookie) {
    std::scoped_lock lock(mutex_);
    return objects_ != nullptr ? objects_->remove(Handle<T>{cookie}) : nullptr;
  }

  // Across a fork.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

  // Events of the object given up to now.
  std::uint32_t given(const T& object, std::uint32_t T::*events_given) {
    std::scoped_lock lock(mutex_);
    return object.*events_given;
  }

 private:
  static constexpr std::uint32_t kObjectsMax = 1 << 20;

  std::mutex mutex_;
  Slots<T>* objects_ = nullptr;
};

}  // namespace verbena::abi
