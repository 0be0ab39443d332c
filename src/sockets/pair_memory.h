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

  static Result<PairMemory> create();

  int fd() const { return memory_.fd.get(); }
  std::size_t bytes() const { return memory_.mapping.bytes().size(); }
  // Returns what the end of this side (0 or 1) has sent.  The numbers are the programs' claims.
  broker::Traffic traffic(std::uint32_t side) const;

 private:
  explicit PairMemory(os::SharedMemory memory) : memory_(std::move(memory)) {}

  os::SharedMemory memory_;
};

}  // namespace verbena::sockets
