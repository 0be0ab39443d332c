#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "base/random.h"
#include "base/time.h"
#include "hca/engine.h"
#include "link/burst.h"
#include "link/framing.h"
#include "mad/mad.h"

namespace verbena::node {

// Owns QP1 of all ports, the general service interface (vol1 13.5.1).  It is one UD queue pair in
// an engine of its own, with receives always posted.  The address of a MAD names the port.
//
// receive() returns at most one MAD for each packet.  transmit() turns queued MADs into packets.
// Queued REQs, SIDR_REQs and LAPs are overtaken by all other queued MADs, so that a REP never waits
// behind many REQs.
class GeneralServices {
 public:
  static constexpr std::uint32_t kPostedReceives = 8;  // used receives are posted again at once
  static constexpr std::uint32_t kSends = 8192;        // limits MADs that are queued or posted
  // Limits posted MADs, because queued MADs cannot overtake them.
  static constexpr std::uint32_t kPostedSendsMax = 64;

  explicit GeneralServices(Random random);

  void set_pkeys(PortId port, std::span<const Pkey> pkeys);
  // Returns the MAD in the packet, if the packet is for QP1.  The MAD is valid until the next call.
  std::optional<std::span<const std::byte>> receive(const link::Arrival& arrival, Time now);
  // Queues a MAD for transmit().  If kSends MADs are queued or posted, drops and counts the MAD.
  void send(const mad::SendMad& mad, Time now);
  // Adds packets to the burst.  Returns true if MADs remain.
  bool transmit(link::Burst& burst, Time now);

  std::uint64_t sends_dropped() const { return sends_dropped_; }
  hca::Counters counters() const { return engine_.counters(); }

 private:
  // All sends have this wr_id.  The wr_id of a receive is the number of its buffer, which is less
  // than kSendId.
  static constexpr std::uint64_t kSendId = kPostedReceives;
  static constexpr std::size_t kGrhBytes = 40;
  static constexpr std::size_t kBufferBytes = kGrhBytes + 256;

  void post_receive(std::uint64_t slot);
  void post(const mad::SendMad& mad);
  void post_waiting();
  std::size_t waiting() const { return replies_.size() + new_exchanges_.size(); }
  std::optional<std::span<const std::byte>> poll_completions();

  hca::Engine engine_;
  std::unique_ptr<std::byte[]> buffers_;
  std::uint32_t lkey_ = 0;
  hca::PdHandle pd_{};
  hca::CqHandle cq_{};
  hca::QpHandle qp_{};
  std::uint32_t posted_ = 0;
  std::deque<mad::SendMad> replies_{};        // has all queued MADs that are not in new_exchanges_
  std::deque<mad::SendMad> new_exchanges_{};  // has the queued REQs, SIDR_REQs and LAPs
  std::uint64_t sends_dropped_ = 0;
};

}  // namespace verbena::node
