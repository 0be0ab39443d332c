#include "sockets/tracing.h"

#include <gtest/gtest.h>

#include <asio/io_context.hpp>
#include <string>
#include <vector>

#include "os/clock.h"
#include "sockets/ring_sizes.h"
#include "stream/receiver.h"
#include "stream/sender.h"

namespace verbena::sockets {
namespace {

using broker::Event;
using broker::EventKind;

constexpr std::uint64_t kServerCookie = 1;
constexpr std::uint64_t kClientCookie = 2;

// Holds the state of a service, without running the event loop: a server and a client of user 1000,
// and a tool.
class TracingTest : public testing::Test, public Session::Owner {
 protected:
  TracingTest()
      : server_(add("server", 10, 1000)), client_(add("client", 20, 1000)), tool_(add("", 30, 0)) {}

  Session& add(const char* program, std::uint32_t pid, std::uint32_t uid) {
    auto [service_end, peer_end] = *os::UnixChannel::pair();
    auto session = std::make_unique<Session>(loop_, std::move(service_end), ++last_id_, *this);
    session->program = program;
    session->pid = pid;
    session->uid = uid;
    channels_.emplace(last_id_, std::move(peer_end));
    return *sessions_.emplace(last_id_, std::move(session)).first->second;
  }
  void on_message(Session&, std::span<const std::byte>, std::vector<os::Fd>) override {}
  void on_messages_end() override {}
  void on_session_end(Session&) override {}

  static broker::Report report_of(std::uint64_t cookie) {
    const broker::Connection connection{.local = {.port = 80}, .peer = {.port = 5000}};
    return {.cookie = cookie,
            .connection = cookie == kServerCookie ? connection : connection.mirrored()};
  }
  void report(const Session& program, std::uint64_t cookie) {
    broker_.report(program.id(), report_of(cookie));
    tracing_.on_offer(program, report_of(cookie), true);
    while (const auto output = broker_.poll()) {
      const auto* make_memory = std::get_if<broker::Broker::MakeMemory>(&*output);
      if (make_memory == nullptr) continue;
      memories_.emplace(make_memory->pair,
                        *PairMemory::create(RingSizes::kMediumRingBytes, os::now()));
      broker_.memory_made(make_memory->pair, true);
      tracing_.on_introduction(make_memory->pair, true);
    }
  }
  void introduce() {
    report(server_, kServerCookie);
    report(client_, kClientCookie);
    const PairMemory& memory = memories_.begin()->second;
    const std::size_t bytes = stream::memory_bytes(memory.ring_bytes());
    program_memory_ = *os::map_shared(memory.fd().get(), bytes, bytes, true);
  }
  stream::DirectionMemory mapped(std::size_t side) {
    return *stream::direction_memory(program_memory_.bytes(), side);
  }
  void sample() { tracing_.sample(os::now()); }

  // Returns a line for each event that the tool has received.  A line begins with the program's
  // name and the event's number in broker::EventKind.
  std::string events_of(Session& tool) {
    std::string text;
    std::array<std::byte, broker::kMessageBytesMax> buffer;
    std::vector<os::Fd> fds;
    while (const auto bytes = channels_.at(tool.id()).receive(buffer, fds)) {
      const auto event = broker::decode<Event>(std::span(buffer).first(*bytes));
      if (!event) return "no event";
      text += std::string(broker::text_of(event->program)) + " " +
              std::to_string(static_cast<std::uint32_t>(event->kind));
      if (event->offset != 0) text += " at " + std::to_string(event->offset);
      if (event->reason != 0) text += " reason " + std::to_string(event->reason);
      if (event->peer_pid != 0) text += " peer " + std::to_string(event->peer_pid);
      text += event->is_earlier != 0 ? " earlier\n" : "\n";
    }
    return text;
  }

  asio::io_context loop_;
  broker::Broker broker_;
  Tracing::Memories memories_;
  Tracing::Sessions sessions_;
  std::map<std::uint64_t, os::UnixChannel> channels_;
  std::uint64_t last_id_ = 0;
  Tracing tracing_{broker_, memories_, sessions_};
  Session& server_;
  Session& client_;
  Session& tool_;
  os::Mapping program_memory_;
};

TEST_F(TracingTest, ToolGetsEachEventFromTcpToTheRingAndBack) {
  tracing_.add(tool_, true);
  introduce();
  EXPECT_EQ(events_of(tool_), "server 1\nclient 1 peer 10\nserver 5 peer 20\nclient 5 peer 10\n");
  stream::Sender sender(mapped(0));
  stream::Receiver receiver(mapped(0));
  sender.start(4096);
  receiver.start(4096, 0);
  sample();
  EXPECT_EQ(events_of(tool_), "server 6 peer 20\n");
  ASSERT_EQ(sender.write(std::vector<std::byte>(100))->kind, stream::WriteStep::Kind::kCopied);
  sample();
  EXPECT_EQ(events_of(tool_), "server 7 at 4096 peer 20\n");
  ASSERT_TRUE(sender.leave(stream::Reason::kUrgent));
  std::vector<std::byte> buffer(100);
  ASSERT_EQ(receiver.read(buffer)->bytes, 100U);
  ASSERT_EQ(receiver.leave(stream::Reason::kUrgent), stream::Receiver::LeaveResult::kPlain);
  sample();
  EXPECT_EQ(events_of(tool_), "server 8 at 4196 reason 4 peer 20\nclient 9 reason 4 peer 10\n");
  sample();
  EXPECT_EQ(events_of(tool_), "");
}

TEST_F(TracingTest, UnreportedEventsAreSentBeforeTheEndOfAConnection) {
  tracing_.add(tool_, true);
  introduce();
  events_of(tool_);
  stream::Sender(mapped(1)).start(7);
  tracing_.on_forget(client_, {.cookie = kClientCookie});
  EXPECT_EQ(events_of(tool_), "client 6 peer 10\nclient 11 peer 10\n");
  tracing_.on_program_end(server_);
  EXPECT_EQ(events_of(tool_), "server 12 peer 20\n");
}

TEST_F(TracingTest, ToolThatConnectsLaterGetsEarlierEvents) {
  introduce();
  stream::Sender(mapped(0)).start(7);
  tracing_.add(tool_, true);
  EXPECT_EQ(events_of(tool_),
            "server 1 peer 20 earlier\nserver 5 peer 20 earlier\nclient 1 peer 10 earlier\n"
            "client 5 peer 10 earlier\nserver 6 peer 20 earlier\n");
  Session& second_tool = add("", 31, 0);
  tracing_.add(second_tool, true);
  sample();
  EXPECT_EQ(events_of(tool_), "");
  EXPECT_NE(events_of(second_tool), "");
}

TEST_F(TracingTest, EndpointWithoutPeerIsReportedOnce) {
  tracing_.add(tool_, true);
  report(server_, kServerCookie);
  sample();
  EXPECT_EQ(events_of(tool_), "server 1\n");
  tracing_.sample(os::now() + Tracing::kNoPeerAfter);
  tracing_.sample(os::now() + 2 * Tracing::kNoPeerAfter);
  EXPECT_EQ(events_of(tool_), "server 2\n");
}

TEST_F(TracingTest, EndpointThatIsOlderThanTheTraceIsReportedIfItHasNoPeer) {
  report(server_, kServerCookie);
  tracing_.add(tool_, true);
  tracing_.sample(os::now() + Tracing::kNoPeerAfter);
  EXPECT_EQ(events_of(tool_), "server 1 earlier\nserver 2\n");
}

TEST_F(TracingTest, ReasonWhyAProgramStaysOnTcpIsReported) {
  tracing_.add(tool_, true);
  report(server_, kServerCookie);
  tracing_.on_forget(server_, {.reason = 3, .cookie = kServerCookie});
  tracing_.on_forget(
      client_,
      {.reason = 3, .cookie = kServerCookie});  // ignored: this endpoint belongs to the server
  tracing_.on_refusal(client_, report_of(kClientCookie));
  EXPECT_EQ(events_of(tool_), "server 1\nserver 10 reason 3\nclient 3\n");
}

TEST_F(TracingTest, ToolOfAnotherUserGetsNoEvents) {
  Session& tool_of_other_user = add("", 31, 1001);
  Session& tool_of_same_user = add("", 32, 1000);
  tracing_.add(tool_of_other_user, false);
  tracing_.add(tool_of_same_user, false);
  report(server_, kServerCookie);
  tracing_.on_refusal(client_, report_of(kClientCookie));
  EXPECT_EQ(events_of(tool_of_other_user), "");
  EXPECT_EQ(events_of(tool_of_same_user), "server 1\nclient 3\n");
}

TEST_F(TracingTest, RemovingTheLastToolEndsTheTrace) {
  tracing_.add(tool_, true);
  EXPECT_NE(tracing_.deadline(), kNever);
  tracing_.remove(tool_.id());
  EXPECT_EQ(tracing_.deadline(), kNever);
  introduce();
  tracing_.add(tool_, true);
  EXPECT_NE(events_of(tool_).find("server 5 peer 20 earlier"), std::string::npos);
}

}  // namespace
}  // namespace verbena::sockets
