#include "agent/agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <asio/io_context.hpp>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "agent/kernel_network.h"
#include "ipc/tool_messages.h"
#include "os/clock.h"
#include "os/process.h"

namespace verbena::agent {
namespace {

// Runs an agent in this thread.  The agent has no port and ends as soon as nobody needs it.
class AgentTest : public testing::Test {
 protected:
  explicit AgentTest(bool all_users = false) : all_users_(all_users) {
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    files.rlim_cur = std::min<rlim_t>(files.rlim_max, 8192);
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  }

  os::UnixChannel connect_program() { return connect(false); }
  os::UnixChannel connect_tool() { return connect(true); }
  os::UnixChannel connect(bool is_tool) {
    auto channel = os::UnixChannel::connect(name_, os::now() + kTimeout).value();
    greet(channel, is_tool);
    return channel;
  }
  void greet(os::UnixChannel& channel, bool is_tool) {
    const auto pidfd = os::open_pidfd(::getpid()).value();
    const std::array<int, 1> fds{pidfd.get()};
    const ipc::Hello hello{
        .build = "test", .pid = static_cast<std::uint32_t>(::getpid()), .tool = is_tool};
    EXPECT_TRUE(channel.send(ipc::encode(1, hello), fds).has_value());
    EXPECT_EQ(type_of_next_message(channel), ipc::Type::kWelcome);
  }
  // Returns the next message, if one comes.
  std::optional<ipc::Bytes> next_message(os::UnixChannel& channel) {
    std::vector<std::byte> buffer(ipc::kMessageBytesMax);
    std::vector<os::Fd> fds;
    for (const Time deadline = os::now() + kTimeout; os::now() < deadline;) {
      loop_.poll();
      const auto bytes = channel.receive(buffer, fds);
      if (!bytes && os::would_block(bytes.error()) && !loop_.stopped()) continue;
      if (!bytes || *bytes == 0) break;
      auto datagram = std::span<const std::byte>(buffer).first(*bytes);
      const auto message = ipc::take_message(datagram);
      if (!message || !ipc::open(*message)) break;
      return ipc::Bytes(message->begin(), message->end());
    }
    return std::nullopt;
  }
  std::optional<ipc::Type> type_of_next_message(os::UnixChannel& channel) {
    const auto message = next_message(channel);
    return message ? std::optional(ipc::open(*message)->type) : std::nullopt;
  }
  // Sends a request with a descriptor and returns the type of the reply.
  std::optional<ipc::Type> type_of_reply(os::UnixChannel& channel, const auto& request,
                                         const os::Fd& fd) {
    EXPECT_TRUE(channel.send(ipc::encode(2, request), std::array{fd.get()}).has_value());
    return type_of_next_message(channel);
  }
  // Sends a request and returns the text with which the agent refuses it.
  std::string refusal_of(os::UnixChannel& channel, const auto& request,
                         std::span<const int> fds = {}) {
    EXPECT_TRUE(channel.send(ipc::encode(2, request), fds).has_value());
    const auto message = next_message(channel);
    const auto done = message ? ipc::decode<ipc::Done>(*ipc::open(*message))
                              : fail(Errc::kMalformed, "no message");
    return done && done->failed ? done->text : "not refused";
  }

  static constexpr Duration kTimeout = std::chrono::seconds(10);
  static constexpr const char* kNoAddressOfThisHost = "192.0.2.1";

  const bool all_users_;
  const std::string name_ = fmt::format("verbena-agent-test-{}", ::getpid());
  asio::io_context loop_{1};
  Agent agent_{loop_, os::UnixListener::listen(name_).value(),
               std::make_unique<KernelNetwork>(loop_, parse_bind_address(kNoAddressOfThisHost)),
               Agent::Options{.build = "test", .idle = Duration{}, .all_users = all_users_}, Log()};
};

TEST_F(AgentTest, SilentConnectionsDoNotBlockPrograms) {
  const auto first_program = connect_program();  // so that the agent does not end
  std::vector<os::UnixChannel> silent;
  for (std::size_t i = 0; i < Agent::kClientsMax + Agent::kNewSessionsMax + 100; ++i) {
    auto channel = os::UnixChannel::connect(name_, os::now() + kTimeout);
    ASSERT_TRUE(channel.has_value()) << i;
    silent.push_back(std::move(*channel));
    loop_.poll();
  }
  const auto program = connect_program();
  EXPECT_TRUE(program);
}

TEST_F(AgentTest, EndsAfterTheLastProgram) {
  { const auto program = connect_program(); }
  loop_.run();
  EXPECT_TRUE(loop_.stopped());
  EXPECT_FALSE(os::UnixChannel::connect(name_, os::now()).has_value());
}

// A tool such as `verbena ps` connects before the last program ends, and sends its request after
// that.
TEST_F(AgentTest, AnswersConnectedToolBeforeAgentEnds) {
  os::UnixChannel tool;
  {
    const auto program = connect_program();
    tool = connect_tool();
  }
  loop_.run_for(std::chrono::milliseconds(20));
  ASSERT_FALSE(loop_.stopped());
  ASSERT_TRUE(tool.send(ipc::encode(2, ipc::Status{})).has_value());
  EXPECT_EQ(type_of_next_message(tool), ipc::Type::kStatusReply);
  tool.close();
  loop_.run();
  EXPECT_TRUE(loop_.stopped());
}

TEST_F(AgentTest, ConnectedToolDoesNotKeepTheAgentAlive) {
  os::UnixChannel tool;
  {
    const auto program = connect_program();
    tool = connect_tool();
  }
  loop_.run();
  EXPECT_FALSE(os::UnixChannel::connect(name_, os::now()).has_value());
}

// Makes a process that lives until end(), or as long as this object.
class ChildProcess {
 public:
  ChildProcess() : pid_(::fork()) {
    EXPECT_NE(pid_, -1) << "fork: errno " << errno;
    if (pid_ != 0) return;
    // If this test is killed, the child must not live on.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::pause();
    ::_exit(0);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess() { end(); }

  std::uint32_t pid() const { return static_cast<std::uint32_t>(pid_); }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_;
};

// `verbena run --sysfs` asks the agent for the files, and then becomes a program that may never use
// the agent.
TEST_F(AgentTest, EndsAfterTheLastProcessWithFilesOfThePort) {
  ChildProcess process;
  std::string directory = "/dev/shm/verbena_agent_test_XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const os::Fd port(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  auto tool = connect_tool();
  EXPECT_EQ(type_of_reply(tool, ipc::UpdatePortFiles{.pid = process.pid()}, port),
            ipc::Type::kDone);
  std::filesystem::remove_all(directory);
  tool.close();
  loop_.run_for(std::chrono::milliseconds(20));
  ASSERT_FALSE(loop_.stopped());
  process.end();
  loop_.run_for(kTimeout);
  EXPECT_TRUE(loop_.stopped());
}

TEST_F(AgentTest, EndsAfterTheLastProcessWithACapture) {
  ChildProcess process;
  const os::Fd file(::memfd_create("capture", MFD_CLOEXEC));
  auto tool = connect_tool();
  EXPECT_EQ(type_of_reply(tool, ipc::Capture{.pid = process.pid()}, file),
            ipc::Type::kCaptureStarted);
  tool.close();
  loop_.run_for(std::chrono::milliseconds(20));
  ASSERT_FALSE(loop_.stopped());
  process.end();
  loop_.run_for(kTimeout);
  EXPECT_TRUE(loop_.stopped());
}

class AgentForAllUsersTest : public AgentTest {
 protected:
  AgentForAllUsersTest() : AgentTest(true) {}

  // Connects as a tool of another user.  Returns a closed channel if this process may not do that.
  os::UnixChannel connect_guest() {
    constexpr uid_t kNobody = 65534;
    const uid_t own_user = ::geteuid();
    if (::seteuid(kNobody) != 0) return {};
    auto guest = os::UnixChannel::connect(name_, os::now() + kTimeout).value();
    EXPECT_EQ(::seteuid(own_user), 0);
    greet(guest, true);
    return guest;
  }
};

// Otherwise a program of another user could use up all captures and directories for ever, with
// process 1.
TEST_F(AgentForAllUsersTest, ProgramsOfOtherUsersNameOnlyTheirOwnProcess) {
  auto guest = connect_guest();
  if (!guest) GTEST_SKIP() << "this process may not change its user id";
  const os::Fd file(::memfd_create("capture", MFD_CLOEXEC));
  const std::array<int, 1> fds{file.get()};
  const std::string refusal = "a program of another user may only name its own process";
  EXPECT_EQ(refusal_of(guest, ipc::Capture{.pid = 1}, fds), refusal);
  EXPECT_EQ(refusal_of(guest, ipc::UpdatePortFiles{.pid = 1}, fds), refusal);
  const ipc::Capture own_capture{.pid = static_cast<std::uint32_t>(::getpid())};
  EXPECT_EQ(type_of_reply(guest, own_capture, file), ipc::Type::kCaptureStarted);
  auto tool = connect_tool();
  EXPECT_EQ(type_of_reply(tool, ipc::Capture{.pid = 1}, file), ipc::Type::kCaptureStarted);
}

TEST_F(AgentTest, OnlyToolsMayAskForTheStateOfTheSaClient) {
  auto program = connect_program();
  auto tool = connect_tool();
  for (const bool is_flush : {false, true}) {
    const auto ask = [&](os::UnixChannel& channel) {
      return is_flush ? refusal_of(channel, ipc::FlushSa{}) : refusal_of(channel, ipc::ShowSa{});
    };
    EXPECT_EQ(ask(program), "the agent does not accept this request here");
    EXPECT_EQ(ask(tool), "this host has no InfiniBand port, so it uses no subnet administration");
  }
}

}  // namespace
}  // namespace verbena::agent
