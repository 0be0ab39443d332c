#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fabric/sim_process.h"
#include "hca/types.h"

namespace verbena::fabric {

// Describes memory of the peer that this side may read and write.
struct RemoteMemory {
  std::uint64_t address = 0;
  std::uint32_t r_key = 0;
};

// Owns a program's end of a connection: a QP, registered memory, and the requests that were posted
// but have not completed.
//
// The memory has four areas of kSlots slots.  Receives use kIn.  SENDs and WRITEs take their data
// from kOut.  READs put the peer's data into kReadBack.  The peer reads and writes kExposed.
//
// Invariant: each request completes exactly once, in the order of its queue, and no request
// succeeds after another one has failed.  If this does not hold, the endpoint reports a violation.
class RcEndpoint {
 public:
  enum class Area : std::uint8_t { kIn, kOut, kReadBack, kExposed };
  static constexpr std::uint32_t kSlots = 24;
  static constexpr std::uint32_t kSlotBytes = 4096;
  static constexpr std::uint32_t kReceives = 4;  // the number of receives that are always posted

  // `number` identifies the endpoint within its program.  Each wr_id contains the number.
  RcEndpoint(SimProcess& sim_process, hca::PdHandle pd, std::uint32_t number);
  RcEndpoint(const RcEndpoint&) = delete;
  RcEndpoint& operator=(const RcEndpoint&) = delete;

  // Returns the parameters for creating the QP of this endpoint on a device.  The caller passes the
  // new QP to attach().
  hca::QpInit qp_init(hca::PdHandle pd, hca::CqHandle cq, std::uint8_t device) const;
  void attach(hca::QpHandle qp) { qp_ = qp; }
  hca::QpHandle qp() const { return qp_; }
  // Destroys the QP and deregisters the memory.  REQUIRES: all posted requests have completed.
  void close();

  std::span<std::byte> slot(Area area, std::uint32_t index);
  RemoteMemory exposed_memory() const;
  static std::uint64_t slot_address(std::uint64_t base, Area area, std::uint32_t index);

  void post_receives();
  void post_receive(std::uint32_t index);
  void post_send(std::uint32_t index, std::uint32_t bytes);
  // Posts a WRITE from slot `index` of kOut, or a READ into slot `index` of kReadBack.  The data of
  // the peer is in slot `remote_slot` of its kExposed.
  void post_rdma(hca::WrOpcode opcode, std::uint32_t index, std::uint32_t remote_slot,
                 std::uint32_t bytes, const RemoteMemory& memory);

  // Describes a completed request.
  struct CompletedRequest {
    hca::WrOpcode opcode{};  // the opcode of the posted request; unused for a receive
    bool is_receive = false;
    bool succeeded = false;
    std::uint32_t index = 0;
    std::uint32_t bytes = 0;  // for a receive, the length of the message
  };
  static std::uint32_t endpoint_of(std::uint64_t wr_id) {
    return static_cast<std::uint32_t>(wr_id >> 32);
  }
  // Removes and returns the posted request that has completed.  If this is not the oldest request
  // of its queue, reports a violation and returns nullopt.
  std::optional<CompletedRequest> find_completed(const hca::WorkCompletion& completion);
  bool is_drained() const { return sends_.empty() && receives_.empty(); }

  // fill() writes a pattern to a message, and is_filled() checks the pattern.  Each message has its
  // own salt, which determines the pattern.
  static void fill(std::span<std::byte> bytes, std::uint64_t salt);
  static bool is_filled(std::span<const std::byte> bytes, std::uint64_t salt);

 private:
  struct PostedRequest {
    std::uint64_t wr_id = 0;
    hca::WrOpcode opcode{};
    std::uint32_t index = 0;
    std::uint32_t bytes = 0;
  };
  void post(const hca::SendRequest& request, std::uint32_t index, std::uint32_t bytes);
  hca::Sge sge(Area area, std::uint32_t index, std::uint32_t bytes) const;

  SimProcess& sim_process_;
  std::uint32_t number_;
  std::vector<std::byte> memory_;
  hca::MrInfo region_{};
  hca::QpHandle qp_{};
  std::uint32_t next_wr_ = 0;
  std::deque<PostedRequest> sends_{};
  std::deque<PostedRequest> receives_{};
  bool failed_ = false;  // true after a request has failed, so all later requests must fail
};

}  // namespace verbena::fabric
