#include "mad/dispatcher.h"

#include <algorithm>

#include "base/time.h"

namespace verbena::mad {

using wire::MadHeader;
using wire::Method;
using wire::MgmtClass;

namespace {

// These bits tell what a CM supports (vol1 16.7.3.1).
constexpr std::uint16_t kConnectsRc = 1 << 9;
constexpr std::uint16_t kResolvesServiceIds = 1 << 13;  // SIDR

// Holds the ClassPortInfo of the CM class.  The response time means that the CM answers within
// 0.54 s.
constexpr wire::ClassPortInfo kCmClassPortInfo{
    .class_version = wire::class_version(MgmtClass::kCommunication),
    .capability_mask = kConnectsRc | kResolvesServiceIds,
    .resp_time_value = 17,
};

bool needs_response(const MadHeader& header) {
  return !header.response && (header.method == Method::kGet || header.method == Method::kSet);
}

}  // namespace

Received Dispatcher::receive(const Address& from, std::span<const std::byte> bytes) {
  ++counters_.received;
  if (bytes.size() != wire::kMadBytes) {
    ++counters_.wrong_length;
    return Dropped{};
  }
  const auto mad = bytes.first<wire::kMadBytes>();
  const auto header = wire::decode_exact<MadHeader>(mad.first<wire::kMadHeaderBytes>());
  if (header.base_version != wire::kMadBaseVersion) {
    ++counters_.wrong_base_version;
    return Dropped{};
  }
  if (header.mgmt_class != MgmtClass::kCommunication) {
    ++counters_.unknown_class;
    if (!needs_response(header)) return Dropped{};
    return answer(from, header, mad, wire::mad_status::kMethodAttributeNotSupported);
  }
  const bool class_version_known =
      header.class_version == wire::class_version(MgmtClass::kCommunication);
  if (!class_version_known) ++counters_.wrong_class_version;

  if (!header.response && header.method == Method::kSend) {
    ++counters_.delivered;
    return Delivered{.mgmt_class = header.mgmt_class,
                     .from = from,
                     .header = header,
                     .mad = mad,
                     .class_version_known = class_version_known};
  }
  if (!needs_response(header)) {
    ++counters_.wrong_method;
    return Dropped{};
  }
  if (!class_version_known) {
    ++counters_.request_of_other_version;
    return answer(from, header, mad, wire::mad_status::kBadVersion);
  }
  if (header.method == Method::kGet && header.attribute_id == wire::kAttributeClassPortInfo) {
    ++counters_.class_port_info;
    return answer(from, header, mad, 0);
  }
  ++counters_.wrong_method;
  return answer(from, header, mad, wire::mad_status::kMethodAttributeNotSupported);
}

// Makes the answer from the request: method GetResp, the status, and the attribute if the status is
// good.
Received Dispatcher::answer(const Address& from, const MadHeader& request,
                            std::span<const std::byte, wire::kMadBytes> mad, std::uint16_t status) {
  ++counters_.answered;
  SendMad reply{.to = from};
  std::ranges::copy(mad, reply.mad.begin());
  MadHeader header = request;
  header.response = true;
  header.method = Method::kGet;
  header.status = status;
  wire::encode_to(reply.mad, header);
  if (status == 0) {
    const std::span<std::byte> data = std::span(reply.mad).subspan(wire::kMadHeaderBytes);
    std::ranges::fill(data, std::byte{0});
    wire::encode_to(data, kCmClassPortInfo);
  }
  return reply;
}

}  // namespace verbena::mad
