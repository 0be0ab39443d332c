#include "sockets/session.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <asio/io_context.hpp>
#include <cstddef>
#include <utility>
#include <vector>

namespace verbena::sockets {
namespace {

// Makes a session whose other end belongs to the test.  The test is the owner and counts the calls.
class SessionTest : public testing::Test, public Session::Owner {
 protected:
  void on_message(Session&, std::span<const std::byte>, std::vector<os::Fd>) override {
    ++message_count_;
  }
  void on_messages_end() override { ++wakeup_count_; }
  void on_session_end(Session&) override { ++end_count_; }

  // Limits how much the session can send before the test receives, whatever the system's default
  // is.
  static os::UnixChannel with_small_buffer(os::UnixChannel end) {
    const int bytes = 65536;
    EXPECT_EQ(::setsockopt(end.fd(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes), 0);
    return end;
  }
  // Runs so few handlers that the test also ends if there is always another one.
  void run() {
    loop_.restart();
    for (int i = 0; i < 100; ++i) loop_.poll_one();
  }
  bool send_to_session() { return peer_.send(broker::bytes_of(broker::List{})).has_value(); }
  std::size_t receive_all() {
    std::array<std::byte, broker::kMessageBytesMax> buffer;
    std::vector<os::Fd> fds;
    std::size_t count = 0;
    while (peer_.receive(buffer, fds).value_or(0) > 0) ++count;
    return count;
  }

  asio::io_context loop_{1};
  std::pair<os::UnixChannel, os::UnixChannel> ends_ = os::UnixChannel::pair().value();
  os::UnixChannel peer_ = std::move(ends_.second);
  Session session_{loop_, with_small_buffer(std::move(ends_.first)), 1, *this};
  std::size_t message_count_ = 0;
  std::size_t wakeup_count_ = 0;
  std::size_t end_count_ = 0;
};

TEST_F(SessionTest, FinishSendsTheQueueAndReadsNoMoreMessages) {
  constexpr std::size_t kSent = 5000;  // more than the socket can hold
  for (std::size_t i = 0; i < kSent; ++i) session_.send(broker::List{});
  session_.finish();
  ASSERT_TRUE(send_to_session());
  run();
  EXPECT_EQ(end_count_, 0u);
  EXPECT_EQ(message_count_, 0u);
  EXPECT_EQ(wakeup_count_, 0u) << "the unread message wakes the event loop again and again";
  std::size_t received_count = receive_all();
  EXPECT_LT(received_count, kSent);
  for (int turn = 0; turn < 50 && end_count_ == 0; ++turn) {
    run();
    received_count += receive_all();
  }
  EXPECT_EQ(received_count, kSent);
  EXPECT_EQ(end_count_, 1u);
}

TEST_F(SessionTest, FinishWithoutAQueueEndsTheSession) {
  session_.finish();
  EXPECT_EQ(end_count_, 0u) << "on_session_end() is never called from inside finish()";
  run();
  EXPECT_EQ(end_count_, 1u);
}

}  // namespace
}  // namespace verbena::sockets
