#include "mad/rmpp_receiver.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace verbena::mad {

RmppReceiver::Outcome RmppReceiver::accept(const wire::RmppHeader& header,
                                           std::span<const std::byte, wire::kMadBytes> mad) {
  const std::uint32_t segment = header.segment;
  if (complete_ || (segment != 0 && segment <= received_)) return Outcome::kAck;
  if (segment == 0 || segment > window_ || (final_segment_ != 0 && segment > final_segment_)) {
    return Outcome::kDropped;
  }
  const std::uint64_t bit = std::uint64_t{1} << (segment - received_ - 1);
  if ((ahead_ & bit) != 0) return Outcome::kStored;
  if (!store(segment, mad)) return Outcome::kTooLong;
  ahead_ |= bit;
  if (header.last) {
    final_segment_ = segment;
    // If the length is impossible, the segment counts as full, as on Linux.
    const std::size_t padding = header.length_or_window <= wire::kRmppPayloadBytes
                                    ? wire::kRmppPayloadBytes - header.length_or_window
                                    : 0;
    last_data_bytes_ = padding <= data_bytes() ? data_bytes() - padding : data_bytes();
  }
  const int contiguous = std::countr_one(ahead_);
  received_ += static_cast<std::uint32_t>(contiguous);
  ahead_ = contiguous == 64 ? 0 : ahead_ >> contiguous;
  if (final_segment_ != 0 && received_ >= final_segment_) {
    received_ = final_segment_;
    complete_ = true;
    message_.resize(header_bytes_ + (final_segment_ - std::size_t{1}) * data_bytes() +
                    last_data_bytes_);
    window_ = std::max(window_, received_);
    return Outcome::kComplete;
  }
  if (received_ < window_) return Outcome::kStored;
  window_ = received_ + kWindow;
  return Outcome::kAck;
}

bool RmppReceiver::store(std::uint32_t segment, std::span<const std::byte, wire::kMadBytes> mad) {
  const std::size_t end = header_bytes_ + segment * data_bytes();
  if (end > bytes_max_) return false;
  if (message_.size() < end) {
    // Doubles the memory, so that a long message is copied a few times at most.
    if (message_.capacity() < end)
      message_.reserve(std::min(bytes_max_, std::max(end, 2 * message_.capacity())));
    message_.resize(end);
  }
  if (segment == 1) std::copy_n(mad.begin(), header_bytes_, message_.begin());
  const auto data = mad.subspan(header_bytes_);
  std::ranges::copy(data, message_.begin() + static_cast<std::ptrdiff_t>(end - data_bytes()));
  return true;
}

std::vector<std::byte> RmppReceiver::take_message() {
  VB_CHECK(complete_);
  return std::exchange(message_, {});
}

}  // namespace verbena::mad
