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
// The memory has four areas of kSlots slots: kIn for receives, kOut for data to send or write,
// kReadBack for data read from the peer, kExposed for the peer to read and write.
//
// Invariant: each request completes exactly once, in the order of its queue, and fails only after
// the connection is broken.  If that does not hold, the endpoint reports a violation.
class RcEndpoint {
 public:
  enum class Area : std::uint8_t { kIn, kOut, kReadBack, kExposed };
  static constexpr std::uint32_t kSlots = 24;
  static constexpr std::uint32_t kSlotBytes = 4096;
  static constexpr std::uint32_t kReceives = 4;  // this number of receives is always posted

  // `number` identifies the endpoint within its program; wr_ids contain it.
  RcEndpoint(SimProcess& sim_process, hca::PdHandle pd, std::uint32_t number);
  RcEndpoint(const RcEndpoint&) = delete;
  RcEndpoint& operator=(const RcEndpoint&) = delete;

  // Returns the parameters of its QP on the device.  Call attach() when the QP is created.
  hca::QpInit qp_init(hca::PdHandle pd, hca::CqHandle cq, std::uint8_t device) const;
  void attach(hca::QpHandle qp) { qp_ = qp; }
  hca::QpHandle qp() const { return qp_; }
  // Frees the QP and the memory.  REQUIRES: all posted requests have completed.
  void close();

  std::span<std::byte> slot(Area area, std::uint32_t index);
  RemoteMemory exposed_memory() const;
  static std::uint64_t slot_address(std::uint64_t base, Area area, std::uint32_t index);

  void post_receives();
  void post_receive(std::uint32_t index);
  void post_send(std::uint32_t index, std::uint32_t bytes);
  // Transfers between slot `index` of kOut or kReadBack here and slot `remote` of the peer's
  // kExposed.
  void post_rdma(hca::WrOpcode opcode, std::uint32_t index, std::uint32_t remote,
                 std::uint32_t bytes, const RemoteMemory& memory);

  // Describes a completed request.
  struct CompletedRequest {
    hca::WrOpcode opcode{};  // of the posted request; receives have none
    bool is_receive = false;
    bool succeeded = false;
    std::uint32_t index = 0;
    std::uint32_t bytes = 0;  // for a receive, the length of the message
  };
  static std::uint32_t endpoint_of(std::uint64_t wr_id) {
    return static_cast<std::uint32_t>(wr_id >> 32);
  }
  // Finds and removes the request that has completed.  If there is none, reports a violation and
  // returns nothing.
  std::optional<CompletedRequest> find_completed(const hca::WorkCompletion& completion);
  bool drained() const { return sends_.empty() && receives_.empty(); }

  // Fills a message with a pattern, or checks for it.  The salt differs for each message.
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
  bool failed_ = false;  // a request has failed, so all later ones must fail
};

}  // namespace verbena::fabric
