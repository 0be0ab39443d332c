#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "broker/messages.h"
#include "os/shared_memory.h"

namespace verbena::sockets {

// Owns the service's mapping of the memory through which the two ends of a connection exchange
// bytes (stream/memory.h).  The service only makes it and reads its counters.
class PairMemory {
 public:
  // The size of each direction's ring.  Pages cost memory when they are written.
  static constexpr std::size_t kRingBytes = std::size_t{1} << 20;
  // Few connections have larger rings, which serve while a receiver waits for a processor
  // (stream/sender.h).
  static constexpr std::size_t kLargeRingBytes = std::size_t{8} << 20;
  static constexpr std::size_t kLargeMax = 16;

  static Result<PairMemory> create(std::size_t ring_bytes);

  int fd() const { return memory_.fd.get(); }
  std::size_t bytes() const { return memory_.mapping.bytes().size(); }
  bool is_large() const;
  // Returns what the end of this side (0 or 1) has sent.  The numbers are the programs' claims.
  broker::Traffic traffic(std::uint32_t side) const;

 private:
  explicit PairMemory(os::SharedMemory memory) : memory_(std::move(memory)) {}

  os::SharedMemory memory_;
};

}  // namespace verbena::sockets
