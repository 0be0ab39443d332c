#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "process/process.h"
#include "wire/ip.h"

// Provides the fixture of this layer's tests: a Process.  The test acts as its agent.
namespace verbena::process {

using hca::QpState;
using rdmacm::EventKind;

inline constexpr Time kNow{std::chrono::seconds(1)};
inline constexpr std::uint16_t kRange = 0x123;
// The Process gives these names to the first two ids that it creates.
inline constexpr rdmacm::IdHandle kFirstId{0x180000001};
inline constexpr rdmacm::IdHandle kSecondId{0x180000002};
// The agent gives this name to the id of a CONNECT_REQUEST.
inline constexpr rdmacm::IdHandle kChildId{0x100000002};
inline const Gid kLocalGid = wire::ipv4_gid(0x0a000001);
inline const Gid kRemoteGid = wire::ipv4_gid(0x0a000002);

class ProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    join_agent();
    init_.pd = process_.engine().create_pd().value();
    init_.send_cq = init_.recv_cq = process_.engine().create_cq(64, 5).value();
  }
  // Connects the Process to the first agent or to the next agent.
  void join_agent() {
    keep_pending(
        process_.hello([](Result<ipc::Welcome> welcome) { ASSERT_TRUE(welcome.has_value()); }));
    answer<ipc::Hello>(ipc::Welcome{.devices = {device()}});
  }
  static ipc::Port port() {
    return {.active = true, .active_mtu = 3, .gids = {{.gid = kLocalGid, .interface = 2}}};
  }
  static ipc::Device device() { return {.ports = {port()}}; }
  void report_devices(const std::vector<ipc::Device>& devices) {
    deliver(ipc::encode(0, ipc::DevicesChanged{devices}));
  }
  // Reports the new state of the only port.
  void report_port(const ipc::Port& port) { report_devices({{.ports = {port}}}); }

  // Holds a message for the agent.
  template <class Message>
  struct ToAgent {
    std::uint64_t request = 0;  // the number for the reply; 0: the message expects no reply
    Message message{};
  };
  // Takes the next message for the agent.  Skips CreateId, unless Message is CreateId.  REQUIRES:
  // the next other message has the type Message.
  template <class Message>
  ToAgent<Message> expect_message() {
    for (;;) {
      const auto out = process_.poll_message();
      VB_CHECK(out.has_value());
      const auto envelope = ipc::open(out->message).value();
      if (envelope.type == ipc::Type::kCreateId && Message::kType != ipc::Type::kCreateId) {
        created_ids_.push_back(ipc::decode<ipc::CreateId>(envelope).value().id);
        continue;
      }
      return {envelope.request, ipc::decode<Message>(envelope).value()};
    }
  }
  // Takes the next message for the agent, which is a request, and delivers this reply.
  template <class Message, class Reply>
  void answer(const Reply& reply) {
    deliver(ipc::encode(expect_message<Message>().request, reply));
  }
  void deliver(const ipc::Bytes& bytes) {
    ASSERT_TRUE(process_.on_message(bytes, kNow).has_value());
  }
  void deliver(const rdmacm::Event& event) { deliver(ipc::encode(0, ipc::CmEvent{event})); }
  void deliver(rdmacm::IdHandle id, EventKind kind) {
    deliver(rdmacm::Event{.id = id, .kind = kind});
  }

  // Stores a request that waits for its reply, so that the request is not cancelled.
  template <class T>
  void keep_pending(Started<T> started) {
    if (auto* pending = std::get_if<Pending>(&started)) pending_.push_back(std::move(*pending));
  }
  ConnectionHandle create_id(std::uint32_t port_space = rdmacm::kPortSpaceTcp) {
    const bool datagrams =
        port_space == rdmacm::kPortSpaceUdp || port_space == rdmacm::kPortSpaceIpoib;
    return process_.create_id(port_space, datagrams ? rdmacm::kQpTypeUd : rdmacm::kQpTypeRc, 77)
        .value();
  }
  // Creates an id whose address and route are resolved.
  ConnectionHandle create_resolved_id(rdmacm::IdHandle name = kFirstId) {
    const ConnectionHandle id = create_id();
    EXPECT_TRUE(is_done(process_.resolve_address(id, {}, {.ip = kRemoteGid, .family = 4}, {}, {})));
    EXPECT_EQ(expect_message<ipc::ResolveAddress>().message.id, name);
    deliver(name, EventKind::kAddrResolved);
    EXPECT_TRUE(is_done(process_.resolve_route(id, std::chrono::seconds(1), {})));
    EXPECT_THAT(cm_notices(), ::testing::SizeIs(2));
    return id;
  }
  static bool is_done(const Started<ipc::Done>& started) {
    const auto* result = std::get_if<Result<ipc::Done>>(&started);
    return result != nullptr && result->has_value();
  }
  static std::optional<Errc> error_of(const Started<ipc::Done>& started) {
    const auto* result = std::get_if<Result<ipc::Done>>(&started);
    if (result == nullptr || *result) return std::nullopt;
    return result->error().code;
  }
  void drop_messages() {
    while (process_.poll_message()) {
    }
  }
  hca::QpHandle create_qp() {
    hca::QpHandle qp{};
    auto started = process_.create_qp(init_, kNow, [&](auto result) { qp = result.value(); });
    if (auto* done = std::get_if<Result<hca::QpHandle>>(&started)) return done->value();
    keep_pending(std::move(started));
    answer<ipc::Lease>(ipc::Leased{kRange});
    return qp;
  }
  hca::QpHandle drop_messages_and_create_qp() {
    drop_messages();
    return create_qp();
  }
  QpState state(hca::QpHandle qp) {
    return process_.engine().query_qp(qp).value().attributes.state;
  }
  std::vector<CmNotice> cm_notices() {
    std::vector<CmNotice> all;
    while (const auto notice = process_.poll_notice()) {
      if (const auto* cm = std::get_if<CmNotice>(&*notice)) all.push_back(*cm);
    }
    return all;
  }
  static rdmacm::QpTransition transition() {
    return {.path = {.address = {.source = kLocalGid, .destination = kRemoteGid}},
            .remote_qpn = 0x456789,
            .sq_psn = 10,
            .rq_psn = 20,
            .valid = 1,
            .path_mtu = 3,
            .responder_resources = 4,
            .min_rnr_timer = 12,
            .initiator_depth = 4,
            .ack_timeout = 16,
            .retry_count = 7,
            .rnr_retry_count = 7};
  }
  // Reports CONNECT_REQUEST for a listener, as the agent.  Returns the new id.
  ConnectionHandle report_connect_request(rdmacm::IdHandle listener) {
    deliver(rdmacm::Event{.id = kChildId,
                          .listen_id = listener,
                          .kind = EventKind::kConnectRequest,
                          .port_space = rdmacm::kPortSpaceTcp,
                          .qp_type = 2,
                          .qp = transition()});
    return cm_notices().at(0).new_id;
  }

  Process process_{{.build = "test"}, Random(1)};
  hca::QpInit init_{.caps = {.max_send_wr = 4, .max_recv_wr = 4, .max_recv_sge = 1}};
  std::vector<Pending> pending_{};
  std::vector<rdmacm::IdHandle> created_ids_{};
};

}  // namespace verbena::process
