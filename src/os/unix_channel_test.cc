#include "os/unix_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <numeric>
#include <string>

#include "gtest/gtest.h"
#include "os/clock.h"
#include "os/event_fd.h"
#include "os/process.h"
#include "os/test_process.h"

namespace verbena::os {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::string test_name(const char* suffix) {
  return "verbena-os-test-" + std::to_string(::getpid()) + suffix;
}
std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

struct Receiver {
  std::vector<std::byte> buffer = std::vector<std::byte>(kMessageBytesMax);
  std::vector<Fd> fds;

  Result<std::string> receive(UnixChannel& channel, Time deadline = kNoWait) {
    const std::size_t n = VB_TRY(channel.receive(buffer, fds, deadline));
    return std::string(reinterpret_cast<const char*>(buffer.data()), n);
  }
};

int open_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

TEST(UnixChannel, CarriesMessagesAndDescriptors) {
  auto listener = UnixListener::listen(test_name("a"));
  ASSERT_TRUE(listener.has_value());
  EXPECT_TRUE(would_block(listener->accept().error()));
  UnixChannel client = *UnixChannel::connect(test_name("a"), now() + seconds(5));
  UnixChannel server = *listener->accept();

  EventFd event = *EventFd::create();
  const int passed_fd = event.fd();
  ASSERT_TRUE(client.send(bytes_of("hello"), {&passed_fd, 1}).has_value());
  ASSERT_TRUE(client.send(bytes_of("again")).has_value());

  Receiver in;
  EXPECT_EQ(in.receive(server).value(), "hello");
  ASSERT_EQ(in.fds.size(), 1u);
  EXPECT_NE(::fcntl(in.fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  event.post();
  EXPECT_EQ(*wait_for(in.fds[0].get(), POLLIN, Time{}), POLLIN);

  EXPECT_EQ(in.receive(server).value(), "again");
  EXPECT_TRUE(in.fds.empty());
  EXPECT_TRUE(would_block(in.receive(server).error()));
  EXPECT_EQ(in.receive(server, now() + milliseconds(5)).error().code, Errc::kTimedOut);
}

TEST(UnixChannel, ReportsThatNobodyListensOrThatTheNameIsTaken) {
  EXPECT_EQ(UnixChannel::connect(test_name("b"), kNever).error().code, Errc::kUnreachable);
  auto listener = UnixListener::listen(test_name("b"));
  EXPECT_EQ(UnixListener::listen(test_name("b")).error().code, Errc::kAddressInUse);
  EXPECT_EQ(UnixChannel::connect(std::string(108, 'x'), kNever).error().code,
            Errc::kInvalidArgument);
}

TEST(UnixChannel, ReportsTheProcessAtTheOtherEnd) {
  auto listener = UnixListener::listen(test_name("c"));
  UnixChannel client = *UnixChannel::connect(test_name("c"), kNever);
  UnixChannel server = *listener->accept();
  for (UnixChannel* end : {&client, &server}) {
    const Peer peer = *end->peer();
    EXPECT_EQ(peer.pid, ::getpid());
    EXPECT_EQ(peer.uid, ::geteuid());
    EXPECT_EQ(peer.gid, ::getegid());
    EXPECT_TRUE(end->check_peer_uid(::geteuid()).has_value());
    EXPECT_EQ(end->check_peer_uid(::geteuid() + 1).error().code, Errc::kPermission);
    EXPECT_EQ(pid_of_pidfd(end->peer_pidfd()->get()).value(), ::getpid());
  }
}

TEST(UnixChannel, PeerPidfdBecomesReadableWhenThePeerDies) {
  const std::string name = test_name("d");
  auto listener = UnixListener::listen(name);
  const pid_t child = ::fork();
  if (child == 0) {
    auto channel = UnixChannel::connect(name, kNever);
    Receiver in;
    (void)in.receive(*channel, kNever);
    ::_exit(0);
  }
  UnixChannel server = *listener->accept(kNever);
  const Fd pidfd = *server.peer_pidfd();
  EXPECT_FALSE(has_ended(pidfd.get()));
  server.close();  // the child sees end of file
  EXPECT_EQ(*wait_for(pidfd.get(), POLLIN, now() + seconds(20)), POLLIN);
  EXPECT_TRUE(has_ended(pidfd.get()));
  ::waitpid(child, nullptr, 0);
}

TEST(UnixChannel, AfterThePeerClosesReceiveReturnsZeroBytesAndSendFails) {
  auto [a, b] = *UnixChannel::pair();
  ASSERT_TRUE(a.send(bytes_of("last")).has_value());
  a.close();
  Receiver in;
  EXPECT_EQ(in.receive(b).value(), "last");
  EXPECT_EQ(in.receive(b).value(), "");
  EXPECT_EQ(b.send(bytes_of("late")).error().code, Errc::kDeviceFatal);
}

TEST(UnixChannel, ShutDownEndsReceivingOnBothEnds) {
  auto [a, b] = *UnixChannel::pair();
  a.shut_down();
  Receiver in;
  EXPECT_EQ(in.receive(a, kNever).value(), "");
  EXPECT_EQ(in.receive(b, kNever).value(), "");
}

TEST(UnixChannel, CarriesMessagesOfAtMost64KiB) {
  auto [a, b] = *UnixChannel::pair();
  std::string message(kMessageBytesMax, 0);
  std::iota(message.begin(), message.end(), char{0});
  ASSERT_TRUE(a.send(bytes_of(message)).has_value());
  Receiver in;
  EXPECT_EQ(in.receive(b).value(), message);
  message.push_back('x');
  EXPECT_EQ(a.send(bytes_of(message)).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(a.send({}).error().code, Errc::kInvalidArgument);
}

// A receiver may have reached its limit of descriptors.
TEST(UnixChannel, ReceiverCanGetAMessageWithoutItsDescriptors) {
  auto [a, b] = *UnixChannel::pair();
  EventFd event = *EventFd::create();
  const int passed_fds[1] = {event.fd()};
  ASSERT_TRUE(a.send(bytes_of("one"), passed_fds).has_value());
  ASSERT_TRUE(a.send(bytes_of("two"), passed_fds).has_value());
  ASSERT_TRUE(a.send(bytes_of("three"), passed_fds).has_value());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  std::array<std::byte, 16> text;
  std::vector<Fd> fds;
  bool lost = false;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto size = b.receive(text, fds, kNoWait, &lost);
  const auto refused = b.receive(text, fds);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(size.has_value());
  EXPECT_EQ(*size, 3u);
  EXPECT_TRUE(lost);
  EXPECT_EQ(refused.error().code, Errc::kMalformed) << "without fds_lost";
  EXPECT_EQ(b.receive(text, fds, kNoWait, &lost).value(), 5u);
  EXPECT_FALSE(lost);
  EXPECT_EQ(fds.size(), 1u);
}

TEST(UnixChannel, MessageLongerThanTheBufferIsAnErrorAndLeaksNothing) {
  auto [a, b] = *UnixChannel::pair();
  EventFd event = *EventFd::create();
  const int passed_fds[2] = {event.fd(), event.fd()};
  const int before = open_descriptors();
  ASSERT_TRUE(a.send(bytes_of("too long for it"), passed_fds).has_value());
  std::array<std::byte, 4> small;
  std::vector<Fd> fds;
  EXPECT_EQ(b.receive(small, fds).error().code, Errc::kMalformed);
  EXPECT_TRUE(fds.empty());
  EXPECT_EQ(open_descriptors(), before);
}

TEST(UnixChannel, ClosesTheDescriptorsOfAMessageThatHasTooMany) {
  auto [a, b] = *UnixChannel::pair();
  EventFd event = *EventFd::create();
  const std::vector<int> passed_fds(kMessageFdsMax + 1, event.fd());
  EXPECT_EQ(a.send(bytes_of("x"), passed_fds).error().code, Errc::kInvalidArgument);

  // Sends the message without UnixChannel, as another program might.
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE((kMessageFdsMax + 1) * sizeof(int))> control{};
  char text = 'x';
  iovec vector{&text, 1};
  msghdr header{};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  cmsghdr* c = CMSG_FIRSTHDR(&header);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(passed_fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(c), passed_fds.data(), passed_fds.size() * sizeof(int));
  const int before = open_descriptors();
  ASSERT_EQ(::sendmsg(a.fd(), &header, 0), 1);
  Receiver in;
  EXPECT_EQ(in.receive(b).error().code, Errc::kMalformed);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(UnixChannel, FullChannelWouldBlockOrWaitsUntilTheDeadline) {
  auto [a, b] = *UnixChannel::pair();
  const std::string message(kMessageBytesMax, 'x');
  int sent = 0;
  while (a.send(bytes_of(message)).has_value()) ++sent;
  EXPECT_GE(sent, 1);
  EXPECT_TRUE(would_block(a.send(bytes_of(message)).error()));
  EXPECT_EQ(a.send(bytes_of(message), {}, now() + milliseconds(5)).error().code, Errc::kTimedOut);
  Receiver in;
  while (sent-- > 0) EXPECT_TRUE(in.receive(b).has_value());
  EXPECT_TRUE(a.send(bytes_of(message), {}, now() + seconds(5)).has_value());
}

}  // namespace
}  // namespace verbena::os
