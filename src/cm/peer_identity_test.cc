#include <gtest/gtest.h>

#include "cm/manager.h"
#include "cm/peer_test.h"
#include "cm/reject_info.h"

// Tests messages that another peer may have sent, and connections that a restarted peer has
// forgotten.

namespace verbena::cm {
namespace {

using wire::cm::Drep;
using wire::cm::Dreq;
using wire::cm::Rej;
using wire::cm::RejReason;
using wire::cm::Rep;
using wire::cm::Req;
using wire::cm::Rtu;

using PeerIdentityTest = PeerTest;

TEST_F(PeerIdentityTest, IgnoresIdsAndQpnsOfOtherPeers) {
  receive(req());
  ASSERT_TRUE(cm.accept(last_request(), {.qpn = {0x500}}, now).has_value());
  const Rep rep = std::get<Rep>(*drain());
  receive(Rtu{.local_comm_id = {0xaaab}, .remote_comm_id = rep.local_comm_id});
  EXPECT_EQ(cm.counters().of(Ignored::kWrongRemoteId), 1u);
  receive(Rtu{.local_comm_id = {0xaaaa}, .remote_comm_id = rep.local_comm_id});
  EXPECT_TRUE(std::holds_alternative<Established>(events.back()));
  const Dreq dreq{
      .local_comm_id = {0xaaaa}, .remote_comm_id = rep.local_comm_id, .remote_qpn = {0x501}};
  EXPECT_FALSE(receive(dreq).has_value());
  EXPECT_EQ(cm.counters().of(Ignored::kWrongQpn), 1u);
  EXPECT_TRUE(std::holds_alternative<Established>(events.back()));
}

// manager_fuzz found this case.
TEST_F(PeerIdentityTest, ARepOrRtuForTheWrongSideIsIgnored) {
  receive(req());
  ASSERT_TRUE(cm.accept(last_request(), {.qpn = {0x500}}, now).has_value());
  const CommId our_id = std::get<Rep>(*drain()).local_comm_id;
  cm.comm_established(last_request(), now);
  EXPECT_FALSE(receive(Rep{.local_comm_id = {0xaaaa}, .remote_comm_id = our_id}).has_value());
  EXPECT_EQ(cm.counters().of(Ignored::kWrongState), 1u);
  connect();
  const CommId active_id = std::get<Req>(*drain()).local_comm_id;
  EXPECT_FALSE(receive(Rtu{.local_comm_id = {1}, .remote_comm_id = active_id}).has_value());
  EXPECT_EQ(cm.counters().of(Ignored::kWrongState), 2u);
}

class StaleConnectionTest : public PeerTest {
 protected:
  // Makes a connection with the peer's QP 0x77.
  StaleConnectionTest() {
    receive(req());
    endpoint = last_request();
    EXPECT_TRUE(cm.accept(endpoint, {.qpn = kOurQpn}, now));
    our_id = std::get<Rep>(*drain()).local_comm_id;
    receive(Rtu{.local_comm_id = kPeerId, .remote_comm_id = our_id});
    EXPECT_EQ(cm.view(endpoint)->state, State::kEstablished);
  }

  // Receives a new REQ that names the QP of the connection.  Returns the last message that was
  // sent.
  std::optional<wire::cm::Message> receive_stale_req() { return receive(req(++next_id)); }
  // Advances the time until no timer is armed.  Returns the number of messages that were sent.
  int run() {
    int count = 0;
    while (cm.deadline() != kNever) {
      now = cm.deadline();
      cm.on_timer(now);
      if (drain()) ++count;
    }
    return count;
  }

  static constexpr CommId kPeerId{0xaaaa};
  static constexpr Qpn kOurQpn{0x500};
  EndpointHandle endpoint{};
  CommId our_id{};
  std::uint32_t next_id = 0xbbbb;
};

// Any user of any host can make such a REQ, because GUIDs, QPNs and addresses are easy to guess.
TEST_F(StaleConnectionTest, ReqThatThePeerDidNotSendDoesNotEndAConnection) {
  for (int i = 0; i < 3; ++i) {
    receive_stale_req();
    EXPECT_EQ(cm.counters().rejects_sent.at(10), static_cast<std::uint64_t>(i + 1));
    run();  // the peer ignores the probe
    EXPECT_EQ(cm.view(endpoint)->state, State::kEstablished);
  }
  EXPECT_TRUE(std::holds_alternative<Established>(events.back()));
  receive(Dreq{.local_comm_id = kPeerId, .remote_comm_id = our_id, .remote_qpn = kOurQpn});
  EXPECT_EQ(std::get<Disconnected>(events.back()).cause, Disconnected::Cause::kPeer);
}

// A peer that has the connection ignores a DREQ that names another QP.
TEST_F(StaleConnectionTest, ProbeNamesNoQpOfThePeer) {
  const auto probe = receive_stale_req();
  ASSERT_TRUE(probe && std::holds_alternative<Dreq>(*probe));
  EXPECT_EQ(std::get<Dreq>(*probe).local_comm_id, our_id);
  EXPECT_EQ(std::get<Dreq>(*probe).remote_comm_id, kPeerId);
  EXPECT_EQ(std::get<Dreq>(*probe).remote_qpn, Qpn{});
}

TEST_F(StaleConnectionTest, PeerThatHasForgottenTheConnectionEndsIt) {
  receive_stale_req();
  receive(Drep{.local_comm_id = kPeerId, .remote_comm_id = our_id});
  EXPECT_EQ(std::get<Disconnected>(events.back()).cause, Disconnected::Cause::kReset);
  EXPECT_EQ(cm.view(endpoint)->state, State::kTimewait);
  run();
  EXPECT_TRUE(std::holds_alternative<TimewaitExit>(events.back()));
  receive_stale_req();
  EXPECT_TRUE(std::holds_alternative<ReqReceived>(events.back())) << "the QP is free";
}

TEST_F(StaleConnectionTest, LostProbeIsRepeated) {
  receive_stale_req();
  now = cm.deadline();
  cm.on_timer(now);
  const auto repeated = drain();
  ASSERT_TRUE(repeated && std::holds_alternative<Dreq>(*repeated));
  receive(Drep{.local_comm_id = kPeerId, .remote_comm_id = our_id});
  EXPECT_EQ(cm.view(endpoint)->state, State::kTimewait);
}

// Otherwise somebody could make this host send probes without a limit.
TEST_F(StaleConnectionTest, ManyReqsCauseOneProbeAtATime) {
  receive_stale_req();
  const auto before = cm.counters().of(wire::cm::AttributeId::kDreq).sent;
  for (int i = 0; i < 10; ++i) receive_stale_req();
  EXPECT_EQ(cm.counters().of(wire::cm::AttributeId::kDreq).sent, before);
  EXPECT_LE(run(), 8);
}

TEST_F(StaleConnectionTest, UnaskedDrepDoesNotEndAConnection) {
  receive(Drep{.local_comm_id = kPeerId, .remote_comm_id = our_id});
  EXPECT_EQ(cm.view(endpoint)->state, State::kEstablished);
  receive_stale_req();
  run();
  receive(Drep{.local_comm_id = kPeerId, .remote_comm_id = our_id});  // too late
  EXPECT_EQ(cm.view(endpoint)->state, State::kEstablished);
}

TEST_F(StaleConnectionTest, ProgramThatDisconnectsDuringAProbeSendsItsOwnDreq) {
  receive_stale_req();
  ASSERT_TRUE(cm.disconnect(endpoint, {}, now));
  const auto dreq = drain();
  ASSERT_TRUE(dreq && std::holds_alternative<Dreq>(*dreq));
  EXPECT_EQ(std::get<Dreq>(*dreq).remote_qpn, Qpn{0x77});
  receive(Drep{.local_comm_id = kPeerId, .remote_comm_id = our_id});
  EXPECT_EQ(std::get<Disconnected>(events.back()).cause, Disconnected::Cause::kLocal);
}

// The REP is a probe: a peer that does not know it sends a REJ, or is silent.
TEST_F(StaleConnectionTest, AcceptedRequestSurvivesAReqOfItsQp) {
  receive(req(0x1111, 0x99));
  const EndpointHandle accepted = last_request();
  ASSERT_TRUE(cm.accept(accepted, {.qpn = {0x501}}, now));
  const CommId id = std::get<Rep>(*drain()).local_comm_id;
  receive(req(0x2222, 0x99));
  EXPECT_EQ(cm.view(accepted)->state, State::kRepSent);
  receive(Rtu{.local_comm_id = {0x1111}, .remote_comm_id = id});
  EXPECT_EQ(cm.view(accepted)->state, State::kEstablished);
}

// The peer does not know our id yet, so it cannot be asked.
TEST_F(StaleConnectionTest, UnansweredRequestEndsWithAReqOfItsQp) {
  receive(req(0x1111, 0x99));
  receive(req(0x2222, 0x99));
  ASSERT_TRUE(std::holds_alternative<Rejected>(events.back()));
  EXPECT_EQ(std::get<Rejected>(events.back()).rej.reason, RejReason::kStaleConnection);
  receive(req(0x3333, 0x99));
  EXPECT_TRUE(std::holds_alternative<ReqReceived>(events.back()));
}

TEST_F(StaleConnectionTest, ConnectionThatTheProgramHasNotConfirmedIsProbed) {
  const EndpointHandle active = connect();
  const CommId id = std::get<Req>(*drain()).local_comm_id;
  receive(Rep{.local_comm_id = {0x1111},
              .remote_comm_id = id,
              .local_qpn = {0x99},
              .local_ca_guid = kPeerGuid});
  const auto probe = receive(req(0x2222, 0x99));
  ASSERT_TRUE(probe && std::holds_alternative<Dreq>(*probe));
  EXPECT_EQ(cm.view(active)->state, State::kRepReceived);
  receive(Drep{.local_comm_id = {0x1111}, .remote_comm_id = id});
  EXPECT_EQ(cm.view(active)->state, State::kTimewait);
  ASSERT_TRUE(std::holds_alternative<Rejected>(events.back()));
  EXPECT_EQ(std::get<Rejected>(events.back()).rej.reason, RejReason::kStaleConnection);
}

// The peer's host was restarted, and uses the same QP numbers again.
TEST_F(PeerIdentityTest, RepOfAConnectedQpEndsItsOldConnection) {
  const EndpointHandle old_endpoint = connect();
  const CommId old_id = std::get<Req>(*drain()).local_comm_id;
  receive(Rep{.local_comm_id = {1},
              .remote_comm_id = old_id,
              .local_qpn = {0x77},
              .local_ca_guid = kPeerGuid});
  ASSERT_TRUE(cm.establish(old_endpoint, {}, now).has_value());
  drain();

  const EndpointHandle new_endpoint = connect();
  const CommId new_id = std::get<Req>(*drain()).local_comm_id;
  Rep rep{.local_comm_id = {2},
          .remote_comm_id = new_id,
          .local_qpn = {0x77},
          .local_ca_guid = kPeerGuid};
  const auto last = receive(rep);
  ASSERT_TRUE(last && std::holds_alternative<Dreq>(*last));
  EXPECT_EQ(std::get<Dreq>(*last).local_comm_id, old_id);
  EXPECT_EQ(cm.counters().rejects_sent.at(10), 1u);
  receive(Drep{.local_comm_id = {1}, .remote_comm_id = old_id});
  EXPECT_EQ(std::get<Disconnected>(events.back()).cause, Disconnected::Cause::kReset);

  EXPECT_EQ(std::get<Rejected>(events.end()[-2]).endpoint, new_endpoint);
  EXPECT_EQ(std::get<Rejected>(events.end()[-2]).rej.reason, RejReason::kStaleConnection);

  // Connects with another QP, because the old QP is in timewait.
  ASSERT_TRUE(cm.connect({.address = address, .service_id = kService, .qpn = {0x12}, .path_mtu = 3},
                         5, now));
  rep.remote_comm_id = std::get<Req>(*drain()).local_comm_id;
  receive(rep);
  EXPECT_TRUE(std::holds_alternative<RepReceived>(events.back()));
}

class OtherAddressTest : public PeerIdentityTest {
 protected:
  OtherAddressTest() { peer_moves = true; }
  // Connects with the peer's QP 0x77.  The REQ has this alternate path, which may be empty.
  EndpointHandle connect_with(const wire::cm::Path& alternate_path) {
    Req request = req();
    request.alternate_path = alternate_path;
    receive(request);
    const EndpointHandle endpoint = last_request();
    EXPECT_TRUE(cm.accept(endpoint, {.qpn = {0x500}, .alternate_path_accepted = true}, now));
    const CommId ours = std::get<Rep>(*drain()).local_comm_id;
    receive(Rtu{.local_comm_id = {0xaaaa}, .remote_comm_id = ours});
    return endpoint;
  }
  // Returns true if the connection ends when a REQ with the same QP and CA GUID arrives from this
  // address.
  bool req_ends_connection(EndpointHandle endpoint, const Gid& remote) {
    address.path.destination = remote;
    const auto sent = receive(req(++next_id));  // its primary path begins at `remote` as well
    if (sent && std::holds_alternative<Dreq>(*sent)) {  // a peer that was restarted answers
      const auto& probe = std::get<Dreq>(*sent);
      receive(Drep{.local_comm_id = probe.remote_comm_id, .remote_comm_id = probe.local_comm_id});
    }
    return cm.view(endpoint)->state != State::kEstablished;
  }

  std::uint32_t next_id = 0xbbbb;
  const Gid primary_gid = address.remote();
  const Gid alternate_gid = wire::ipv4_gid(0x0a000012);
  const Gid other_host_gid = wire::ipv4_gid(0x0a000003);
  const wire::cm::Path other_path{.local_gid = alternate_gid, .remote_gid = address.local()};
};

TEST_F(OtherAddressTest, ReqFromAnotherHostDoesNotEndAConnection) {
  const EndpointHandle endpoint = connect_with({});
  EXPECT_FALSE(req_ends_connection(endpoint, other_host_gid));
  EXPECT_FALSE(req_ends_connection(endpoint, alternate_gid));
  EXPECT_EQ(cm.counters().rejects_sent.count(10), 0u);
  EXPECT_TRUE(req_ends_connection(endpoint, primary_gid));
  EXPECT_EQ(cm.counters().rejects_sent.at(10), 1u);
}

TEST_F(OtherAddressTest, ReqFromTheAlternatePathEndsAConnection) {
  EXPECT_TRUE(req_ends_connection(connect_with(other_path), alternate_gid));
}

TEST_F(OtherAddressTest, BothPathsBelongToThePeerAfterMigration) {
  const EndpointHandle endpoint = connect_with(other_path);
  cm.path_migrated(endpoint);
  EXPECT_FALSE(req_ends_connection(endpoint, other_host_gid));
  EXPECT_TRUE(req_ends_connection(endpoint, primary_gid));
}

// The peer gave up before it got our REP, so its REJ does not name our id, but only its own id and
// CA GUID.
TEST_F(PeerIdentityTest, RejWithReasonTimeoutIsMatchedByCaGuid) {
  receive(req());
  const auto rej = [](Guid guid, std::uint32_t id) {
    Rej made{.local_comm_id = {id}, .reject_info_length_bytes = 8, .reason = RejReason::kTimeout};
    wire::encode_to(made.additional_reject_info, CaGuidInfo{guid});
    return made;
  };
  receive(rej({0xbad}, 0xaaaa));
  receive(rej(kPeerGuid, 0xaaab));
  EXPECT_TRUE(std::holds_alternative<ReqReceived>(events.back()));
  const auto endpoint = last_request();
  receive(rej(kPeerGuid, 0xaaaa));
  ASSERT_TRUE(std::holds_alternative<Rejected>(events.back()));
  EXPECT_EQ(std::get<Rejected>(events.back()).rej.reason, RejReason::kTimeout);
  EXPECT_EQ(cm.accept(endpoint, {.qpn = {1}}, now).error().code, Errc::kBadState);
}

// Both sides know both ids when the connection is established, so a REJ that lacks our id must not
// end the connection.
TEST_F(PeerIdentityTest, RejTimeoutWithoutIdsDoesNotEndAConnection) {
  receive(req());
  ASSERT_TRUE(cm.accept(last_request(), {.qpn = {0x500}}, now).has_value());
  drain();
  cm.comm_established(last_request(), now);
  drain();
  Rej rej{.local_comm_id = {0xaaaa}, .reject_info_length_bytes = 8, .reason = RejReason::kTimeout};
  wire::encode_to(rej.additional_reject_info, CaGuidInfo{kPeerGuid});
  receive(rej);
  EXPECT_TRUE(std::holds_alternative<Established>(events.back()));
}

}  // namespace
}  // namespace verbena::cm
