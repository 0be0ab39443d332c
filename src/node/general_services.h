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

// QP1 of the port: a UD queue pair of an engine of its own, with receives always posted
// (vol1 13.5.1, general service interface).
//
// A packet in gives at most one MAD, in the same call; a MAD out is a packet of the next
// transmit().  When more wait than the network takes, what peers wait for goes before what begins
// something new: a REP is never behind many REQs.
class GeneralServices {
 public:
  static constexpr std::uint32_t kReceives = 8;      // each packet's is posted again at once
  static constexpr std::uint32_t kSends = 8192;      // not yet transmitted; beyond is as if lost
  static constexpr std::uint32_t kInQueuePair = 64;  // of these; nothing overtakes them

  explicit GeneralServices(Random random);

  // The MAD in the packet, if it was one for QP1; valid until the next call.
  std::optional<std::span<const std::byte>> receive(const link::Arrival& arrival, Time now);
  void send(const mad::SendMad& mad, Time now);
  bool transmit(link::Burst& burst, Time now);

  std::uint64_t sends_dropped() const { return sends_dropped_; }
  hca::Counters counters() const { return engine_.counters(); }

 private:
  static constexpr std::uint64_t kSendId = kReceives;  // receives have their slot's number
  static constexpr std::size_t kGrhBytes = 40;
  static constexpr std::size_t kBufferBytes = kGrhBytes + 256;

  void post_receive(std::uint64_t slot);
  void post(const mad::SendMad& mad);
  void post_waiting();
  std::size_t waiting() const { return answers_.size() + questions_.size(); }
  std::optional<std::span<const std::byte>> take();

  hca::Engine engine_;
  std::unique_ptr<std::byte[]> buffers_;
  std::uint32_t lkey_ = 0;
  hca::PdHandle pd_{};
  hca::CqHandle cq_{};
  hca::QpHandle qp_{};
  std::uint32_t in_queue_pair_ = 0;
  std::deque<mad::SendMad> answers_{};
  std::deque<mad::SendMad> questions_{};
  std::uint64_t sends_dropped_ = 0;
};

}  // namespace verbena::node
