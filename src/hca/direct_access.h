#pragma once

#include <cstddef>
#include <cstdint>

#include "hca/qp_core.h"
#include "hca/short_writes.h"
#include "hca/work_queue.h"
#include "link/access_grant.h"

namespace verbena::hca {

// Carries out WRITEs and READs of one RC QP directly, in the memory of the process at the other end
// of a lane (link/peer_memory.h), so that the target need not run.
//
// The owner, the requester, calls it only while all earlier requests of the QP are complete.  A
// long request takes several calls, and each checks the target's rights again, so that nobody waits
// long for the end of an access.
//
// A WRITE with immediate data is copied here except for its last packet, which the target needs to
// consume a receive request.
//
// Whatever cannot be carried out here goes as packets, also after a part was copied.  That has the
// effect of a retransmission, and the responder reports the error.
class DirectAccess {
 public:
  enum class Outcome : std::uint8_t {
    kDone,
    kMore,     // call again for the rest
    kNoRoom,   // the lane is full
    kRefused,  // send packets
  };
  // Limits the bytes of one call.
  static constexpr std::uint32_t kBytesMax = 256 * 1024;
  // A longer request waits until the requests before it are complete.  For a shorter one, waiting
  // would cost more than sending packets.
  static constexpr std::uint32_t kBytesWorthWaiting = 32 * 1024;
  // A shorter WRITE with immediate data goes as packets, because the target has to run anyway.
  static constexpr std::uint32_t kImmediateBytesMin = 16 * 1024;
  // Packets carry streams of shorter WRITEs at a higher rate (short_writes.h).  ib_write_bw
  // measures this: as packets and as direct accesses, 4 KiB go at 6.1 and 3.8 GB/s, and 8 KiB
  // at 7.4 and 7.0.
  static constexpr std::uint32_t kShortWriteBytes = 8192;

  explicit DirectAccess(QpCore& core) : core_(core) {}

  // Starts with a new connection.
  void start();
  // Returns true if the request is of a kind that can be carried out here, and the lane allows it.
  bool suits(const SendWqe& wqe) const;
  // Returns true unless packets would be better for the request.  REQUIRES: all earlier requests
  // are complete.
  bool is_better(const SendWqe& wqe) const {
    return !is_short_write(wqe) || !short_writes_.is_stream(program_has_looked());
  }
  // Returns true if the request should wait for the completion of earlier ones.  One with immediate
  // data is complete only after a round trip, so a stream of those would wait each time.
  bool is_worth_waiting(const SendWqe& wqe) const {
    return wqe.length >= kBytesWorthWaiting && packets_instead_ == 0 &&
           wqe.opcode != WrOpcode::kWriteImm;
  }
  // Carries out the request, or a part of it, in place of `psns` packets, of which the first one
  // would have the PSN `first`.  These are all packets, but for a WRITE with immediate data all
  // except the last.  REQUIRES: suits(wqe).
  Outcome carry_out(const SendWqe& wqe, Psn first, std::uint32_t psns);
  // Notes that a request goes as packets, perhaps after a part of it was copied.
  void sent_as_packets(const SendWqe& wqe) {
    copied_ = 0;
    if (!has_peer()) return;
    packets_instead_ -= packets_instead_ == 0 ? 0 : 1;
    started(wqe);
  }

 private:
  struct Parts;
  // Returns true if there is a process whose memory may be accessible.
  bool has_peer() const { return core_.lane != nullptr && core_.lane->peer_memory() != nullptr; }
  static bool is_short_write(const SendWqe& wqe) {
    return wqe.opcode == WrOpcode::kWrite && wqe.length < kShortWriteBytes;
  }
  bool program_has_looked() const { return core_.send_cq.emptied_since(last_short_write_); }
  void started(const SendWqe& wqe);
  bool find_parts(const SendWqe& wqe, std::uint32_t bytes, Parts& parts) const;
  link::AccessRequest request(const SendWqe& wqe, Psn first, std::uint32_t psns) const;
  Outcome refuse();

  QpCore& core_;
  std::uint64_t generation_ = 0;  // of the target's connection; 0: unknown
  std::uint32_t copied_ = 0;      // bytes of the current request
  ShortWrites short_writes_{};
  std::uint32_t last_short_write_ = 0;  // CompletionQueue::mark()
  // Counts down after a refusal, which often means that all requests will be refused.
  std::uint32_t packets_instead_ = 0;
};

}  // namespace verbena::hca
