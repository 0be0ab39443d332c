#include "sa/path_question.h"

#include "sa/components.h"

namespace verbena::sa {

using wire::PathRecord;
using PathMask = PathRecord::Mask;

Query query_of(const PathQuestion& question) {
  PathRecord record{.destination_gid = question.destination, .source_gid = question.source};
  std::uint64_t mask = PathMask::kSourceGid | PathMask::kReversible | PathMask::kNumbPath;
  if (question.destination != Gid{}) mask |= PathMask::kDestinationGid;
  record.reversible = question.reversible;
  record.numb_path = question.numb_path;
  put(record.destination_lid, question.destination_lid, PathMask::kDestinationLid, mask);
  put(record.source_lid, question.source_lid, PathMask::kSourceLid, mask);
  put(record.pkey, question.pkey, PathMask::kPkey, mask);
  put(record.service_id, question.service_id, PathMask::kServiceId, mask);
  put(record.qos_class, question.qos_class, PathMask::kQosClass, mask);
  put(record.service_level, question.service_level, PathMask::kServiceLevel, mask);
  put(record.traffic_class, question.traffic_class, PathMask::kTrafficClass, mask);
  put(record.flow_label, question.flow_label, PathMask::kFlowLabel, mask);
  put(record.raw_traffic, question.raw_traffic, PathMask::kRawTraffic, mask);
  put(record.hop_limit, question.hop_limit, PathMask::kHopLimit, mask);
  put_limit(record.mtu_selector, record.mtu, question.mtu, PathMask::kMtu, mask);
  put_limit(record.rate_selector, record.rate, question.rate, PathMask::kRate, mask);
  put_limit(record.packet_life_selector, record.packet_life, question.packet_life,
            PathMask::kPacketLife, mask);
  const auto method = question.numb_path == 1 ? wire::Method::kGet : wire::Method::kGetTable;
  return Query::of(method, wire::SaAttribute::kPathRecord, mask, record);
}

bool satisfies(const PathRecord& path, const PathQuestion& question) {
  if (question.destination != Gid{} && path.destination_gid != question.destination) return false;
  if (question.pkey && (path.pkey.value & 0x7fff) != (question.pkey->value & 0x7fff)) return false;
  return path.source_gid == question.source && (path.reversible || !question.reversible) &&
         matches(path.destination_lid, question.destination_lid) &&
         matches(path.source_lid, question.source_lid) &&
         matches(path.service_level, question.service_level) &&
         matches(path.traffic_class, question.traffic_class) &&
         matches(path.flow_label, question.flow_label) &&
         matches(path.raw_traffic, question.raw_traffic) &&
         matches(path.hop_limit, question.hop_limit) && is_within(path.mtu, question.mtu) &&
         is_within(path.rate, question.rate) && is_within(path.packet_life, question.packet_life);
}

}  // namespace verbena::sa
