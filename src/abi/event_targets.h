#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "base/handle.h"

namespace verbena::abi {

// Holds the objects that can have events.  libverbena stores a 64-bit cookie for each, and returns
// it with the object's events.  The cookie is a handle, not a pointer: one thread may take an event
// from libverbena while another thread destroys the object.  Then the cookie is stale, and the
// event is dropped.
//
// Threads: any.  The table has no static destructor, so it lives until the process ends.
template <class T>
class EventTargets {
 public:
  // Takes ownership of the object, whose address does not change.  Returns its cookie.  If the
  // table is full, destroys the object and returns 0.
  std::uint64_t add(std::unique_ptr<T> object) {
    std::scoped_lock lock(mutex_);
    if (objects_ == nullptr) objects_ = new Slots<T>(kObjectsMax);
    auto cookie = objects_->insert(std::move(object));
    return cookie ? cookie->value : 0;
  }

  // Counts one event as delivered to the program, and returns its object; null if the object was
  // removed.
  T* count_event(std::uint64_t cookie, std::uint32_t T::*events_delivered) {
    std::scoped_lock lock(mutex_);
    T* object = objects_ != nullptr ? objects_->find(Handle<T>{cookie}) : nullptr;
    if (object != nullptr) ++(object->*events_delivered);
    return object;
  }

  // Calls `use(object)` if the object exists.  The object cannot be removed during the call.
  void with(std::uint64_t cookie, auto&& use) {
    std::scoped_lock lock(mutex_);
    T* object = objects_ != nullptr ? objects_->find(Handle<T>{cookie}) : nullptr;
    if (object != nullptr) use(*object);
  }

  // Returns true if the object exists and its flag is set.
  bool is_set(std::uint64_t cookie, std::atomic<bool> T::*flag) {
    std::scoped_lock lock(mutex_);
    T* object = objects_ != nullptr ? objects_->find(Handle<T>{cookie}) : nullptr;
    return object != nullptr && (object->*flag).load();
  }

  // Removes the object.  From now on its events are dropped.
  std::unique_ptr<T> remove(std::uint64_t cookie) {
    std::scoped_lock lock(mutex_);
    return objects_ != nullptr ? objects_->remove(Handle<T>{cookie}) : nullptr;
  }

  // The fork handlers call these.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

  // Returns the number of events that were delivered to the program until now.
  std::uint32_t delivered(const T& object, std::uint32_t T::*events_delivered) {
    std::scoped_lock lock(mutex_);
    return object.*events_delivered;
  }

 private:
  static constexpr std::uint32_t kObjectsMax = 1 << 20;

  std::mutex mutex_;
  Slots<T>* objects_ = nullptr;
};

}  // namespace verbena::abi
