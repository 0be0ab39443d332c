#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fabric/seat.h"
#include "hca/types.h"

namespace verbena::fabric {

// Memory of the peer that it lets us read and write.
struct RemoteMemory {
  std::uint64_t address = 0;
  std::uint32_t r_key = 0;
};

// One end of a connection as a program has it: a QP, registered memory, and what was posted and is
// not completed yet.
//
// The memory is four areas of kSlots slots: kIn for receives, kOut for what is sent or written,
// kBack for what is read, kOpen for the peer.
//
// Invariant, complained of when broken: each request completes exactly once, in the order of its
// queue, and in an error only after the connection is broken.
class Line {
 public:
  enum class Area : std::uint8_t { kIn, kOut, kBack, kOpen };
  static constexpr std::uint32_t kSlots = 24;
  static constexpr std::uint32_t kSlotBytes = 4096;
  static constexpr std::uint32_t kReceives = 4;  // always posted

  // `number` of the line in its program: wr_ids name it.
  Line(Seat& seat, hca::PdHandle pd, std::uint32_t number);
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  // The QP for it; attach() once it is there.
  hca::QpInit qp_init(hca::PdHandle pd, hca::CqHandle cq) const;
  void attach(hca::QpHandle qp) { qp_ = qp; }
  hca::QpHandle qp() const { return qp_; }
  // REQUIRES: all that was posted has completed.
  void close();

  std::span<std::byte> slot(Area area, std::uint32_t index);
  RemoteMemory open_memory() const;
  static std::uint64_t slot_address(std::uint64_t base, Area area, std::uint32_t index);

  void post_receives();
  void post_receive(std::uint32_t index);
  void post_send(std::uint32_t index, std::uint32_t bytes);
  // Between slot `index` of kOut or kBack here and slot `remote` of kOpen there.
  void post_rdma(hca::WrOpcode opcode, std::uint32_t index, std::uint32_t remote,
                 std::uint32_t bytes, const RemoteMemory& memory);

  // Completions of this line come here.
  struct Done {
    hca::WrOpcode opcode{};  // of what was posted; receives have none
    bool receive = false;
    bool good = false;
    std::uint32_t index = 0;
    std::uint32_t bytes = 0;  // of a receive: how many came
  };
  static std::uint32_t line_of(std::uint64_t wr_id) {
    return static_cast<std::uint32_t>(wr_id >> 32);
  }
  std::optional<Done> take(const hca::WorkCompletion& completion);
  bool drained() const { return sends_.empty() && receives_.empty(); }

  // Bytes that tell which message they are of.
  static void fill(std::span<std::byte> bytes, std::uint64_t salt);
  static bool is_filled(std::span<const std::byte> bytes, std::uint64_t salt);

 private:
  struct Posted {
    std::uint64_t wr_id = 0;
    hca::WrOpcode opcode{};
    std::uint32_t index = 0;
    std::uint32_t bytes = 0;
  };
  void post(const hca::SendRequest& request, std::uint32_t index, std::uint32_t bytes);
  hca::Sge sge(Area area, std::uint32_t index, std::uint32_t bytes) const;

  Seat& seat_;
  std::uint32_t number_;
  std::vector<std::byte> memory_;
  hca::MrInfo region_{};
  hca::QpHandle qp_{};
  std::uint32_t next_wr_ = 0;
  std::deque<Posted> sends_{};
  std::deque<Posted> receives_{};
  bool failed_ = false;  // one completed with an error: so do all that follow
};

}  // namespace verbena::fabric
