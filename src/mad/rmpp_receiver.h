#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "mad/mad.h"
#include "wire/rmpp.h"

namespace verbena::mad {

// Joins the segments of one message (vol1 13.6.3.2).  Segments may arrive in any order within the
// window, and more than once.  Storing a segment takes the same time in any order.
class RmppReceiver {
 public:
  // Limits how many segments a sender may send beyond those that the last ACK acknowledges.
  static constexpr std::uint32_t kWindow = 64;

  // REQUIRES: the owner passes all segments of one message to accept(), beginning with the first.
  RmppReceiver(std::size_t header_bytes, std::size_t message_bytes_max)
      : header_bytes_(header_bytes), bytes_max_(message_bytes_max) {}

  enum class Outcome {
    kStored,    // the owner has nothing to do
    kDropped,   // the number of the segment is 0, or beyond the window or the end
    kAck,       // an ACK has to be sent: the window is used up, or an old segment was repeated
    kComplete,  // an ACK has to be sent, and take_message() gives the message
    kTooLong,   // the message has more than `message_bytes_max` bytes
  };
  Outcome accept(const wire::RmppHeader& header, std::span<const std::byte, wire::kMadBytes> mad);

  bool is_complete() const { return complete_; }
  // These return the values for an ACK: the last segment before the first gap, and the last segment
  // that the sender may send.
  std::uint32_t last_contiguous_segment() const { return received_; }
  std::uint32_t window() const { return window_; }
  std::size_t memory_bytes() const { return message_.capacity(); }

  // Returns the message: the headers of the first segment, and the data of all segments.  REQUIRES:
  // is_complete().
  std::vector<std::byte> take_message();

 private:
  std::size_t data_bytes() const { return wire::kMadBytes - header_bytes_; }
  bool store(std::uint32_t segment, std::span<const std::byte, wire::kMadBytes> mad);

  std::vector<std::byte> message_{};
  std::size_t header_bytes_;
  std::size_t bytes_max_;
  std::uint32_t received_ = 0;       // all segments up to this number have arrived
  std::uint64_t ahead_ = 0;          // bit i: segment received_ + 1 + i has arrived
  std::uint32_t window_ = 1;         // the last segment that may arrive
  std::uint32_t final_segment_ = 0;  // the number of the last segment, once it has arrived
  std::size_t last_data_bytes_ = 0;  // the length of the last segment's data
  bool complete_ = false;
};

}  // namespace verbena::mad
