// Sends arbitrary bytes into a subnet that a manager has configured.  The subnet has two hosts and
// a switch.  Checks that only valid packets arrive at hosts, and that each call returns.

#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "sim/fuzz_input.h"
#include "subnet/generate.h"
#include "subnet/test_subnet.h"

namespace {

using namespace verbena;
using namespace verbena::subnet;

// Makes a MAD from the input.  About two thirds of the MADs are SMPs with a valid class, method and
// path.
mad::Mad take_mad(sim::FuzzInput& input, std::uint8_t kind) {
  mad::Mad mad{};
  for (std::byte& b : mad) b = static_cast<std::byte>(input.take<std::uint8_t>());
  if (kind % 3 == 2) return mad;
  wire::Smp smp = wire::decode_exact<wire::Smp>(mad);
  smp.header.base_version = 1;
  smp.header.class_version = 1;
  smp.header.response = false;
  smp.header.status = 0;
  smp.header.method = kind % 2 == 0 ? wire::Method::kGet : wire::Method::kSet;
  smp.header.mgmt_class = kind % 3 == 0 ? wire::MgmtClass::kSubnetManagementDirected
                                        : wire::MgmtClass::kSubnetManagementLid;
  smp.header.attribute_id = std::uint16_t{0x10} + smp.header.attribute_id % 16;
  smp.header.attribute_modifier %= 4;
  smp.set_hop_pointer(0);
  smp.set_hop_count(smp.hop_count() % 3);
  smp.dr_source = smp.dr_destination = wire::kPermissiveLid;
  smp.initial_path[1] = smp.initial_path[2] = std::byte{1};
  return wire::encode(smp);
}

void change_link(ManagedSubnet& world, std::uint8_t kind, std::uint8_t value) {
  const std::size_t link = kind % 2;
  switch (kind / 2 % 4) {
    case 0: return world.subnet.set_link(link, value % 2 == 0, world.now);
    case 1:
      return world.subnet.set_loss(link, {.per_million = value % 4 * 300'000u, .seed = value});
    case 2: return world.subnet.set_delay(link, std::chrono::milliseconds(value));
    default: return world.subnet.set_mtu(link, Mtu(1 + value % 5), world.now);
  }
}

void change_node(ManagedSubnet& world, std::uint8_t kind, std::uint8_t value) {
  const std::uint32_t node = kind % 3u;
  const bool is_hca = !world.subnet.topology().nodes[node].is_switch();
  switch (kind / 3 % 4) {
    case 0: return world.subnet.set_power(node, value % 2 == 0, world.now);
    case 1: return world.subnet.set_paused(node, value % 2 == 0, world.now);
    case 2: return void(is_hca && world.subnet.remove_pkey({node, 1}, wire::kDefaultPkey));
    default: return void(is_hca && world.subnet.add_pkey({node, 1}, Pkey{value}));
  }
}

void step(ManagedSubnet& world, sim::FuzzInput& input) {
  const auto kind = input.take<std::uint8_t>();
  const PortRef from{1 + input.take<std::uint8_t>() % std::uint32_t{2}, 1};
  world.now += Duration(input.take<std::uint32_t>());
  switch (kind % 8) {
    case 0: return change_link(world, kind / 8, input.take<std::uint8_t>());
    case 1: return change_node(world, kind / 8, input.take<std::uint8_t>());
    case 2: {
      Packet packet(input.take<std::uint8_t>());
      for (std::byte& b : packet) b = static_cast<std::byte>(input.take<std::uint8_t>());
      return world.subnet.send(from, packet, world.now);
    }
    case 3: return world.subnet.advance(world.now);
    default: {
      mad::SendMad send{.to = {.path = {.destination_lid = Lid{input.take<std::uint16_t>()}},
                               .remote_qpn = Qpn{kind % 8u == 4 ? 1u : 0u}},
                        .mad = take_mad(input, kind)};
      if (kind % 2 == 0) send.to.path.destination_lid.value %= 5;
      if (kind % 4 == 3) send.to.path.destination_lid = wire::kPermissiveLid;
      VB_CHECK(world.subnet.send_mad(from, send, world.now).has_value());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ManagedSubnet world(*make_hosts(2), {1, 1});
  VB_CHECK(world.settle());
  sim::FuzzInput input({data, size});
  while (!input.empty()) {
    step(world, input);
    while (const auto delivery = world.subnet.next_delivery()) {
      VB_CHECK(view_packet(delivery->packet).has_value());
      VB_CHECK(!world.subnet.topology().nodes[delivery->port.node].is_switch());
      (void)world.subnet.as_mad(*delivery);
    }
    while (world.subnet.next_event()) {
    }
  }
  return 0;
}
