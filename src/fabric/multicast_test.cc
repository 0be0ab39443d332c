#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "fabric/test_scene.h"

// Tests multicast between whole hosts: checks which programs receive the datagrams of a group.
namespace verbena::fabric {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const Gid kGroup = wire::ipv4_gid(0xef4d0105);

// Implements a program that attaches a QP to the group, and stores the messages that it receives.
class Member final : public Program {
 public:
  explicit Member(SimProcess& owner) : sim_process(owner), verbs_(owner) {}

  void start() override {
    verbs_.open();
    region_ = sim_process.require(
        "register_mr",
        sim_process.engine().register_mr(
            verbs_.pd, reinterpret_cast<std::uintptr_t>(memory_.data()), memory_.size(),
            reinterpret_cast<std::uintptr_t>(memory_.data()), hca::access::kLocalWrite));
    const hca::QpInit init{
        .type = hca::QpType::kUd,
        .pd = verbs_.pd,
        .send_cq = verbs_.cq,
        .recv_cq = verbs_.cq,
        .caps = {.max_send_wr = 8, .max_recv_wr = kReceives, .max_send_sge = 1, .max_recv_sge = 1}};
    sim_process.track("create_qp",
                      sim_process.process().create_qp(
                          init, sim_process.now(), [this](Result<hca::QpHandle> created) {
                            on_qp_created(sim_process.require("create_qp", created));
                          }));
  }
  void on_notice(const process::Notice& notice) override {
    if (!std::holds_alternative<process::CqNotice>(notice)) return;
    verbs_.poll([this](const hca::WorkCompletion& wc) {
      if (wc.status != hca::WcStatus::kSuccess || wc.opcode != hca::WcOpcode::kReceive) return;
      messages.emplace_back(reinterpret_cast<const char*>(slot(wc.wr_id) + kGrhBytes),
                            wc.byte_len - kGrhBytes);
      post_receive(wc.wr_id);
    });
  }
  void send_text(const std::string& text) {
    std::memcpy(slot(kReceives), text.data(), text.size());
    const auto path = sim_process.require(
        "path",
        sim_process.process().path(0, {.destination = kGroup, .hop_limit = 1, .has_grh = true}));
    const auto ah =
        sim_process.require("create_ah", sim_process.engine().create_ah(verbs_.pd, path));
    const hca::Sge sge{reinterpret_cast<std::uintptr_t>(slot(kReceives)),
                       static_cast<std::uint32_t>(text.size()), region_.lkey};
    sim_process.require(
        "post_send",
        sim_process.engine().post_send(
            qp, {.sges = {&sge, 1}, .remote_qpn = Qpn{0xffffff}, .remote_qkey = kQkey, .ah = ah}));
    sim_process.host().pump(sim_process);
  }
  void leave_group() {
    sim_process.require("detach", sim_process.process().detach_multicast(qp, kGroup));
    sim_process.host().pump(sim_process);
  }

  SimProcess& sim_process;
  hca::QpHandle qp{};
  std::vector<std::string> messages;

 private:
  static constexpr std::uint32_t kReceives = 8;
  static constexpr std::size_t kSlotBytes = 128;

  std::byte* slot(std::uint64_t number) { return memory_.data() + number * kSlotBytes; }
  void post_receive(std::uint64_t number) {
    const hca::Sge sge{reinterpret_cast<std::uintptr_t>(slot(number)), kSlotBytes, region_.lkey};
    sim_process.require("post_recv",
                        sim_process.engine().post_recv(qp, {.wr_id = number, .sges = {&sge, 1}}));
  }
  void on_qp_created(hca::QpHandle new_qp) {
    using namespace hca::attribute;
    qp = new_qp;
    hca::QpAttributes attributes;
    attributes.qkey = kQkey;
    for (const auto& [to, mask] :
         {std::pair(hca::QpState::kInit,
                    kPkeyIndex | hca::attribute::kPort | hca::attribute::kQkey),
          std::pair(hca::QpState::kRtr, 0u), std::pair(hca::QpState::kRts, kSqPsn)}) {
      attributes.state = to;
      sim_process.require("modify_qp", sim_process.process().modify_qp(
                                           qp, attributes, kState | mask, sim_process.now()));
    }
    for (std::uint32_t i = 0; i < kReceives; ++i) post_receive(i);
    sim_process.require("arm_cq", sim_process.engine().arm_cq(verbs_.cq, false));
    sim_process.track("attach", sim_process.process().attach_multicast(
                                    qp, kGroup, 0, sim_process.completion_for("attach")));
  }

  Verbs verbs_;
  std::array<std::byte, (kReceives + 1) * kSlotBytes> memory_{};
  hca::MrInfo region_{};
};

class Multicast : public ::testing::Test {
 protected:
  Multicast() { network_.run(1ms); }
  void send_text(Member& sender, const std::string& text) {
    sender.send_text(text);
    network_.run(1ms);
  }

  Network network_{Network::Config{}};
  Host& host_a_ = network_.add_host("a");
  Host& host_b_ = network_.add_host("b");
  Member& a_ = host_a_.run<Member>("first");
  Member& b1_ = host_b_.run<Member>("second");
  Member& b2_ = host_b_.run<Member>("third");
};

TEST_F(Multicast, ReachesEveryMemberIncludingTheSender) {
  send_text(a_, "hello");
  send_text(b1_, "good day");
  for (const Member* member : {&a_, &b1_, &b2_}) {
    EXPECT_THAT(member->messages, ElementsAre("hello", "good day"));
  }
  EXPECT_THAT(network_.violations(), IsEmpty());
}

TEST_F(Multicast, DoesNotReachAMemberThatHasLeft) {
  b1_.leave_group();
  network_.run(1ms);
  send_text(a_, "hello");
  EXPECT_THAT(b1_.messages, IsEmpty());
  EXPECT_THAT(b2_.messages, ElementsAre("hello"));
  // The sender of a datagram does not have to be a member.
  send_text(b1_, "farewell");
  EXPECT_THAT(a_.messages, ElementsAre("hello", "farewell"));
}

TEST_F(Multicast, DeathOfAProgramEndsItsMembership) {
  host_b_.kill(b2_.sim_process.id());
  network_.run(1ms);
  EXPECT_TRUE(host_b_.is_member(kGroup));
  host_b_.kill(b1_.sim_process.id());
  network_.run(1ms);
  EXPECT_FALSE(host_b_.is_member(kGroup));
  send_text(a_, "is anybody there?");
  EXPECT_THAT(a_.messages, ElementsAre("is anybody there?"));
  EXPECT_EQ(host_b_.counters().to_programs, 0u);
}

TEST_F(Multicast, AMemberCanJoinAgainAfterTheDeathOfTheAgent) {
  host_b_.kill_agent();
  network_.run(1ms);
  host_b_.start_agent();
  SimProcess& sim_process = b1_.sim_process;
  const Member& again = sim_process.install<Member>();
  host_b_.connect_to_agent(sim_process);
  network_.run(1ms);
  send_text(a_, "hello");
  EXPECT_THAT(again.messages, ElementsAre("hello"));
  EXPECT_THAT(b2_.messages, IsEmpty()) << "this program has not joined again";
  EXPECT_THAT(again.sim_process.failed_calls, IsEmpty());
  EXPECT_THAT(network_.violations(), IsEmpty());
}

}  // namespace
}  // namespace verbena::fabric
