#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "fabric/test_scene.h"

// Counts the messages between program and agent that control calls cause.
namespace verbena::fabric {
namespace {

using namespace testing;

// Implements a program that starts no operations, and stores the last CM event.
class EventRecorder final : public Program {
 public:
  explicit EventRecorder(SimProcess& owner) : sim_process(owner) {}
  void start() override {}
  void on_notice(const process::Notice& notice) override {
    if (const auto* cm = std::get_if<process::CmNotice>(&notice)) last_notice = *cm;
  }
  process::Process& process() { return sim_process.process(); }

  SimProcess& sim_process;
  process::CmNotice last_notice{};
};

class Cost : public ::testing::Test {
 protected:
  // Makes the program `caller` call call(), and counts all messages that follow: "1 to the agent, 1
  // back, 2 events".
  std::string cost(EventRecorder& caller, const std::function<void()>& call) {
    const SimProcess::Traffic before = caller.sim_process.traffic;
    call();
    caller.sim_process.host().pump(caller.sim_process);
    network_.run(200us);
    const SimProcess::Traffic& after = caller.sim_process.traffic;
    return std::to_string(after.requests - before.requests) + " to the agent, " +
           std::to_string(after.replies - before.replies) + " back, " +
           std::to_string(after.events - before.events) + " events";
  }
  void add_row(const char* what, EventRecorder& caller, const std::function<void()>& call) {
    table_ += '\n';
    table_ += std::string(what) + ": " + cost(caller, call);
  }
  template <class T>
  Completion<T> store_in(T& value) {
    return [&value](Result<T> result) {
      ASSERT_TRUE(result.has_value()) << result.error().context;
      value = *result;
    };
  }
  void create_id(EventRecorder& caller, process::ConnectionHandle& id) {
    id = caller.process().create_id(rdmacm::kPortSpaceTcp, 2, 0).value();
  }
  void create_qp(EventRecorder& caller, hca::QpHandle& qp) {
    auto started = caller.process().create_qp(init_, caller.sim_process.now(), store_in(qp));
    if (auto* result = std::get_if<Result<hca::QpHandle>>(&started)) qp = result->value();
    caller.sim_process.track("", std::move(started));
  }

  Network network_{Network::Config{}};
  EventRecorder& a_ = network_.add_host("a").run<EventRecorder>("active");
  EventRecorder& b_ = network_.add_host("b").run<EventRecorder>("passive");
  std::string table_;
  hca::QpInit init_{.caps = {.max_send_wr = 1, .max_recv_wr = 1}};
  process::ConnectionHandle listener_{}, active_id_{}, passive_id_{};
  hca::QpHandle first_qp_{}, second_qp_{};
};

// Calls for a listener wait for a reply of the agent, and so does the first create_qp of a program,
// which leases QP numbers.  Calls for a connection wait only for events.  The agent creates an id
// when it receives the first message about the id.
TEST_F(Cost, CallsForAConnectionNeedNoReplies) {
  network_.run(1ms);
  const auto ok = [](const char* what) {
    return [what](Result<ipc::Done> r) { EXPECT_TRUE(r.has_value()) << what; };
  };
  const auto create_pd_and_cq = [&](EventRecorder& caller) {
    init_.pd = caller.process().engine().create_pd().value();
    init_.send_cq = init_.recv_cq = caller.process().engine().create_cq(16, 0).value();
  };
  const rdmacm::ConnParam param{};
  auto& pa = a_.process();
  auto& pb = b_.process();
  add_row("create_id", b_, [&] { create_id(b_, listener_); });
  add_row("bind", b_, [&] {
    b_.sim_process.track(
        "", pb.bind(listener_, any_address(), [](auto r) { EXPECT_TRUE(r.has_value()); }));
  });
  add_row("set_option", b_,
          [&] { b_.sim_process.track("", pb.set_option(listener_, 0, 0, 16, ok("set_option"))); });
  add_row("listen", b_, [&] {
    b_.sim_process.track("", pb.listen(listener_, 1, [](auto r) { EXPECT_TRUE(r.has_value()); }));
  });
  add_row("create_id", a_, [&] { create_id(a_, active_id_); });
  add_row("resolve_address", a_, [&] {
    a_.sim_process.track(
        "", pa.resolve_address(active_id_, {}, server_address(2), 1s, ok("resolve_address")));
  });
  add_row("resolve_route", a_, [&] {
    a_.sim_process.track("", pa.resolve_route(active_id_, std::chrono::seconds(1), {}));
  });
  add_row("create_qp, the first", a_, [&] { create_pd_and_cq(a_), create_qp(a_, first_qp_); });
  add_row("set_qp", a_,
          [&] { EXPECT_TRUE(pa.set_qp(active_id_, first_qp_, network_.now()).has_value()); });
  add_row("connect", a_,
          [&] { a_.sim_process.track("", pa.connect(active_id_, param, ok("connect"))); });
  passive_id_ = b_.last_notice.new_id;
  add_row("create_qp, the first", b_, [&] { create_pd_and_cq(b_), create_qp(b_, second_qp_); });
  add_row("set_qp", b_,
          [&] { EXPECT_TRUE(pb.set_qp(passive_id_, second_qp_, network_.now()).has_value()); });
  const SimProcess::Traffic before = a_.sim_process.traffic;
  add_row("accept", b_, [&] {
    b_.sim_process.track("", pb.accept(passive_id_, param, network_.now(), ok("accept")));
  });
  EXPECT_EQ(a_.last_notice.event.kind, rdmacm::EventKind::kEstablished);
  EXPECT_EQ(a_.sim_process.traffic.requests - before.requests, 1u);  // Establish
  EXPECT_EQ(a_.sim_process.traffic.replies - before.replies, 0u);
  add_row("disconnect", a_, [&] {
    a_.sim_process.track("", pa.disconnect(active_id_, network_.now(), ok("disconnect")));
  });
  add_row("disconnect, second", b_, [&] {
    b_.sim_process.track("", pb.disconnect(passive_id_, network_.now(), ok("disconnect")));
  });
  add_row("destroy_id", a_, [&] { EXPECT_TRUE(pa.destroy_id(active_id_).has_value()); });
  EXPECT_EQ(table_, R"(
create_id: 0 to the agent, 0 back, 0 events
bind: 2 to the agent, 1 back, 0 events
set_option: 1 to the agent, 1 back, 0 events
listen: 1 to the agent, 1 back, 0 events
create_id: 0 to the agent, 0 back, 0 events
resolve_address: 2 to the agent, 0 back, 1 events
resolve_route: 0 to the agent, 0 back, 0 events
create_qp, the first: 1 to the agent, 1 back, 0 events
set_qp: 0 to the agent, 0 back, 0 events
connect: 1 to the agent, 0 back, 0 events
create_qp, the first: 1 to the agent, 1 back, 0 events
set_qp: 0 to the agent, 0 back, 0 events
accept: 1 to the agent, 0 back, 1 events
disconnect: 1 to the agent, 0 back, 1 events
disconnect, second: 0 to the agent, 0 back, 0 events
destroy_id: 1 to the agent, 0 back, 0 events)");
}

TEST_F(Cost, QueuePairsQueuesAndMemoryNeedNoMessagesAfterTheFirstQueuePair) {
  network_.run(1ms);
  auto& engine = a_.process().engine();
  init_.pd = engine.create_pd().value();
  init_.send_cq = init_.recv_cq = engine.create_cq(16, 0).value();
  add_row("the first create_qp", a_, [&] { create_qp(a_, first_qp_); });
  add_row("create_qp", a_, [&] { create_qp(a_, second_qp_); });
  add_row("modify_qp", a_, [&] {
    using namespace hca::attribute;
    const auto result = a_.process().modify_qp(
        second_qp_, {.state = hca::QpState::kInit},
        kState | kPkeyIndex | hca::attribute::kPort | kAccessFlags, network_.now());
    EXPECT_TRUE(result.has_value()) << result.error().context;
  });
  hca::QpHandle datagram_qp{};
  const Gid group = wire::ipv4_gid(0xef4d0105);
  add_row("attach_multicast", a_, [&] {
    auto init = init_;
    init.type = hca::QpType::kUd;
    datagram_qp =
        std::get<Result<hca::QpHandle>>(a_.process().create_qp(init, a_.sim_process.now(), {}))
            .value();
    a_.sim_process.track(
        "", a_.process().attach_multicast(datagram_qp, group, 0,
                                          [](const auto& done) { EXPECT_TRUE(done.has_value()); }));
  });
  add_row("detach_multicast", a_, [&] {
    EXPECT_TRUE(a_.process().detach_multicast(datagram_qp, group).has_value());
    EXPECT_TRUE(a_.process().destroy_qp(datagram_qp, a_.sim_process.now()).has_value());
  });
  add_row("destroy_qp", a_, [&] {
    EXPECT_TRUE(a_.process().destroy_qp(first_qp_, a_.sim_process.now()).has_value());
    EXPECT_TRUE(a_.process().destroy_qp(second_qp_, a_.sim_process.now()).has_value());
  });
  add_row("create and destroy 1,000 QPs, MRs and CQs", a_, [&] {
    std::vector<std::byte> memory(4096);
    for (int i = 0; i < 1000; ++i) {
      create_qp(a_, first_qp_);
      const auto cq = engine.create_cq(4, 0).value();
      const auto mr = engine.register_mr(init_.pd, reinterpret_cast<std::uintptr_t>(memory.data()),
                                         memory.size(), 0, hca::access::kLocalWrite);
      EXPECT_TRUE(engine.deregister_mr(mr.value().handle).has_value());
      EXPECT_TRUE(engine.destroy_cq(cq).has_value());
      EXPECT_TRUE(a_.process().destroy_qp(first_qp_, a_.sim_process.now()).has_value());
    }
  });
  EXPECT_EQ(table_, R"(
the first create_qp: 1 to the agent, 1 back, 0 events
create_qp: 0 to the agent, 0 back, 0 events
modify_qp: 0 to the agent, 0 back, 0 events
attach_multicast: 1 to the agent, 1 back, 0 events
detach_multicast: 1 to the agent, 0 back, 0 events
destroy_qp: 0 to the agent, 0 back, 0 events
create and destroy 1,000 QPs, MRs and CQs: 0 to the agent, 0 back, 0 events)");
}

}  // namespace
}  // namespace verbena::fabric
