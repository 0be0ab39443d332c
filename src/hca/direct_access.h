#pragma once

#include <cstddef>
#include <cstdint>

#include "hca/qp_core.h"
#include "hca/short_writes.h"
#include "hca/work_queue.h"
#include "link/access_grant.h"

namespace verbena::hca {

// Carries out WRITEs and READs of one RC QP directly, in the memory of the process at the other end
// of a lane (link/peer_memory.h), so that the target process need not run.
//
// The owner, the requester, calls carry_out() only while all earlier requests of the QP are
// complete.  A long request takes several calls.  Each call checks the QP's rights again, so that a
// target that revokes a right does not wait long for the end of an access.
//
// A WRITE with immediate data is copied here except for its last packet, which the target needs to
// consume a receive request.
//
// A request that cannot be carried out here is sent as packets, even if a part of it was copied
// already.  The packets then copy this part again, as a retransmission would, and the responder
// reports the errors.
class DirectAccess {
 public:
  enum class Outcome : std::uint8_t {
    kDone,      // done, except for the last packet of a WRITE with immediate data
    kMore,      // a part is done; call again for the rest
    kLaneFull,  // the lane is full
    kRefused,   // the caller must send packets
  };
  // Limits the bytes of one call.
  static constexpr std::uint32_t kBytesMax = 256 * 1024;
  // A request of at least this length waits until the requests before it are complete.  For a
  // shorter request, waiting would cost more than sending packets.
  static constexpr std::uint32_t kBytesWorthWaiting = 32 * 1024;
  // A WRITE with immediate data that is shorter than this is sent as packets, because the target
  // has to run anyway.
  static constexpr std::uint32_t kImmediateBytesMin = 16 * 1024;
  // A stream of WRITEs is faster as packets if the WRITEs are shorter than this (short_writes.h).
  // ib_write_bw measured WRITEs of 4 KiB at 6.1 GB/s as packets and at 3.8 GB/s as direct accesses.
  // WRITEs of 8 KiB reached 7.4 GB/s as packets and 7.0 GB/s as direct accesses.
  static constexpr std::uint32_t kShortWriteBytes = 8192;

  explicit DirectAccess(QpCore& core) : core_(core) {}

  // Resets the state for a new connection.
  void start();
  // Returns true if the kind and the length of the request are suitable, the QP cannot migrate, and
  // the peer allows accesses.
  bool can_carry_out(const SendWqe& wqe) const;
  // Returns true unless packets would be better for the request.  REQUIRES: all earlier requests
  // are complete.
  bool is_better_than_packets(const SendWqe& wqe) const {
    return !is_short_write(wqe) || !short_writes_.is_stream(program_has_emptied_cq());
  }
  // Returns true if the request should wait until the earlier requests are complete.  A WRITE with
  // immediate data should not wait.  Such a WRITE is complete only after a round trip, so each
  // request of a stream would wait for a round trip.
  bool is_worth_waiting_for(const SendWqe& wqe) const {
    return wqe.length >= kBytesWorthWaiting && requests_not_to_wait_ == 0 &&
           wqe.opcode != WrOpcode::kWriteImm;
  }
  // Carries out the request, or its next part, in place of `psns` packets from the PSN `first` on.
  // `psns` counts all packets of the request, except for the last packet of a WRITE with immediate
  // data.  REQUIRES: can_carry_out(wqe).
  Outcome carry_out(const SendWqe& wqe, Psn first, std::uint32_t psns);
  // Notes that a request is sent as packets, perhaps after a part of it was copied.
  void note_sent_as_packets(const SendWqe& wqe) {
    copied_bytes_ = 0;
    if (!has_peer()) return;
    requests_not_to_wait_ -= requests_not_to_wait_ == 0 ? 0 : 1;
    note_started(wqe);
  }

 private:
  struct Parts;
  // Returns true if the lane leads to a process whose memory may be accessible.
  bool has_peer() const { return core_.lane != nullptr && core_.lane->peer_memory() != nullptr; }
  static bool is_short_write(const SendWqe& wqe) {
    return wqe.opcode == WrOpcode::kWrite && wqe.length < kShortWriteBytes;
  }
  bool program_has_emptied_cq() const {
    return core_.send_cq.was_emptied_since(last_short_write_epoch_);
  }
  void note_started(const SendWqe& wqe);
  bool find_parts(const SendWqe& wqe, std::uint32_t bytes, Parts& parts) const;
  link::AccessRequest make_request(const SendWqe& wqe, Psn first, std::uint32_t psns) const;
  Outcome refuse();

  QpCore& core_;
  std::uint64_t generation_ = 0;    // the generation of the last AccessGrant; 0: unknown
  std::uint32_t copied_bytes_ = 0;  // bytes of the current request that are copied
  ShortWrites short_writes_{};
  std::uint32_t last_short_write_epoch_ = 0;  // the epoch that the last short WRITE has started
  // After a refusal, this number of requests do not wait for earlier requests in order to become
  // direct accesses, because later requests are often refused as well.
  std::uint32_t requests_not_to_wait_ = 0;
};

}  // namespace verbena::hca
