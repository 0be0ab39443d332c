#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "link/infiniband.h"
#include "subnet/manager.h"
#include "subnet/packet.h"
#include "subnet/subnet.h"
#include "wire/headers.h"
#include "wire/smp.h"

namespace verbena::subnet {

// Runs a subnet with a manager at one port, in virtual time, for tests.
class ManagedSubnet {
 public:
  ManagedSubnet(Topology topology, PortRef manager_port, const Manager::Config& config = {})
      : subnet(std::move(topology)), manager(config), manager_port_(manager_port) {}

  Subnet subnet;
  Manager manager;
  Time now{};
  bool manager_is_connected = true;          // if false, the manager neither sends nor receives
  std::vector<Delivery> other_deliveries{};  // deliveries that were not for the manager

  // Runs the manager until the subnet is up.  Returns false if this takes longer than the limit.
  bool settle(Duration limit = std::chrono::seconds(60)) {
    const Time end = now + limit;
    exchange();
    while (!manager.is_up() || manager.sweeps() == 0) {
      const Time next = std::min(manager.next_deadline(), subnet.next_deadline());
      if (next > end) return false;
      now = std::max(now, next);
      subnet.advance(now);
      manager.advance(now);
      exchange();
    }
    return true;
  }

  // Sends a UD packet to kDataQpn, and returns the ports where it arrived.
  std::vector<PortRef> send_data(PortRef from, Lid to, Pkey pkey = wire::kDefaultPkey,
                                 std::size_t bytes = wire::kMadBytes) {
    other_deliveries.clear();
    subnet.send(from, data_packet(from, to, pkey, bytes), now);
    exchange();
    std::vector<PortRef> ports;
    for (const Delivery& delivery : other_deliveries) {
      if (delivery.destination_qpn == kDataQpn) ports.push_back(delivery.port);
    }
    return ports;
  }

  Packet data_packet(PortRef from, Lid to, Pkey pkey, std::size_t bytes) const {
    std::vector<std::byte> transport(wire::header_bytes(wire::Opcode::kUdSendOnly) + bytes);
    wire::write_headers(
        transport,
        {.bth = {.opcode = wire::Opcode::kUdSendOnly, .pkey = pkey, .destination_qpn = kDataQpn},
         .deth = {.qkey = Qkey{3}, .source_qpn = Qpn{4}}});
    return link::seal_infiniband(
        {.link_layer = LinkLayer::kInfiniband, .source_lid = lid(from), .destination_lid = to},
        transport);
  }

  // Sends an SMP from a port to a LID, and returns the answer, if there is one.
  std::optional<wire::Smp> send_smp(PortRef from, wire::Smp smp, Lid to = wire::kPermissiveLid) {
    other_deliveries.clear();
    (void)subnet.send_mad(
        from,
        {.to = {.path = {.link_layer = LinkLayer::kInfiniband, .destination_lid = to},
                .remote_qpn = wire::kSmiQpn},
         .mad = wire::encode(smp)},
        now);
    exchange();
    for (const Delivery& delivery : other_deliveries) {
      const auto mad = subnet.as_mad(delivery);
      if (delivery.port != from || !mad) continue;
      const auto answer = wire::decode_exact<wire::Smp>(mad->mad);
      if (answer.header.transaction_id == smp.header.transaction_id) return answer;
    }
    return std::nullopt;
  }

  Lid lid(PortRef port) const { return subnet.status(port).lid; }

  // SMPs of tests have this transaction ID, which is larger than any ID of the manager.
  static constexpr std::uint64_t kTestTransaction = std::uint64_t{1} << 60;
  static constexpr Qpn kDataQpn{2};

 private:
  // Passes MADs between the manager and the subnet until there are none left.
  void exchange() {
    bool has_progress = true;
    while (has_progress) {
      has_progress = false;
      while (auto send = manager_is_connected ? manager.next_send() : std::nullopt) {
        has_progress = true;
        (void)subnet.send_mad(manager_port_, *send, now);
      }
      while (auto delivery = subnet.next_delivery()) {
        const auto mad = subnet.as_mad(*delivery);
        if (manager_is_connected && delivery->port == manager_port_ &&
            delivery->destination_qpn == wire::kSmiQpn && mad && is_for_manager(*mad)) {
          has_progress = true;
          manager.receive(mad->from, mad->mad, now);
        } else {
          other_deliveries.push_back(std::move(*delivery));
        }
      }
    }
  }

  static bool is_for_manager(const MadDelivery& mad) {
    const auto smp = wire::decode_exact<wire::Smp>(mad.mad);
    return smp.header.transaction_id != kTestTransaction;
  }

  PortRef manager_port_;
};

// Makes an SMP with a directed route for ManagedSubnet::send_smp().
inline wire::Smp directed_smp(wire::Method method, wire::SmpAttribute attribute,
                              std::uint32_t modifier, const std::vector<std::uint8_t>& path,
                              const wire::SmpData& data = {}) {
  wire::Smp smp{.header = {.mgmt_class = wire::MgmtClass::kSubnetManagementDirected,
                           .class_version = 1,
                           .method = method,
                           .transaction_id = ManagedSubnet::kTestTransaction,
                           .attribute_id = std::to_underlying(attribute),
                           .attribute_modifier = modifier},
                .dr_source = wire::kPermissiveLid,
                .dr_destination = wire::kPermissiveLid,
                .data = data};
  smp.set_hop_count(static_cast<std::uint8_t>(path.size()));
  for (std::size_t i = 0; i < path.size(); ++i) {
    smp.initial_path[i + 1] = static_cast<std::byte>(path[i]);
  }
  return smp;
}

}  // namespace verbena::subnet
