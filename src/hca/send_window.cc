#include "hca/send_window.h"

#include <algorithm>
#include <utility>

namespace verbena::hca {
namespace {

constexpr std::uint32_t kMaxBytes = 128 * 1024;
constexpr std::uint32_t kStartBytes = 16 * 1024;
constexpr std::uint32_t kMinPackets = 2;
constexpr std::uint32_t kPacketChargeBytes = 1024;  // a smaller packet counts as this size
// Limits the window on a long line: about the product of 10 Gbit/s and 50 ms.
constexpr std::uint32_t kLongLineMaxBytes = 64 * 1024 * 1024;
// Even a round trip within one machine may take this long, when programs wait for a processor.  So
// only a longer round trip indicates a long line.
constexpr Duration kHostDelayMax = std::chrono::microseconds(500);

}  // namespace

void SendWindow::start(std::uint32_t packet_bytes) {
  *this = {};
  packet_charge_ = std::max(packet_bytes, kPacketChargeBytes);
  short_line_limit_ = limit_ = threshold_ = kMaxBytes / packet_charge_;
  window_ = std::max(kMinPackets, kStartBytes / packet_charge_);
}

void SendWindow::on_acknowledged(std::uint64_t packets) {
  if (window_ < threshold_) {
    window_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(threshold_, window_ + packets));
  } else if (window_ < limit_) {
    acknowledged_packets_ += static_cast<std::uint32_t>(packets);
    if (acknowledged_packets_ >= window_) {
      acknowledged_packets_ = 0;
      window_ = std::min(limit_, window_ + step_);
    }
  }
}

void SendWindow::on_measurement(const RoundTrip::Sample& sample) {
  if (sample.shortest <= kHostDelayMax) return;
  step_ = static_cast<std::uint32_t>(
      std::min<std::int64_t>(sample.shortest / kHostDelayMax, short_line_limit_));
  // The line itself carries this number of packets; the others wait in queues.
  const std::uint64_t packets_on_line = sample.packets *
                                        static_cast<std::uint64_t>(sample.shortest.count()) /
                                        static_cast<std::uint64_t>(sample.duration.count());
  const auto limit = static_cast<std::uint32_t>(std::min<std::uint64_t>(
      short_line_limit_ + 2 * packets_on_line, kLongLineMaxBytes / packet_charge_));
  if (limit <= limit_) return;
  // If there was no loss so far, the threshold stays equal to the limit.
  if (threshold_ == limit_) threshold_ = limit;
  limit_ = limit;
}

void SendWindow::halve_threshold(std::uint32_t window) {
  threshold_ = std::max(kMinPackets, window / 2);
  acknowledged_packets_ = 0;
}

void SendWindow::on_loss() {
  threshold_before_probe_ = 0;
  halve_threshold(window_);
  window_ = std::min(threshold_, short_line_limit_ / 2);
}

void SendWindow::on_timeout() {
  window_before_probe_ = threshold_before_probe_ = 0;
  halve_threshold(window_);
  window_ = kMinPackets;
}

void SendWindow::on_probe() {
  if (window_before_probe_ == 0) {
    window_before_probe_ = window_;
    // If there was no loss so far, the threshold equals the limit.  The limit may grow until the
    // probe is answered.
    threshold_before_probe_ = threshold_ == limit_ ? UINT32_MAX : threshold_;
  }
  halve_threshold(window_before_probe_);
  window_ = kMinPackets;
}

void SendWindow::probe_was_too_early() {
  window_ = std::max(window_, std::exchange(window_before_probe_, 0));
  threshold_ = std::max(threshold_, std::min(limit_, std::exchange(threshold_before_probe_, 0)));
}

}  // namespace verbena::hca
