#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <shared_mutex>
#include <span>

#include "base/error.h"
#include "base/random.h"
#include "hca/key_table.h"
#include "hca/types.h"

// Who may touch which bytes of the user's memory (vol1 10.6): protection domains, memory regions
// and their keys, and the only functions of the engine that read or write that memory.
namespace verbena::hca {

// A protection domain knows only how many objects stand on it.
class Pd {
 public:
  std::uint32_t regions = 0;
  std::uint32_t windows = 0;
  std::uint32_t queue_pairs = 0;
  std::uint32_t address_handles = 0;
  std::uint32_t shared_receive_queues = 0;
};

class AddressHandle {
 public:
  AddressHandle(Pd& owner, const Path& where) : pd(owner), path(where) {}
  Pd& pd;
  const Path path;
};

class MemoryRegion {
 public:
  // The null region: reads as zeros, and what is written to it is gone.  No flag of any user.
  static constexpr std::uint32_t kNull = 1u << 31;

  MemoryRegion(Pd& owner, std::uint64_t memory, std::uint64_t bytes, std::uint64_t first_iova,
               std::uint32_t flags)
      : pd(owner), address(memory), length(bytes), iova(first_iova), access_flags(flags) {}

  Pd& pd;
  const std::uint64_t address;
  const std::uint64_t length;  // at least 1; neither address nor iova wraps over it
  const std::uint64_t iova;
  const std::uint32_t access_flags;
  std::uint32_t key = 0;      // L_Key and R_Key alike
  std::uint32_t windows = 0;  // bound to it
};

// Lets peers reach a part of a region, with rights of its own (vol1 10.6.7).
class MemoryWindow {
 public:
  MemoryWindow(Pd& owner, WindowType its_type) : pd(owner), type(its_type) {}

  Pd& pd;
  const WindowType type;
  std::uint32_t key = 0;           // R_Key
  MemoryRegion* region = nullptr;  // null: not bound, and the rest means nothing
  QpHandle qp{};                   // type 2: the one that has bound it
  std::uint64_t iova = 0;          // of the first byte, for peers
  std::byte* memory = nullptr;
  std::uint64_t length = 0;
  std::uint32_t access_flags = 0;
};

// Why bytes could not be copied.
enum class CopyFault : std::uint8_t {
  kNone,
  kProtection,  // unknown key, other PD, missing right, outside the region, memory that has gone
  kTooLong,     // more bytes than the elements have
};

// The keys of one engine.  Every copy looks its key up again, at every packet: the moment a region
// is deregistered, nothing of the engine touches its memory.  Driver only, but for
// copy_for_post().
//
// The upper 24 bits of a key name a region or a window, and no two have the same; the lower 8 are
// part of the name of a region, and tell the bindings of a window apart (vol1 10.6.3).  All are
// random but the lower 8 of a window's, so a peer that was not told a key has to guess, and a wrong
// try ends its connection.
class Memory {
 public:
  explicit Memory(Random random) : random_(random) {}

  // Checks the ranges and rights; gives the region its key.
  static Result<void> check(std::uint64_t address, std::uint64_t length, std::uint64_t iova,
                            std::uint32_t access_flags);
  void add(MemoryRegion& region);
  void remove(MemoryRegion& region);
  // The region keeps its key and becomes another.
  void replace(MemoryRegion& region, Pd& pd, std::uint64_t address, std::uint64_t length,
               std::uint64_t iova, std::uint32_t access_flags);
  void add(MemoryWindow& window);
  void remove(MemoryWindow& window);

  // What a QP's requests do to windows: false if one of the rules is broken (vol1 10.6.7.2), and
  // then nothing has changed.  `r_key` names the window, and is its key from now on.
  bool bind(const Pd& pd, QpHandle qp, std::uint32_t r_key, const WindowBinding& binding);
  // Type 2 windows alone, bound by this QP, by their present key.
  bool invalidate(const Pd& pd, QpHandle qp, std::uint32_t r_key);

  // See Engine::set_memory_guard().
  void set_guard(MemoryGuard guard) { guard_ = guard; }
  // Calls body(), which touches that memory of the user.  False: it has gone, though it is
  // registered.  body() may then have done a part, and must hold nothing that needs a destructor.
  template <class Body>
  bool touch(std::span<const std::byte> memory, bool writes, Body body) const {
    if (guard_ == nullptr) {
      body();
      return true;
    }
    const auto call = [](void* context) { (*static_cast<Body*>(context))(); };
    return guard_(memory.data(), memory.size(), writes, call, &body);
  }
  // copy_in_order() into memory of the user.  False: as above.
  bool write(std::span<std::byte> to, std::span<const std::byte> from) const;
  bool read(std::span<const std::byte> from, std::span<std::byte> to) const;

  // The `length` bytes that begin at `iova` in the region of this key, if it is of this PD, has all
  // the rights in `needed`, and holds all of them.  Right up to 2^64 - 1.  length > 0.
  std::optional<std::span<std::byte>> find(const Pd& pd, std::uint32_t key, std::uint64_t iova,
                                           std::uint64_t length, std::uint32_t needed) const;
  // The same for a key that came through this QP, which may be a window's, too.
  std::optional<std::span<std::byte>> find_remote(const Pd& pd, QpHandle qp, std::uint32_t r_key,
                                                  std::uint64_t iova, std::uint64_t length,
                                                  std::uint32_t needed) const;

  // The key is that of a null region of this PD.  It is for elements alone: find() knows none.
  bool is_null(const Pd& pd, std::uint32_t key) const;

  // Are all elements (those of length 0 do not count) what they say they are?
  bool valid(const Pd& pd, std::span<const Sge> sges, std::uint32_t needed) const;

  // Bytes [offset, offset + out.size()) of what the elements describe.
  CopyFault gather(const Pd& pd, std::span<const Sge> sges, std::uint64_t offset,
                   std::span<std::byte> out) const;
  // The other direction; needs the right of local write.
  CopyFault scatter(const Pd& pd, std::span<const Sge> sges, std::uint64_t offset,
                    std::span<const std::byte> in) const;

  // Any thread: all that the elements describe, for a request that is being posted.  False: leave
  // it to the driver, which finds out what is wrong in its turn.
  bool copy_for_post(const Pd& pd, std::span<const Sge> sges, std::span<std::byte> out) const;

 private:
  std::uint32_t unused_key();
  MemoryRegion* region_of(std::uint32_t key) const;
  static void unbind(MemoryWindow& window);

  Random random_;
  // Guards regions_ and what they hold against posting threads: the driver takes it to change them.
  mutable std::shared_mutex regions_mutex_;
  MemoryGuard guard_ = nullptr;
  KeyTable<MemoryRegion> regions_;  // by the upper 24 bits of their keys, both
  KeyTable<MemoryWindow> windows_;
};

// Copies so that who sees the last byte (or, where they are aligned, the last 8) sees all: programs
// wait for a WRITE by watching its end.  The sizes are equal.
void copy_in_order(std::span<std::byte> to, std::span<const std::byte> from);

}  // namespace verbena::hca
