#include "agent/connection.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <map>
#include <memory>

#include "ipc/tool_messages.h"
#include "os/process.h"

namespace verbena::agent {
namespace {

// Makes a connection whose other end belongs to the test.  The fixture is the Owner and records the
// calls.
class ConnectionTest : public testing::Test, public Connection::Owner {
 protected:
  void SetUp() override {
    auto [agent_end, program_end] = os::UnixChannel::pair().value();
    program_ = std::move(program_end);
    connection_ =
        std::make_unique<Connection>(loop_, std::move(agent_end), 7, *this, limit_counters_);
  }

  void received(Connection& from, const ipc::Envelope& envelope, std::span<const std::byte>,
                std::vector<os::Fd> fds) override {
    EXPECT_EQ(from.id(), 7u);
    requests_.push_back(envelope.request);
    fd_count_ += fds.size();
    if (reply_to_requests_ && envelope.request != 0)
      connection_->reply_result(envelope.request, {});
  }
  void received_all(Connection&, std::size_t) override {}
  void ended(Connection&, const std::string& why) override {
    why_ = why;
    connection_.reset();
  }

  void run() {
    loop_.restart();
    loop_.poll();
  }
  bool request(std::uint64_t number) {
    return program_.send(ipc::encode(number, ipc::Status{})).has_value();
  }
  void send_in_own_datagram(const ipc::Bytes& message, std::span<const int> fds = {}) {
    connection_->send(message, fds);
    run();
  }
  std::size_t replies() {
    std::vector<std::byte> buffer(ipc::kMessageBytesMax);
    std::vector<os::Fd> fds;
    std::size_t count = 0;
    for (;;) {
      const auto bytes = program_.receive(buffer, fds);
      if (!bytes || *bytes == 0) return count;
      ++datagram_count_;
      fd_count_ += fds.size();
      auto datagram = std::span<const std::byte>(buffer).first(*bytes);
      for (; !datagram.empty(); ++count) EXPECT_TRUE(ipc::take_message(datagram).has_value());
    }
  }

  asio::io_context loop_{1};
  os::UnixChannel program_{};
  Connection::LimitCounters limit_counters_{};
  std::unique_ptr<Connection> connection_{};
  bool reply_to_requests_ = true;
  std::vector<std::uint64_t> requests_{};
  std::size_t fd_count_ = 0;
  std::size_t datagram_count_ = 0;
  std::string why_{};
};

TEST_F(ConnectionTest, DeliversRequestsInOrderAndSendsReplies) {
  request(1);
  request(2);
  run();
  EXPECT_EQ(requests_, (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(connection_->outstanding(), 0u);
  EXPECT_EQ(replies(), 2u);
}

TEST_F(ConnectionTest, JoinsMessagesIntoDatagrams) {
  const int fd = memfd_create("fd", MFD_CLOEXEC);
  for (int i = 0; i < 10; ++i) connection_->send(ipc::encode(0, ipc::Done{}));
  EXPECT_EQ(replies(), 0u);
  run();
  EXPECT_EQ(replies(), 10u);
  EXPECT_EQ(datagram_count_, 1u);
  // A message with descriptors has its own datagram and keeps its place in the order.
  connection_->send(ipc::encode(0, ipc::Done{}));
  connection_->send(ipc::encode(0, ipc::Done{}), std::span(&fd, 1));
  EXPECT_EQ(replies(), 2u);
  EXPECT_EQ(datagram_count_, 3u);
  EXPECT_EQ(fd_count_, 1u);
  close(fd);
  // The size of a datagram is limited.
  const ipc::Bytes message = ipc::encode(0, ipc::Done{});
  const std::size_t fit_count = ipc::kJoinedBytesMax / message.size();
  for (std::size_t i = 0; i < fit_count; ++i) connection_->send(message);
  EXPECT_EQ(replies(), 0u);
  connection_->send(message);
  EXPECT_EQ(replies(), fit_count);
  connection_.reset();
  EXPECT_EQ(replies(), 1u) << "sent by the destructor, since the loop may have ended";
}

TEST_F(ConnectionTest, ReceivesAllMessagesOfADatagram) {
  ipc::Bytes datagram;
  for (const std::uint64_t number : {0u, 0u, 9u}) {
    const ipc::Bytes message = ipc::encode(number, ipc::Establish{});
    datagram.insert(datagram.end(), message.begin(), message.end());
  }
  ASSERT_TRUE(program_.send(datagram).has_value());
  run();
  EXPECT_EQ(requests_, (std::vector<std::uint64_t>{0, 0, 9}));
  EXPECT_EQ(replies(), 1u);
  // Only the last message of a datagram may expect a reply, or requests could exceed their limit.
  ASSERT_TRUE(program_.send(datagram).has_value());
  ASSERT_TRUE(connection_ != nullptr);
  const ipc::Bytes message = ipc::encode(0, ipc::Establish{});
  datagram.insert(datagram.end(), message.begin(), message.end());
  ASSERT_TRUE(program_.send(datagram).has_value());
  run();
  EXPECT_EQ(requests_, (std::vector<std::uint64_t>{0, 0, 9, 0, 0, 9, 0, 0}));
  EXPECT_EQ(why_, "it sent an invalid request");
}

TEST_F(ConnectionTest, DatagramThatEndsWithinAMessageEndsTheConnection) {
  ipc::Bytes datagram = ipc::encode(0, ipc::Establish{});
  const ipc::Bytes message = datagram;
  datagram.insert(datagram.end(), message.begin(), message.end() - 1);
  ASSERT_TRUE(program_.send(datagram).has_value());
  run();
  EXPECT_EQ(requests_, std::vector<std::uint64_t>{0});
  EXPECT_EQ(why_, "it sent an invalid request");
}

TEST_F(ConnectionTest, TooLongDatagramOfSeveralMessagesEndsTheConnection) {
  const ipc::Bytes message = ipc::encode(0, ipc::Establish{});
  const std::size_t fit_count = ipc::kJoinedBytesMax / message.size();
  ipc::Bytes datagram;
  for (std::size_t i = 0; i < fit_count; ++i) {
    datagram.insert(datagram.end(), message.begin(), message.end());
  }
  ASSERT_TRUE(program_.send(datagram).has_value());
  run();
  EXPECT_EQ(requests_.size(), fit_count);
  EXPECT_EQ(why_, "");
  datagram.insert(datagram.end(), message.begin(), message.end());
  ASSERT_TRUE(program_.send(datagram).has_value());
  run();
  EXPECT_EQ(requests_.size(), fit_count);
  EXPECT_EQ(why_, "it sent an invalid request");
}

TEST_F(ConnectionTest, LimitsOutstandingRequests) {
  reply_to_requests_ = false;
  std::uint64_t sent_count = 0;
  for (int turn = 0; turn < 20; ++turn) {
    while (sent_count < Connection::kRequestsMax + 10 && request(sent_count + 1)) ++sent_count;
    run();
  }
  EXPECT_EQ(requests_.size(), Connection::kRequestsMax);
  EXPECT_EQ(limit_counters_.requests, 1u);
  reply_to_requests_ = true;
  connection_->reply_result(requests_.front(), {});
  for (int turn = 0; turn < 20; ++turn) run();
  EXPECT_EQ(requests_.size(), Connection::kRequestsMax + 10) << "the rest waited in the socket";
  EXPECT_EQ(why_, "");
}

TEST_F(ConnectionTest, EndsIfThePeerLeavesTooManyMessagesUnread) {
  const int fd = memfd_create("fd", MFD_CLOEXEC);
  for (std::size_t i = 0; i < 2 * Connection::kQueueMax && connection_->queued() == 0; ++i) {
    send_in_own_datagram(ipc::encode(0, ipc::Done{}));
  }
  ASSERT_EQ(connection_->queued(), 1u) << "the socket is full";
  for (std::size_t more = 1; more < Connection::kQueueMax; ++more) {
    connection_->send(ipc::encode(0, ipc::Done{}));
  }
  run();
  EXPECT_EQ(why_, "") << "the limit itself is allowed";
  EXPECT_EQ(connection_->queued(), Connection::kQueueMax);
  connection_->send(ipc::encode(0, ipc::Done{}), std::span(&fd, 1));
  EXPECT_EQ(why_, "") << "ended() is never called from inside send()";
  run();
  EXPECT_EQ(why_.substr(0, 29), "it has not read 4096 messages");
  EXPECT_EQ(limit_counters_.queue, 1u);
  close(fd);
}

TEST_F(ConnectionTest, EndsIfThePeerLeavesTooManyBytesUnread) {
  const ipc::Bytes large = ipc::encode(0, ipc::Reject{{}, 28, ipc::Bytes(1000)});
  while (connection_->queued() == 0) send_in_own_datagram(large);
  ipc::DevicesChanged many;
  many.devices.resize(1);
  many.devices[0].ports[0].gids.resize(ipc::kListMax);
  const ipc::Bytes larger = ipc::encode(0, many);
  const std::size_t fit_count = (Connection::kQueueBytesMax - large.size()) / larger.size();
  ASSERT_LT(fit_count, Connection::kQueueMax);
  for (std::size_t i = 0; i < fit_count; ++i) send_in_own_datagram(larger);
  EXPECT_EQ(why_, "") << "the limit itself is allowed";
  send_in_own_datagram(larger);
  EXPECT_EQ(why_.substr(0, 15), "it has not read");
  EXPECT_EQ(limit_counters_.queue, 1u);
}

TEST_F(ConnectionTest, SendsQueuedMessagesWithTheirDescriptors) {
  const int fd = memfd_create("fd", MFD_CLOEXEC);
  std::size_t sent_count = 0;
  while (connection_->queued() < 3) {
    connection_->send(ipc::encode(0, ipc::Done{}), std::span(&fd, 1));
    ++sent_count;
  }
  close(fd);
  std::size_t received_messages = 0;
  for (int turn = 0; turn < 50 && received_messages < sent_count; ++turn) {
    received_messages += replies();
    run();
  }
  EXPECT_EQ(received_messages, sent_count);
  EXPECT_EQ(fd_count_, sent_count);
}

TEST_F(ConnectionTest, EndOfFileEndsTheConnection) {
  program_.close();
  run();
  EXPECT_EQ(why_, "end of file");
}

TEST_F(ConnectionTest, InvalidRequestEndsTheConnection) {
  request(0);
  run();
  EXPECT_EQ(why_, "it sent an invalid request");
}

TEST_F(ConnectionTest, RequestThatNeedsAReplyButHasNoNumberEndsTheConnection) {
  ASSERT_TRUE(program_.send(ipc::encode(0, ipc::Lease{})).has_value());
  run();
  EXPECT_EQ(why_, "it sent an invalid request");
}

TEST_F(ConnectionTest, RequestsWithoutANumberAreNotOutstanding) {
  reply_to_requests_ = false;
  std::size_t sent_count = 0;
  while (sent_count < 2 * Connection::kRequestsMax) {
    if (program_.send(ipc::encode(0, ipc::Establish{}))) {
      ++sent_count;
    } else {
      run();
    }
  }
  for (int turn = 0; turn < 50; ++turn) run();
  EXPECT_EQ(requests_, std::vector<std::uint64_t>(sent_count, 0));
  EXPECT_EQ(connection_->outstanding(), 0u);
  EXPECT_EQ(limit_counters_.requests, 0u);
}

TEST_F(ConnectionTest, ReceivesMessagesThatADeadProcessHasSent) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  auto pidfd = os::open_pidfd(child).value();
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  std::size_t sent_count = 0;
  while (sent_count < 2 * Connection::kMessagesPerEvent &&
         program_.send(ipc::encode(0, ipc::Establish{}))) {
    ++sent_count;
  }
  ASSERT_GT(sent_count, Connection::kMessagesPerEvent);
  connection_->watch_death(std::move(pidfd));
  while (why_.empty()) loop_.run_one();
  EXPECT_EQ(why_, "the process has ended");
  EXPECT_EQ(requests_.size(), sent_count);
  waitpid(child, nullptr, 0);
}

// The agent notices that the program has closed the connection when it sends a message.
TEST_F(ConnectionTest, ReceivesMessagesSentBeforeThePeerClosed) {
  reply_to_requests_ = false;
  const int fd = memfd_create("fd", MFD_CLOEXEC);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(program_.send(ipc::encode(0, ipc::Establish{})));
  connection_->send(ipc::encode(0, ipc::Done{}));
  // This call also sends the queued message.  The program reads neither message.
  connection_->send(ipc::encode(0, ipc::Done{}), std::span(&fd, 1));
  close(fd);
  program_ = {};
  send_in_own_datagram(ipc::encode(0, ipc::Done{}));
  EXPECT_EQ(requests_.size(), 3u);
  EXPECT_EQ(why_, "end of file");
}

TEST_F(ConnectionTest, ReceivesAllRequestsAndTheEndOfFileAfterThePeerClosed) {
  // All requests wait in the socket, because the loop does not run.
  const int bytes = 400'000;
  ASSERT_EQ(setsockopt(program_.fd(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes), 0);
  for (std::size_t i = 0; i < Connection::kRequestsMax; ++i) ASSERT_TRUE(request(i + 1)) << i;
  program_ = {};
  connection_->send(ipc::encode(0, ipc::Done{}));
  connection_->flush();
  for (int turn = 0; turn < 20 && why_.empty(); ++turn) run();
  EXPECT_EQ(requests_.size(), Connection::kRequestsMax);
  EXPECT_EQ(why_, "end of file");
}

TEST_F(ConnectionTest, DeathOfTheProcessEndsTheConnectionAlthoughTheSocketIsOpen) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  connection_->watch_death(os::open_pidfd(child).value());
  run();
  EXPECT_EQ(why_, "");
  kill(child, SIGKILL);
  loop_.restart();
  while (why_.empty()) loop_.run_one();
  EXPECT_EQ(why_, "the process has ended");
}

TEST_F(ConnectionTest, FinishSendsQueuedMessagesAndThenEnds) {
  std::size_t sent_count = 0;
  while (connection_->queued() < 3) {
    send_in_own_datagram(ipc::encode(0, ipc::Done{}));
    ++sent_count;
  }
  connection_->send(ipc::encode(0, ipc::Done{}));
  ++sent_count;
  connection_->finish();
  run();
  EXPECT_EQ(why_, "");
  std::size_t received_messages = 0;
  for (int turn = 0; turn < 50 && connection_; ++turn) {
    received_messages += replies();
    run();
  }
  EXPECT_EQ(received_messages + replies(), sent_count);
  EXPECT_EQ(why_, "finished");
}

}  // namespace
}  // namespace verbena::agent
