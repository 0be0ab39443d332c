#include "os/event_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <utility>

namespace verbena::os {
namespace {

bool readable(int fd) {
  const auto events = wait_for(fd, POLLIN, Time{});
  return events && (*events & POLLIN) != 0;
}

class WakeSocketTest : public testing::Test {
 protected:
  std::pair<WakeSocket, WakeSocket> ends_ = WakeSocket::create_pair().value();
  WakeSocket& one_ = ends_.first;
  WakeSocket& other_ = ends_.second;
};

TEST_F(WakeSocketTest, WakeMakesTheOtherEndReadableUntilClear) {
  one_.wake();
  one_.wake();
  EXPECT_TRUE(readable(other_.fd()));
  EXPECT_FALSE(readable(one_.fd()));
  other_.clear();
  EXPECT_FALSE(readable(other_.fd()));
  other_.wake();
  EXPECT_TRUE(readable(one_.fd()));
}

// With an eventfd, a hostile process could clear O_NONBLOCK and fill the count.
TEST_F(WakeSocketTest, TheOtherProcessCannotMakeACallWait) {
  ASSERT_EQ(::fcntl(one_.fd(), F_SETFL, 0), 0);
  ASSERT_EQ(::fcntl(other_.fd(), F_SETFL, 0), 0);
  for (int i = 0; i < 100'000; ++i) one_.wake();
  EXPECT_TRUE(readable(other_.fd()));
  other_.clear();
  EXPECT_FALSE(readable(other_.fd()));
}

TEST_F(WakeSocketTest, ClosingOneEndDoesNotMakeTheOtherReadable) {
  ASSERT_EQ(::shutdown(other_.fd(), SHUT_RDWR), 0);
  EXPECT_FALSE(readable(one_.fd()));
  other_.close();
  EXPECT_FALSE(readable(one_.fd()));
  one_.wake();
  one_.clear();
}

TEST_F(WakeSocketTest, OtherDescriptorsAreRefused) {
  EXPECT_TRUE(WakeSocket::adopt(duplicate_fd(one_.fd()).value()).has_value());
  EXPECT_EQ(WakeSocket::adopt(duplicate_fd(WakeFd::create()->fd()).value()).error().code,
            Errc::kMalformed);
  EXPECT_EQ(WakeSocket::adopt(Fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0))).error().code,
            Errc::kMalformed);
}

}  // namespace
}  // namespace verbena::os
