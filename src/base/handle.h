#pragma once

#include <array>
#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"

namespace verbena {

// Stands for an object where a pointer would be unsafe: in C, in another thread or in another
// process.  A handle consists of a slot and a generation.  Each object that is put into a slot gets
// the slot's next generation.  So a stale or forged handle is an error, never a crash.
template <class T>
struct Handle {
  std::uint64_t value{};  // generation << 32 | index + 1; 0 is "none"

  explicit operator bool() const { return value != 0; }
  friend constexpr auto operator<=>(const Handle&, const Handle&) = default;
};

// A new slot begins with this generation.  Only a forked child changes this value, before it makes
// objects of its own.  So no handle that the child inherited from its parent names one of the
// child's own objects.
inline std::atomic<std::uint32_t> first_generation{1};

// Owns the objects that Handles name.
//
// One thread at a time may call insert() and remove(): the owner holds a lock.  Any thread may call
// find() meanwhile: slots never move, and find() checks a slot's generation after it has read the
// pointer.  The callers must not remove an object while another thread uses it, as for every verbs
// object (vol1 11.2).
template <class T>
class Slots {
  static constexpr std::uint32_t kSlotsPerChunk = 256;
  static constexpr std::uint32_t kChunksMax = 4096;
  struct Slot {
    std::atomic<T*> object{};
    std::atomic<std::uint32_t> generation{first_generation.load(std::memory_order_relaxed)};
  };
  using Chunk = std::array<Slot, kSlotsPerChunk>;

 public:
  explicit Slots(std::uint32_t limit)
      : limit_(limit < kSlotsPerChunk * kChunksMax ? limit : kSlotsPerChunk * kChunksMax) {}
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;
  ~Slots() {
    for (std::uint32_t i = 0; i < used_; ++i) delete slot(i).object.load(std::memory_order_relaxed);
    for (auto& chunk : chunks_) delete chunk.load(std::memory_order_relaxed);
  }

  // Takes ownership of the object, and returns its handle.  kNoResources: there are limit()
  // objects.
  Result<Handle<T>> insert(std::unique_ptr<T> object) {
    std::uint32_t index = 0;
    if (!free_.empty()) {
      index = free_.back();
      free_.pop_back();
    } else if (used_ < limit_) {
      index = used_++;
      auto& chunk = chunks_[index / kSlotsPerChunk];
      if (chunk.load(std::memory_order_relaxed) == nullptr) {
        chunk.store(new Chunk, std::memory_order_release);
      }
    } else {
      return fail(Errc::kNoResources, "too many objects of this kind");
    }
    Slot& s = slot(index);
    s.object.store(object.release(), std::memory_order_release);
    ++size_;
    return Handle<T>{std::uint64_t{s.generation.load(std::memory_order_relaxed)} << 32 |
                     (index + 1)};
  }

  // Returns null if the handle names no object, or names one that was removed.
  T* find(Handle<T> handle) const {
    const auto index = static_cast<std::uint32_t>(handle.value) - 1;
    if (index >= kSlotsPerChunk * kChunksMax) return nullptr;
    Chunk* chunk = chunks_[index / kSlotsPerChunk].load(std::memory_order_acquire);
    if (chunk == nullptr) return nullptr;
    Slot& s = (*chunk)[index % kSlotsPerChunk];
    T* object = s.object.load(std::memory_order_acquire);
    if (s.generation.load(std::memory_order_acquire) != handle.value >> 32) return nullptr;
    return object;
  }

  // Removes and returns the object; its handle is stale from now on.  Returns null if find() would.
  std::unique_ptr<T> remove(Handle<T> handle) {
    T* object = find(handle);
    if (object == nullptr) return nullptr;
    const auto index = static_cast<std::uint32_t>(handle.value) - 1;
    Slot& s = slot(index);
    s.object.store(nullptr, std::memory_order_release);
    s.generation.fetch_add(1, std::memory_order_acq_rel);
    free_.push_back(index);
    --size_;
    return std::unique_ptr<T>(object);
  }

  // Visits every object, in the order of slots.  REQUIRES: the owner's lock.
  void for_each(auto&& visit) const {
    for (std::uint32_t i = 0; i < used_; ++i) {
      Slot& s = slot(i);
      if (T* object = s.object.load(std::memory_order_relaxed)) {
        visit(
            Handle<T>{std::uint64_t{s.generation.load(std::memory_order_relaxed)} << 32 | (i + 1)},
            *object);
      }
    }
  }

  std::size_t size() const { return size_; }
  std::uint32_t limit() const { return limit_; }

 private:
  Slot& slot(std::uint32_t index) const {
    return (
        *chunks_[index / kSlotsPerChunk].load(std::memory_order_acquire))[index % kSlotsPerChunk];
  }

  std::uint32_t limit_;
  std::uint32_t used_ = 0;           // the number of slots that were ever used
  std::size_t size_ = 0;             // the number of objects
  std::vector<std::uint32_t> free_;  // the used slots that are empty now
  std::array<std::atomic<Chunk*>, kChunksMax> chunks_{};
};

}  // namespace verbena
