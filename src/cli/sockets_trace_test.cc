#include "cli/sockets_trace.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>

#include "stream/memory.h"

namespace verbena::cli {
namespace {

using broker::Event;
using broker::EventKind;

broker::SocketName local_port(std::uint16_t port) {
  broker::SocketName name{.port = port};
  name.address[10] = name.address[11] = 0xff;
  name.address[12] = 127;
  name.address[15] = 1;
  return name;
}

Event event_of(EventKind kind) {
  return {.kind = kind,
          .wall_ns = 1'600'000'000'123'456'789,
          .connection = {.local = local_port(80), .peer = local_port(5000)},
          .pid = 12,
          .program = broker::text_field<broker::kNameBytes>("server"),
          .peer_pid = 34,
          .peer_program = broker::text_field<broker::kNameBytes>("client")};
}

class SocketsTrace : public testing::Test {
 protected:
  SocketsTrace() {
    ::setenv("TZ", "UTC", 1);
    ::tzset();
  }
  // Returns the part of the line after the time, the program and the socket names.
  static std::string sentence(const Event& event) {
    const std::string line = event_as_text(event);
    const std::string prefix = "12:26:40.123456 server 12 127.0.0.1:80 > 127.0.0.1:5000 ";
    return line.starts_with(prefix) ? line.substr(prefix.size()) : "another beginning: " + line;
  }
};

TEST_F(SocketsTrace, EachEventIsASentence) {
  EXPECT_EQ(sentence(event_of(EventKind::kOffered)), "is offered to the socket service\n");
  EXPECT_EQ(sentence(event_of(EventKind::kPaired)), "is introduced to client (pid 34)\n");
  Event ring = event_of(EventKind::kRing);
  ring.offset = 4096;
  EXPECT_EQ(sentence(ring), "sends by the ring, from byte 4096 on\n");
  Event back = event_of(EventKind::kSendsByTcp);
  back.offset = 9000;
  back.reason = static_cast<std::uint32_t>(stream::Reason::kUrgent);
  EXPECT_EQ(sentence(back), "sends by TCP only, from byte 9000 on: urgent data\n");
}

TEST_F(SocketsTrace, AShutdownIsNotReportedAsAReturnToTcp) {
  Event end = event_of(EventKind::kSendsByTcp);
  end.reason = static_cast<std::uint32_t>(stream::Reason::kEnd);
  EXPECT_EQ(sentence(end), "sends nothing more (shutdown)\n");
}

TEST_F(SocketsTrace, AClosedConnectionHasItsTotals) {
  Event closed = event_of(EventKind::kClosed);
  EXPECT_EQ(sentence(closed), "is closed; it never had a ring\n");
  closed.has_ring = 1;
  closed.out = {.by_ring = 5, .by_tcp = 6, .wakes = 7, .overflows = 8};
  EXPECT_EQ(sentence(closed),
            "is closed; it has sent 5 bytes by the ring and 6 by TCP (woke the peer 7 times, found "
            "the ring full 8 times)\n");
}

TEST_F(SocketsTrace, EventsBeforeTheTraceAreMarked) {
  Event event = event_of(EventKind::kChangedOver);
  event.is_earlier = 1;
  EXPECT_EQ(sentence(event), "(before this trace) has changed over: it may send by the ring\n");
}

TEST_F(SocketsTrace, EventWithoutAProcessShowsNoProgram) {
  Event event = event_of(EventKind::kSendsByTcp);
  event.pid = 0;
  EXPECT_TRUE(event_as_text(event).starts_with("12:26:40.123456 - - 127.0.0.1:80 > "));
}

TEST_F(SocketsTrace, JsonIsOneLine) {
  Event event = event_of(EventKind::kSendsByTcp);
  event.offset = 9000;
  event.reason = static_cast<std::uint32_t>(stream::Reason::kExec);
  EXPECT_EQ(
      event_as_json(event),
      "{\"time\":\"2020-09-13T12:26:40.123456Z\",\"event\":\"sends_by_tcp\",\"earlier\":false,"
      "\"program\":\"server\",\"pid\":12,\"peer_program\":\"client\",\"peer_pid\":34,"
      "\"local\":\"127.0.0.1:80\",\"peer\":\"127.0.0.1:5000\",\"byte\":9000,"
      "\"reason\":\"exec\"}\n");
}

TEST_F(SocketsTrace, OnlyConnectionsOfTheGivenProcessesAreShown) {
  const Event event = event_of(EventKind::kOffered);
  EXPECT_TRUE(is_event_of(event, {}));
  EXPECT_TRUE(is_event_of(event, {12}));
  EXPECT_TRUE(is_event_of(event, {99, 34}));
  EXPECT_FALSE(is_event_of(event, {99}));
}

}  // namespace
}  // namespace verbena::cli
