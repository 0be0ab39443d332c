#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "cm/manager.h"
#include "cm/pair_test.h"
#include "mad/dispatcher.h"
#include "wire/cm.h"
#include "wire/ip.h"

// Provides one manager for tests.  The test itself makes the messages of the peer.
namespace verbena::cm {

inline constexpr Guid kPeerGuid{0xbeef};
inline constexpr std::uint64_t kTid = 0x1234'5678'9abc'def0;

class PeerTest : public testing::Test {
 protected:
  explicit PeerTest(Config config = {.ca_guid = {0x5054}}) : cm(config, Random(1)) {
    EXPECT_TRUE(cm.listen({.id = kService}, kListenerCookie).has_value());
  }

  // Returns the last message that the manager sent in response, if there was one.
  std::optional<wire::cm::Message> receive(const wire::cm::Message& message,
                                           std::uint8_t class_version = 2,
                                           std::uint32_t attribute_modifier = 0) {
    auto sent = wire::cm::mad_header(wire::cm::attribute_id(message), kTid, attribute_modifier);
    sent.class_version = class_version;
    const mad::Mad mad = wire::cm::encode_mad(sent, message);
    const auto received = dispatcher.receive(address, mad);
    cm.receive(std::get<mad::Delivered>(received), now);
    return drain();
  }
  // Takes all outputs of the Manager.  Stores the events, and returns the last message, if any.
  std::optional<wire::cm::Message> drain() {
    std::optional<wire::cm::Message> last;
    while (auto output = cm.poll()) {
      if (const auto* send = std::get_if<mad::SendMad>(&*output)) {
        if (!peer_moves) {
          EXPECT_EQ(send->to, address);
        }
        header = wire::decode_exact<wire::MadHeader>(
            std::span(send->mad).first<wire::kMadHeaderBytes>());
        last = *wire::cm::decode_message(header.attribute_id,
                                         std::span(send->mad).subspan(wire::kMadHeaderBytes));
      } else {
        events.push_back(std::get<Event>(*output));
      }
    }
    return last;
  }
  // Returns the endpoint of the latest ReqReceived.
  EndpointHandle last_request() {
    for (auto at = events.rbegin(); at != events.rend(); ++at) {
      if (const auto* request = std::get_if<ReqReceived>(&*at)) return request->endpoint;
    }
    return {};
  }
  EndpointHandle connect() {
    return *cm.connect({.address = address,
                        .service_id = kService,
                        .qpn = {0x11},
                        .path_mtu = 3,
                        .packet_life = 14,
                        .local_ack_timeout = 15},
                       5, now);
  }

  wire::cm::Req req(std::uint32_t id = 0xaaaa, std::uint32_t qpn = 0x77) const {
    return {.local_comm_id = {id},
            .service_id = kService,
            .local_ca_guid = kPeerGuid,
            .local_qpn = {qpn},
            .local_cm_response_timeout = 20,
            .pkey = kDefaultPkey,
            .path_mtu = 3,
            .max_cm_retries = 15,
            .primary_path = {.local_gid = address.remote(), .remote_gid = address.local()}};
  }

  mad::Dispatcher dispatcher;
  mad::Address address{
      .path = {.source = wire::ipv4_gid(0x0a000001), .destination = wire::ipv4_gid(0x0a000002)}};
  bool peer_moves = false;  // messages may go to an address that the peer had before
  Manager cm;
  Time now{};
  std::vector<Event> events;
  wire::MadHeader header;  // of the last MAD that the manager sent
};

}  // namespace verbena::cm
