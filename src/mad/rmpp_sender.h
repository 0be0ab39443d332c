#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mad/mad.h"

namespace verbena::mad {

// Splits one message into segments, and decides which may be sent (vol1 13.6.3.1).
//
// A segment repeats the headers of the message.  The receiver opens a window with its ACKs; before
// the first ACK one segment may be sent.  The owner sends the segments, and runs the timers.
class RmppSender {
 public:
  // REQUIRES: `header_bytes` is the length of all headers of the message's class, and `message` is
  // at least that long.
  RmppSender(std::vector<std::byte> message, std::size_t header_bytes);

  bool is_complete() const { return acknowledged_ == segment_count_; }

  bool may_send() const { return sent_ < window_ && sent_ < segment_count_; }
  // REQUIRES: may_send().
  Mad next_segment();

  enum class Ack {
    kOld,        // changes nothing
    kProgress,   // acknowledges more segments, or opens the window further
    kComplete,   // acknowledges the last segment
    kBadWindow,  // the window ends before the acknowledged segment
    kBeyond,     // acknowledges a segment beyond the window or the message
  };
  Ack acknowledge(std::uint32_t segment, std::uint32_t window);
  // Makes next_segment() continue from the first segment that is not acknowledged.
  void rewind() { sent_ = acknowledged_; }

  // Returns the bytes of all headers.
  std::vector<std::byte> headers() const;

 private:
  std::vector<std::byte> message_;
  std::size_t header_bytes_;
  std::uint32_t segment_count_ = 1;
  std::uint32_t sent_ = 0;          // the number of the last segment that was sent
  std::uint32_t acknowledged_ = 0;  // the number of the last segment that was acknowledged
  std::uint32_t window_ = 1;        // the number of the last segment that may be sent
};

}  // namespace verbena::mad
