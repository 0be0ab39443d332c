#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "link/access_table.h"

namespace verbena::link {

// Accesses the memory of the process at the other end of a lane, without the help of that process.
//
// This class does not check the rights of this process.  The caller checks the rights by the table
// (access_grant.h), between Lane::begin_access() and Lane::leave().
//
// Threads: one at a time.
class PeerMemory {
 public:
  // Limits the parts of one call.
  static constexpr std::size_t kPartsMax = 32;

  virtual ~PeerMemory() = default;

  // Returns the access table that the peer publishes.
  const AccessTable& table() const { return table_; }
  // Copies the parts, one after the other, to `address` in the peer process.  A thread of the peer
  // that sees the last byte also sees all other bytes.  If the last 8 bytes are aligned, they are
  // written at once.  Returns false if some bytes of either process are not accessible; other bytes
  // may have been copied then.  REQUIRES: 1 to kPartsMax parts, none of them empty.
  virtual bool write(std::uint64_t address, std::span<const std::span<std::byte>> from) = 0;
  // Copies from `address` in the peer process to the parts.  The result and the requirements are
  // those of write().
  virtual bool read(std::uint64_t address, std::span<const std::span<std::byte>> to) = 0;
  // Returns false if the peer process has ended.
  virtual bool exists() = 0;

 protected:
  // REQUIRES: the memory of the table outlives this object.
  explicit PeerMemory(const AccessTable& table) : table_(table) {}
  PeerMemory(const PeerMemory&) = default;
  PeerMemory& operator=(const PeerMemory&) = default;

 private:
  AccessTable table_;
};

}  // namespace verbena::link
