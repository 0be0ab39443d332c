#include "sa/path_query.h"

#include "sa/components.h"

namespace verbena::sa {

using wire::PathRecord;
using PathMask = PathRecord::Mask;

Query query_of(const PathQuery& query) {
  PathRecord record{.destination_gid = query.destination, .source_gid = query.source};
  std::uint64_t mask = PathMask::kSourceGid | PathMask::kReversible | PathMask::kNumbPath;
  if (query.destination != Gid{}) mask |= PathMask::kDestinationGid;
  record.reversible = query.reversible;
  record.numb_path = query.numb_path;
  set_component(record.destination_lid, query.destination_lid, PathMask::kDestinationLid, mask);
  set_component(record.source_lid, query.source_lid, PathMask::kSourceLid, mask);
  set_component(record.pkey, query.pkey, PathMask::kPkey, mask);
  set_component(record.service_id, query.service_id, PathMask::kServiceId, mask);
  set_component(record.qos_class, query.qos_class, PathMask::kQosClass, mask);
  set_component(record.service_level, query.service_level, PathMask::kServiceLevel, mask);
  set_component(record.traffic_class, query.traffic_class, PathMask::kTrafficClass, mask);
  set_component(record.flow_label, query.flow_label, PathMask::kFlowLabel, mask);
  set_component(record.raw_traffic, query.raw_traffic, PathMask::kRawTraffic, mask);
  set_component(record.hop_limit, query.hop_limit, PathMask::kHopLimit, mask);
  set_limit(record.mtu_selector, record.mtu, query.mtu, PathMask::kMtu, mask);
  set_limit(record.rate_selector, record.rate, query.rate, PathMask::kRate, mask);
  set_limit(record.packet_life_selector, record.packet_life, query.packet_life,
            PathMask::kPacketLife, mask);
  const auto method = query.numb_path == 1 ? wire::Method::kGet : wire::Method::kGetTable;
  return Query::of(method, wire::SaAttribute::kPathRecord, mask, record);
}

bool satisfies(const PathRecord& path, const PathQuery& query) {
  if (query.destination != Gid{} && path.destination_gid != query.destination) return false;
  if (query.pkey && (path.pkey.value & 0x7fff) != (query.pkey->value & 0x7fff)) return false;
  return path.source_gid == query.source && (path.reversible || !query.reversible) &&
         matches(path.destination_lid, query.destination_lid) &&
         matches(path.source_lid, query.source_lid) &&
         matches(path.service_level, query.service_level) &&
         matches(path.traffic_class, query.traffic_class) &&
         matches(path.flow_label, query.flow_label) &&
         matches(path.raw_traffic, query.raw_traffic) && matches(path.hop_limit, query.hop_limit) &&
         is_within(path.mtu, query.mtu) && is_within(path.rate, query.rate) &&
         is_within(path.packet_life, query.packet_life);
}

}  // namespace verbena::sa
