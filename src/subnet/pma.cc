#include "subnet/pma.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "wire/mad.h"

namespace verbena::subnet {
namespace {

using wire::PerformanceAttribute;
using wire::PortCounters;
using wire::PortCountersExtended;
using wire::PortRcvErrorDetails;
using wire::PortXmitDiscardDetails;
using namespace wire::mad_status;

using PmaData = std::span<std::byte, wire::kPerformanceDataBytes>;

// Holds the ports that a request selects.  kAllPorts selects all ports of the device.
using Ports = std::vector<DevicePort*>;

// Each for_each_counter() calls visit(selected, counter, field, maximum of the field) for all
// counters of an attribute, in the order of the select bits.
template <class Visit>
void for_each_counter(PortCounters& c, Visit&& visit) {
  std::uint32_t bit = 1;
  const auto next = [&](Count count, auto& field, unsigned bits) {
    visit((c.counter_select & bit) != 0, count, field, (std::uint64_t{1} << bits) - 1);
    bit <<= 1;
  };
  next(Count::kSymbolErrors, c.symbol_errors, 16);
  next(Count::kLinkErrorRecoveries, c.link_error_recoveries, 8);
  next(Count::kLinkDowned, c.link_downed, 8);
  next(Count::kRcvErrors, c.rcv_errors, 16);
  next(Count::kRcvRemotePhysicalErrors, c.rcv_remote_physical_errors, 16);
  next(Count::kRcvSwitchRelayErrors, c.rcv_switch_relay_errors, 16);
  next(Count::kXmitDiscards, c.xmit_discards, 16);
  next(Count::kXmitConstraintErrors, c.xmit_constraint_errors, 8);
  next(Count::kRcvConstraintErrors, c.rcv_constraint_errors, 8);
  next(Count::kLocalLinkIntegrityErrors, c.local_link_integrity_errors, 4);
  next(Count::kExcessiveBufferOverrunErrors, c.excessive_buffer_overrun_errors, 4);
  next(Count::kVl15Dropped, c.vl15_dropped, 16);
  next(Count::kXmitData, c.xmit_data, 32);
  next(Count::kRcvData, c.rcv_data, 32);
  next(Count::kXmitPackets, c.xmit_packets, 32);
  next(Count::kRcvPackets, c.rcv_packets, 32);
  visit((c.counter_select2 & 1) != 0, Count::kXmitWait, c.xmit_wait,
        std::uint64_t{std::numeric_limits<std::uint32_t>::max()});
  visit((c.counter_select2 & 2) != 0, Count::kQp1Dropped, c.qp1_dropped,
        std::uint64_t{std::numeric_limits<std::uint16_t>::max()});
}

template <class Visit>
void for_each_counter(PortCountersExtended& c, Visit&& visit) {
  std::uint32_t bit = 1;
  const auto next = [&](std::uint32_t select, Count count, std::uint64_t& field) {
    visit((select & bit) != 0, count, field, std::numeric_limits<std::uint64_t>::max());
    bit <<= 1;
  };
  const std::uint32_t first_select = c.counter_select, second_select = c.counter_select2;
  next(first_select, Count::kXmitData, c.xmit_data);
  next(first_select, Count::kRcvData, c.rcv_data);
  next(first_select, Count::kXmitPackets, c.xmit_packets);
  next(first_select, Count::kRcvPackets, c.rcv_packets);
  next(first_select, Count::kUnicastXmitPackets, c.unicast_xmit_packets);
  next(first_select, Count::kUnicastRcvPackets, c.unicast_rcv_packets);
  next(first_select, Count::kMulticastXmitPackets, c.multicast_xmit_packets);
  next(first_select, Count::kMulticastRcvPackets, c.multicast_rcv_packets);
  bit = 1;
  next(second_select, Count::kSymbolErrors, c.symbol_errors);
  next(second_select, Count::kLinkErrorRecoveries, c.link_error_recoveries);
  next(second_select, Count::kLinkDowned, c.link_downed);
  next(second_select, Count::kRcvErrors, c.rcv_errors);
  next(second_select, Count::kRcvRemotePhysicalErrors, c.rcv_remote_physical_errors);
  next(second_select, Count::kRcvSwitchRelayErrors, c.rcv_switch_relay_errors);
  next(second_select, Count::kXmitDiscards, c.xmit_discards);
  next(second_select, Count::kXmitConstraintErrors, c.xmit_constraint_errors);
  next(second_select, Count::kRcvConstraintErrors, c.rcv_constraint_errors);
  next(second_select, Count::kLocalLinkIntegrityErrors, c.local_link_integrity_errors);
  next(second_select, Count::kExcessiveBufferOverrunErrors, c.excessive_buffer_overrun_errors);
  next(second_select, Count::kVl15Dropped, c.vl15_dropped);
  next(second_select, Count::kXmitWait, c.xmit_wait);
  next(second_select, Count::kQp1Dropped, c.qp1_dropped);
}

template <class Visit>
void visit_16_bit_counters(std::uint32_t select,
                           std::initializer_list<std::pair<Count, std::uint16_t*>> counters,
                           Visit&& visit) {
  std::uint32_t bit = 1;
  for (const auto& [count, field] : counters) {
    visit((select & bit) != 0, count, *field,
          std::uint64_t{std::numeric_limits<std::uint16_t>::max()});
    bit <<= 1;
  }
}

template <class Visit>
void for_each_counter(PortRcvErrorDetails& c, Visit&& visit) {
  visit_16_bit_counters(c.counter_select,
                        {{Count::kLocalPhysicalErrors, &c.local_physical_errors},
                         {Count::kMalformedPackets, &c.malformed_packet_errors},
                         {Count::kBufferOverruns, &c.buffer_overrun_errors},
                         {Count::kDlidMappingErrors, &c.dlid_mapping_errors},
                         {Count::kVlMappingErrors, &c.vl_mapping_errors},
                         {Count::kLoopingErrors, &c.looping_errors}},
                        visit);
}

template <class Visit>
void for_each_counter(PortXmitDiscardDetails& c, Visit&& visit) {
  visit_16_bit_counters(c.counter_select,
                        {{Count::kInactiveDiscards, &c.inactive_discards},
                         {Count::kNeighborMtuDiscards, &c.neighbor_mtu_discards},
                         {Count::kSwitchLifetimeDiscards, &c.switch_lifetime_discards},
                         {Count::kSwitchHoqLifetimeDiscards, &c.switch_hoq_lifetime_discards}},
                        visit);
}

// Returns the ports that a request selects; none if the port does not exist.
Ports selected_ports(Device& device, std::uint8_t select) {
  Ports ports;
  const std::uint8_t first = device.is_switch() ? 0 : 1;
  for (std::size_t number = first; number < device.ports.size(); ++number) {
    if (select == wire::kAllPorts || select == number) ports.push_back(&device.ports[number]);
  }
  return ports;
}

// Fills in the sums of the ports' counters.  Each sum stops at the maximum of its field.
template <class Attribute>
void fill(Attribute& attribute, CountView view, const Ports& ports) {
  for_each_counter(attribute, [&](bool, Count count, auto& field, std::uint64_t max) {
    std::uint64_t sum = 0;
    for (const DevicePort* port : ports) {
      sum += std::min(max - sum, port->counts.value(view, count, max));
    }
    field = static_cast<std::remove_reference_t<decltype(field)>>(sum);
  });
}

template <class Attribute>
void set_selected(Attribute attribute, CountView view, const Ports& ports) {
  for_each_counter(attribute, [&](bool selected, Count count, auto& field, std::uint64_t) {
    if (!selected) return;
    for (DevicePort* port : ports) port->counts.set(view, count, field);
  });
}

template <class Attribute>
std::uint16_t answer_counters(Device& device, wire::Method method, CountView view, PmaData data) {
  Attribute attribute = wire::decode_exact<Attribute>(data.first<wire::kSize<Attribute>>());
  const Ports ports = selected_ports(device, attribute.port_select);
  if (ports.empty()) return kInvalidValue;
  if (method == wire::Method::kSet) set_selected(attribute, view, ports);
  fill(attribute, view, ports);
  std::ranges::fill(data, std::byte{0});
  wire::encode_to(data, attribute);
  return 0;
}

std::uint16_t answer_class_port_info(wire::Method method, PmaData data) {
  if (method != wire::Method::kGet) return kMethodAttributeNotSupported;
  using namespace wire::performance_capability;
  constexpr std::uint8_t kRespTime = 16;  // 268 ms
  std::ranges::fill(data, std::byte{0});
  wire::encode_to(data, wire::ClassPortInfo{.class_version = 1,
                                            .capability_mask = kAllPortSelect | kExtendedWidth |
                                                               kXmitWait | kQp1Drops,
                                            .capability_mask2 = wire::kAdditionalCountersExtended,
                                            .resp_time_value = kRespTime});
  return 0;
}

}  // namespace

std::uint16_t pma_answer(Device& device, const wire::MadHeader& header, PmaData data) {
  if (header.class_version != wire::class_version(wire::MgmtClass::kPerformance)) {
    return kBadVersion;
  }
  if (header.method != wire::Method::kGet && header.method != wire::Method::kSet) {
    return kMethodNotSupported;
  }
  switch (PerformanceAttribute{header.attribute_id}) {
    case PerformanceAttribute::kClassPortInfo: return answer_class_port_info(header.method, data);
    case PerformanceAttribute::kPortCounters:
      return answer_counters<PortCounters>(device, header.method, CountView::kNarrow, data);
    case PerformanceAttribute::kPortCountersExtended:
      return answer_counters<PortCountersExtended>(device, header.method, CountView::kExtended,
                                                   data);
    case PerformanceAttribute::kPortRcvErrorDetails:
      return answer_counters<PortRcvErrorDetails>(device, header.method, CountView::kNarrow, data);
    case PerformanceAttribute::kPortXmitDiscardDetails:
      return answer_counters<PortXmitDiscardDetails>(device, header.method, CountView::kNarrow,
                                                     data);
    default: return kMethodAttributeNotSupported;
  }
}

}  // namespace verbena::subnet
