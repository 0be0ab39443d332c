#include "madservice/session.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <cstring>
#include <utility>
#include <vector>

#include "wire/mad.h"

namespace verbena::madservice {
namespace {

class SessionTest : public testing::Test, private Session::Owner {
 protected:
  void deliver(std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      session_.deliver({.status = next_number_++}, std::vector<std::byte>(wire::kMadBytes));
    }
  }

  asio::io_context loop_;
  std::pair<os::UnixChannel, os::UnixChannel> requests_ = os::UnixChannel::pair().value();
  Session session_{loop_, std::move(requests_.first), 1, *this};
  bool has_ended_ = false;

 private:
  bool on_message(Session&, std::span<const std::byte>, std::vector<os::Fd>) override {
    return true;
  }
  void on_sm_file(Session&, bool) override {}
  void on_session_end(Session&) override { has_ended_ = true; }

  std::uint32_t next_number_ = 0;  // the test checks the order of the MADs by this number
};

// A program that does not read its MADs must not exhaust the memory of the service.  Old versions
// of Linux do not limit the unread MADs.
TEST_F(SessionTest, QueueOfAProgramThatDoesNotReadIsLimited) {
  os::UnixChannel program = session_.open_mads().value();
  constexpr std::uint64_t kMadCount = Session::kQueueMax + 20'000;
  deliver(kMadCount);
  const std::uint64_t lost_mads = session_.lost_mads();
  EXPECT_GT(lost_mads, 0U);
  EXPECT_LT(lost_mads, 20'000U) << "the socket holds some MADs";
  std::vector<std::byte> buffer(ipc::umad::kMessageBytesMax);
  std::vector<os::Fd> fds;
  std::uint64_t read_count = 0;
  while (read_count < kMadCount - lost_mads) {
    const auto bytes = program.receive(buffer, fds);
    if (!bytes) {
      ASSERT_TRUE(os::would_block(bytes.error()));
      loop_.restart();
      ASSERT_GT(loop_.run_one(), 0U);
      continue;
    }
    ipc::umad::UserMad header;
    std::memcpy(&header, buffer.data(), ipc::umad::kUserMadBytes);
    ASSERT_EQ(header.status, read_count) << "MADs are delivered in order";
    ++read_count;
  }
  EXPECT_EQ(session_.lost_mads(), lost_mads);
  deliver(1);
  EXPECT_TRUE(program.receive(buffer, fds)) << "the queue accepts MADs again";
  EXPECT_FALSE(has_ended_);
}

// A program may watch the descriptor of an open port edge-triggered (EPOLLET).
TEST_F(SessionTest, EachMadWakesAnEdgeTriggeredWatcher) {
  const os::UnixChannel program = session_.open_mads().value();
  const os::Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {}};
  ASSERT_EQ(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, program.fd(), &event), 0);
  EXPECT_EQ(::epoll_wait(epoll.get(), &event, 1, 0), 0);
  for (int i = 0; i < 3; ++i) {
    deliver(1);
    EXPECT_EQ(::epoll_wait(epoll.get(), &event, 1, 0), 1) << "MAD " << i;
  }
}

}  // namespace
}  // namespace verbena::madservice
