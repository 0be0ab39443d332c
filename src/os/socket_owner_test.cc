#include "os/socket_owner.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <vector>

#include "os/clock.h"
#include "os/unix_channel.h"

namespace verbena::os {
namespace {

constexpr uid_t kOtherUser = 12345;

std::string name_of_test() { return "verbena-owner-test-" + std::to_string(::getpid()); }

TEST(SocketOwner, IsTheUserWhoHasTheName) {
  EXPECT_EQ(find_name_owner(name_of_test()), std::nullopt);
  const auto listener = UnixListener::listen(name_of_test());
  ASSERT_TRUE(listener.has_value());
  EXPECT_EQ(find_name_owner(name_of_test()), std::optional(::geteuid()));
  EXPECT_FALSE(is_stranger(::geteuid()));
  EXPECT_FALSE(is_stranger(0));
}

// Runs a process of another user that takes a name, and whose backlog is full: it accepts nothing.
class Squatter {
 public:
  explicit Squatter(const std::string& name) {
    std::array<int, 2> ready{-1, -1};
    EXPECT_EQ(::pipe(ready.data()), 0);
    EXPECT_EQ(::pipe(stop_.data()), 0);
    pid_ = ::fork();
    if (pid_ == 0) run(name, ready[1]);
    ::close(ready[1]);
    ::close(stop_[0]);
    char byte = 0;
    has_name_ = ::read(ready[0], &byte, 1) == 1;
    ::close(ready[0]);
  }
  Squatter(const Squatter&) = delete;
  Squatter& operator=(const Squatter&) = delete;
  ~Squatter() {
    ::close(stop_[1]);
    ::waitpid(pid_, nullptr, 0);
  }
  bool has_name() const { return has_name_; }

 private:
  [[noreturn]] void run(const std::string& name, int ready) {
    ::close(stop_[1]);
    char byte = 'x';
    if (::setresuid(kOtherUser, kOtherUser, kOtherUser) != 0) ::_exit(1);
    const auto listener = UnixListener::listen(name);
    std::vector<UnixChannel> waiting;
    for (;;) {
      auto channel = UnixChannel::connect(name, now() + std::chrono::milliseconds(1));
      if (!channel) break;
      waiting.push_back(std::move(*channel));
    }
    if (listener && ::write(ready, &byte, 1) == 1) (void)!::read(stop_[0], &byte, 1);
    ::_exit(0);
  }

  std::array<int, 2> stop_{-1, -1};
  pid_t pid_ = -1;
  bool has_name_ = false;
};

TEST(SocketOwner, NobodyWaitsForAStrangerWithAFullBacklog) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can run a process of another user";
  const Squatter squatter(name_of_test());
  ASSERT_TRUE(squatter.has_name());
  EXPECT_EQ(find_name_owner(name_of_test()), std::optional(kOtherUser));
  const Time before = now();
  const auto channel = UnixChannel::connect(name_of_test(), before + std::chrono::seconds(10));
  ASSERT_FALSE(channel.has_value());
  EXPECT_EQ(channel.error().code, Errc::kPermission);
  EXPECT_LT(now() - before, std::chrono::seconds(5));
}

}  // namespace
}  // namespace verbena::os
