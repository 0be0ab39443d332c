#include "agent/kernel_network.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <asio/io_context.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "os/test_process.h"

namespace verbena::agent {
namespace {

// Ignores all reports of a network.
class IdleUser final : public Network::User {
 public:
  explicit IdleUser(asio::io_context& loop)
      : captures_(loop, Random(1), [](const std::string&) {}) {}

  void addresses_changed(const std::vector<node::HostAddress>&) override {}
  void port_changed(const std::optional<std::string>&, const ipc::Reach&) override {}
  void port_state_changed(PortId, const node::PortState&) override {}
  void arrived(std::span<const link::Arrival>) override {}
  void on_route(std::uint64_t, const Result<node::HostRoute>&) override {}
  void notify_user(node::ClientId, const std::string&) override {}
  Captures& captures() override { return captures_; }
  void log(std::string_view) override {}

 private:
  Captures captures_;
};

// Allows or forbids this process to open further descriptors.
void allow_descriptors(bool allowed) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = allowed ? files.rlim_max : 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
}

// With a socket of the port, a program of another user could take the packets of all programs.
TEST(KernelNetwork, ProgramOfAnotherUserGetsNoSocketsEvenIfItsUplinkFails) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UndefinedBehaviorSanitizer itself needs descriptors";
#endif
  os::in_network_namespace([] {
    asio::io_context loop{1};
    IdleUser user(loop);
    KernelNetwork network(loop, std::nullopt);
    network.open(user);
    ASSERT_TRUE(network.has_roce_port()) << network.state();
    Random random(1);
    const auto range = network.lease(random, {.sockets = true});
    ASSERT_TRUE(range.has_value());
    EXPECT_FALSE(network.sockets_of(*range).empty());
    allow_descriptors(false);
    EXPECT_FALSE(network.attach(1, *range, std::nullopt).has_value());
    EXPECT_TRUE(network.sockets_of(*range).empty());
    allow_descriptors(true);
    network.close();
  });
}

}  // namespace
}  // namespace verbena::agent
