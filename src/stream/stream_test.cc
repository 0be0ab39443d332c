#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "stream/receiver.h"
#include "stream/sender.h"

namespace verbena::stream {
namespace {

constexpr std::size_t kRing = 64;

// Holds one direction with its two ends, and a TCP that delivers at once.
class StreamTest : public testing::Test {
 protected:
  void start(std::uint64_t tcp_bytes = 0) {
    sender_.start(tcp_bytes);
    receiver_.start(tcp_bytes, 0);
  }
  // Writes a text as a program's call would, and returns the way of its first bytes.
  WriteStep::Kind write(std::string_view text) {
    const WriteStep step = *sender_.write(std::as_bytes(std::span(text)));
    if (step.kind == WriteStep::Kind::kTcp) {
      tcp_ += text.substr(0, step.bytes);
      sender_.sent(std::min(step.bytes, text.size()));
    }
    return step.kind;
  }
  // Reads as a program's call that does not block, without withdrawing.
  std::string read(std::size_t bytes = 1000) {
    std::string got;
    while (got.size() < bytes) {
      std::string piece(bytes - got.size(), '\0');
      ReadStep step = *receiver_.read(std::as_writable_bytes(std::span(piece)));
      if (step.kind == ReadStep::Kind::kOpen) {
        step.bytes = *receiver_.queued_bound(tcp_.size());
        if (step.bytes == 0) break;
        step.kind = ReadStep::Kind::kTcp;
      }
      if (step.kind == ReadStep::Kind::kTcp) {
        piece = tcp_.substr(0, std::min(step.bytes, piece.size()));
        tcp_.erase(0, piece.size());
        receiver_.received(piece.size());
        if (piece.empty()) break;
      } else {
        piece.resize(step.bytes);
      }
      got += piece;
    }
    return got;
  }
  Direction& direction() { return *place_.direction; }

  alignas(64) std::array<std::byte, memory_bytes(kRing)> memory_{};
  Place place_ = *place_of(memory_, 1);
  Sender sender_{place_};
  Receiver receiver_{place_};
  std::string tcp_;
};

TEST_F(StreamTest, BytesGoThroughTheRingWhileTheReceiverPromises) {
  start();
  EXPECT_EQ(write("hello"), WriteStep::Kind::kCopied);
  EXPECT_EQ(read(), "hello");
  EXPECT_EQ(tcp_, "");
}

TEST_F(StreamTest, BytesGoByTcpBeforeTheReceiverHasStarted) {
  sender_.start(0);
  EXPECT_EQ(write("hello"), WriteStep::Kind::kTcp);
  EXPECT_EQ(tcp_, "hello");
}

}  // namespace
}  // namespace verbena::stream
