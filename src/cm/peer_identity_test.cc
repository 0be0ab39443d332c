#include <gtest/gtest.h>

#include "cm/manager.h"
#include "cm/peer_test.h"
#include "cm/reject_info.h"

// Tests messages that another peer may have sent, and connections that a restarted peer has
// forgotten.

namespace verbena::cm {
namespace {

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
  EXPECT_EQ(std::get<Disconnected>(events.back()).cause, Disconnected::Cause::kReset);

  EXPECT_EQ(std::get<Rejected>(events.end()[-2]).endpoint, new_endpoint);
  EXPECT_EQ(std::get<Rejected>(events.end()[-2]).rej.reason, RejReason::kStaleConnection);

  // Connects with another QP, because the old QP still waits for its DREP.
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
    receive(req(++next_id));  // its primary path begins at `remote` as well
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
