// Passes any bytes as MADs to a port with agents of several classes, one of which has sent
// requests.  The port must answer each MAD with few MADs, and after on_timer() its deadline must
// lie in the future.  At the end, all its timers must expire.

#include <cstdint>
#include <cstring>

#include "mad/management_port.h"
#include "wire/rmpp.h"

namespace {

using namespace verbena;
using namespace verbena::mad;

constexpr std::uint64_t kAllMethods = 0xffffffff;

void add_agents(ManagementPort& port) {
  VB_CHECK(
      port.add_agent(
              {.mgmt_class = 3, .class_version = 2, .methods = {kAllMethods, 0}, .rmpp_version = 1})
          .has_value());
  VB_CHECK(
      port.add_agent(
              {.mgmt_class = 0x32, .oui = 0x1405, .methods = {kAllMethods, 0}, .rmpp_version = 1})
          .has_value());
  VB_CHECK(
      port.add_agent({.qpn = {0}, .mgmt_class = 0x81, .methods = {kAllMethods, 0}}).has_value());
}

void send_requests(ManagementPort& port, Time now) {
  for (std::uint32_t id = 1; id <= 4; ++id) {
    std::vector<std::byte> mad(id < 3 ? 256 : 256 + 700);
    const wire::MadHeader header{.mgmt_class = wire::MgmtClass::kSubnetAdministration,
                                 .class_version = 2,
                                 .method = wire::Method::kGetTable,
                                 .transaction_id = id};
    wire::encode_to(std::span(mad).first<wire::kMadHeaderBytes>(), header);
    if (mad.size() > wire::kMadBytes) {
      wire::encode_to(std::span(mad).subspan<wire::kMadHeaderBytes, wire::kRmppHeaderBytes>(),
                      wire::RmppHeader{.type = wire::RmppType::kData, .active = true});
    }
    Address to{.remote_qpn = {1}};
    to.path.link_layer = LinkLayer::kInfiniband;
    to.path.destination_lid = Lid{2};
    VB_CHECK(
        port.send(AgentNumber{1}, {.to = to, .timeout = std::chrono::seconds(1), .mad = mad}, now)
            .has_value());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ManagementPort port;
  Time now{std::chrono::seconds(1)};
  add_agents(port);
  send_requests(port, now);
  // A record of the input has the first bytes of a MAD, whose other bytes are zero.  The last three
  // bytes of the record also choose a time step, the QP and the LID.
  constexpr std::size_t kRecordBytes = 40;
  for (std::size_t at = 0; at + kRecordBytes <= size; at += kRecordBytes) {
    Mad mad{};
    std::memcpy(mad.data(), data + at, kRecordBytes);
    Address from{.remote_qpn = {1}};
    from.path.link_layer = LinkLayer::kInfiniband;
    from.path.destination_lid = Lid{static_cast<std::uint16_t>(data[at + 39] & 3)};
    while (port.next_packet()) {
    }
    port.receive(
        {.destination_qpn = Qpn{std::uint32_t{data[at + 38]} & 1}, .from = from, .mad = mad}, now);
    unsigned answers = 0;
    while (port.next_packet()) ++answers;
    VB_CHECK(answers <= RmppReceiver::kWindow + 2);
    now += std::chrono::milliseconds(data[at + 37]);
    port.on_timer(now);
    VB_CHECK(port.deadline() > now);
  }
  while (port.deadline() != kNever) port.on_timer(port.deadline());
  while (port.next_message()) {
  }
  return 0;
}
