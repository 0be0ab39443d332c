#include "mad/rmpp_sender.h"

#include <algorithm>
#include <utility>

#include "wire/rmpp.h"

namespace verbena::mad {

using wire::RmppHeader;

RmppSender::RmppSender(std::vector<std::byte> message, std::size_t header_bytes)
    : message_(std::move(message)), header_bytes_(header_bytes) {
  VB_CHECK(message_.size() >= header_bytes_ && header_bytes_ < wire::kMadBytes);
  const std::size_t total_data_bytes = message_.size() - header_bytes_;
  const std::size_t segment_data_bytes = wire::kMadBytes - header_bytes_;
  segment_count_ = static_cast<std::uint32_t>(
      std::max<std::size_t>(1, (total_data_bytes + segment_data_bytes - 1) / segment_data_bytes));
}

Mad RmppSender::next_segment() {
  VB_CHECK(may_send());
  const std::size_t segment_data_bytes = wire::kMadBytes - header_bytes_;
  const std::size_t total_data_bytes = message_.size() - header_bytes_;
  const std::size_t begin = sent_ * segment_data_bytes;
  const std::size_t data_bytes = std::min(segment_data_bytes, total_data_bytes - begin);
  ++sent_;
  Mad mad{};
  std::copy_n(message_.begin(), header_bytes_, mad.begin());
  std::copy_n(message_.begin() + static_cast<std::ptrdiff_t>(header_bytes_ + begin), data_bytes,
              mad.begin() + static_cast<std::ptrdiff_t>(header_bytes_));
  const auto rmpp = std::span(mad).subspan<wire::kMadHeaderBytes, wire::kRmppHeaderBytes>();
  auto header = wire::decode_exact<RmppHeader>(rmpp);
  header.version = wire::kRmppVersion;
  header.type = wire::RmppType::kData;
  header.active = true;
  header.first = sent_ == 1;
  header.last = sent_ == segment_count_;
  header.status = wire::RmppStatus::kNormal;
  header.segment = sent_;
  // Both lengths include the header of the class, once for each segment (vol1 13.6.2.4).
  const std::size_t class_header_bytes = wire::kRmppPayloadBytes - segment_data_bytes;
  const std::size_t padding = segment_count_ * segment_data_bytes - total_data_bytes;
  header.length_or_window = 0;
  if (header.first) {
    header.length_or_window =
        static_cast<std::uint32_t>(segment_count_ * wire::kRmppPayloadBytes - padding);
  }
  if (header.last)
    header.length_or_window = static_cast<std::uint32_t>(class_header_bytes + data_bytes);
  wire::encode_to(rmpp, header);
  return mad;
}

RmppSender::Ack RmppSender::acknowledge(std::uint32_t segment, std::uint32_t window) {
  if (window < segment) return Ack::kBadWindow;
  if (is_complete()) return Ack::kOld;
  if (segment > segment_count_ || segment > window_) return Ack::kBeyond;
  if (window < window_ || segment < acknowledged_) return Ack::kOld;
  const bool has_progress = segment > acknowledged_ || window > window_;
  acknowledged_ = segment;
  window_ = window;
  sent_ = std::max(sent_, acknowledged_);
  if (is_complete()) return Ack::kComplete;
  return has_progress ? Ack::kProgress : Ack::kOld;
}

std::vector<std::byte> RmppSender::headers() const {
  return {message_.begin(), message_.begin() + static_cast<std::ptrdiff_t>(header_bytes_)};
}

}  // namespace verbena::mad
