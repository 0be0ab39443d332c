#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <shared_mutex>
#include <span>

#include "base/error.h"
#include "base/random.h"
#include "hca/key_table.h"
#include "hca/types.h"
#include "link/access_table.h"

// Accesses the memory of the program (vol1 10.6): protection domains, memory regions and their
// keys.  The engine reads and writes registered memory only through the functions of this header.
// Inline data need not be registered (post_queues.cc), and link::PeerMemory does direct accesses.
namespace verbena::hca {

// Counts the objects that use a protection domain.
class Pd {
 public:
  std::uint32_t regions = 0;
  std::uint32_t windows = 0;
  std::uint32_t queue_pairs = 0;
  std::uint32_t address_handles = 0;
  std::uint32_t shared_receive_queues = 0;
};

// Returns the id of a domain for access tables.  Peers only compare ids for equality.
inline link::DomainId domain_of(const Pd& pd) { return reinterpret_cast<std::uintptr_t>(&pd); }

class AddressHandle {
 public:
  AddressHandle(Pd& owner, const Path& peer_path) : pd(owner), path(peer_path) {}
  Pd& pd;
  const Path path;
};

class MemoryRegion {
 public:
  // Marks the null region, which reads as zeros and discards writes.  Users cannot set this flag.
  static constexpr std::uint32_t kNull = 1u << 31;

  MemoryRegion(Pd& owner, std::uint64_t memory, std::uint64_t bytes, std::uint64_t first_iova,
               std::uint32_t flags)
      : pd(owner), address(memory), length(bytes), iova(first_iova), access_flags(flags) {}

  Pd& pd;
  const std::uint64_t address;
  const std::uint64_t length;  // at least 1; no address or iova of a byte exceeds 2^64 - 1
  const std::uint64_t iova;
  const std::uint32_t access_flags;
  std::uint32_t key = 0;      // L_Key and R_Key are equal
  std::uint32_t windows = 0;  // the number of windows that are bound to the region
};

// Gives peers access to a part of a region, with its own access rights (vol1 10.6.7).
class MemoryWindow {
 public:
  MemoryWindow(Pd& owner, WindowType window_type) : pd(owner), type(window_type) {}

  Pd& pd;
  const WindowType type;
  std::uint32_t key = 0;           // R_Key
  MemoryRegion* region = nullptr;  // null: not bound, and the members below are invalid
  QpHandle qp{};                   // type 2: the QP that has bound the window
  std::uint64_t iova = 0;          // the first byte's address for peers
  std::byte* memory = nullptr;
  std::uint64_t length = 0;
  std::uint32_t access_flags = 0;
};

// Tells why bytes could not be copied.
enum class CopyFault : std::uint8_t {
  kNone,
  kProtection,  // unknown key, other PD, missing right, outside the region, unmapped memory
  kTooLong,     // more bytes than the elements have
};

// Holds the memory keys of one engine.  The engine looks up the key again for every packet that it
// copies.  So it stops using a region as soon as the region is deregistered.  Only the driver may
// use this class, but any thread may call copy_for_post() and generation().
//
// The upper 24 bits of a key identify one region or window.  The lower 8 bits of a region's key
// must match, too.  The lower 8 bits of a window's key distinguish its bindings (vol1 10.6.3).  All
// bits are random, except that a program chooses the lower 8 bits of a window's key.  So a peer
// without the key must guess, and a wrong guess ends its connection.
class Memory {
 public:
  explicit Memory(Random random) : random_(random) {}

  // Checks the address range and the rights of a region.
  static Result<void> check_region(std::uint64_t address, std::uint64_t length, std::uint64_t iova,
                                   std::uint32_t access_flags);
  // Gives the region a new key.  Returns false if the access table has no free row for the region.
  // Then peers reach the region only by packets.
  bool add(MemoryRegion& region);
  void remove(MemoryRegion& region);
  // Changes everything about the region except its key.  Returns what add() returns.
  bool replace(MemoryRegion& region, Pd& pd, std::uint64_t address, std::uint64_t length,
               std::uint64_t iova, std::uint32_t access_flags);
  void add(MemoryWindow& window);
  void remove(MemoryWindow& window);

  // Binds a window for a request of a QP.  `r_key` names the window and becomes its key.  Returns
  // false, and changes nothing, if the request breaks a rule (vol1 10.6.7.2).
  bool bind(const Pd& pd, QpHandle qp, std::uint32_t r_key, const WindowBinding& binding);
  // Unbinds a type 2 window that this QP has bound, by its current key.  Returns false, and changes
  // nothing, if the request breaks a rule.
  bool invalidate(const Pd& pd, QpHandle qp, std::uint32_t r_key);

  // See Engine::set_access_table().
  void set_access_table(link::AccessTable* table) { access_table_ = table; }
  // Publishes a region in the access table if the region grants remote rights.  Returns false if
  // the table has no free row.
  bool publish(const MemoryRegion& region) const;

  // See Engine::set_memory_guard().
  void set_guard(MemoryGuard guard) { guard_ = guard; }
  // Calls body(), which accesses this memory of the program.  Returns false if the memory is
  // registered but not mapped.  Then body() was aborted, so it must own no object that needs a
  // destructor.
  template <class Body>
  bool touch(std::span<const std::byte> memory, bool writes, Body body) const {
    if (guard_ == nullptr) {
      body();
      return true;
    }
    const auto call = [](void* context) { (*static_cast<Body*>(context))(); };
    return guard_(memory.data(), memory.size(), writes, call, &body);
  }
  // The next two functions copy to and from memory of the program; write() copies in order
  // (copy_in_order()).  They return false if the memory is not mapped, as touch() does.
  bool write(std::span<std::byte> to, std::span<const std::byte> from) const;
  bool read(std::span<const std::byte> from, std::span<std::byte> to) const;

  // Returns the `length` bytes from `iova` on in the region of this key, if the region belongs to
  // this PD, has all rights in `needed` and contains all the bytes.  Addresses may go up to
  // 2^64 - 1.  REQUIRES: length > 0.
  std::optional<std::span<std::byte>> find(const Pd& pd, std::uint32_t key, std::uint64_t iova,
                                           std::uint64_t length, std::uint32_t needed) const;
  // Finds the memory for a key from a peer of this QP, as find() does, but also accepts the key of
  // a window.
  std::optional<std::span<std::byte>> find_remote(const Pd& pd, QpHandle qp, std::uint32_t r_key,
                                                  std::uint64_t iova, std::uint64_t length,
                                                  std::uint32_t needed) const;

  // Returns true if the key belongs to a null region of this PD.  find() does not find null
  // regions.
  bool is_null_region(const Pd& pd, std::uint32_t key) const;

  // Returns true if each element that is not empty names memory of this PD with the rights in
  // `needed`, or a null region of this PD.
  bool are_valid(const Pd& pd, std::span<const Sge> sges, std::uint32_t needed) const;

  // Copies bytes [offset, offset + out.size()) of the memory that the elements describe.
  CopyFault gather(const Pd& pd, std::span<const Sge> sges, std::uint64_t offset,
                   std::span<std::byte> out) const;
  // Copies bytes [offset, offset + in.size()) to the memory that the elements describe.  The
  // elements must have the local write right.
  CopyFault scatter(const Pd& pd, std::span<const Sge> sges, std::uint64_t offset,
                    std::span<const std::byte> in) const;

  // Copies all bytes of the elements for a request that is being posted.  Any thread may call this
  // function.  Returns false if an element cannot be copied now.  Then the driver copies the bytes
  // when it sends the request, or reports an error.
  bool copy_for_post(const Pd& pd, std::span<const Sge> sges, std::span<std::byte> out) const;
  // Returns a number that changes whenever a key of a region may have become invalid.  Any thread
  // may call this function.  The number wraps after 2^32 changes, but no request waits during so
  // many changes.
  std::uint32_t generation() const { return generation_.load(std::memory_order_acquire); }

 private:
  std::uint32_t unused_key();
  MemoryRegion* region_of(std::uint32_t key) const;
  static void unbind(MemoryWindow& window);
  Random random_;
  // Lets posting threads read regions_ and its objects.  The driver locks the mutex to change
  // them.
  mutable std::shared_mutex regions_mutex_;
  std::atomic<std::uint32_t> generation_ = 0;
  MemoryGuard guard_ = nullptr;
  link::AccessTable* access_table_ = nullptr;  // null: peers reach memory by packets only
  // The next two tables use the upper 24 bits of a key.
  KeyTable<MemoryRegion> regions_;
  KeyTable<MemoryWindow> windows_;
};

// Copies the last byte last, or the last 8 bytes if they are aligned.  So a thread that sees them
// also sees all other bytes.  Programs need this because they detect a WRITE by polling its end.
// REQUIRES: the sizes are equal.
void copy_in_order(std::span<std::byte> to, std::span<const std::byte> from);

}  // namespace verbena::hca
