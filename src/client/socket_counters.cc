#include "client/socket_counters.h"

#include <utility>

namespace verbena::client {

void SocketCounters::count_dropped(const Error& error) {
  const auto reason = std::to_underlying(wire::drop_reason(error));
  if (reason < dropped_.size()) ++dropped_[reason];
}

void SocketCounters::set_table(ipc::QpTable table) {
  table_ = table;
  indexes_.clear();
  const auto add_counter = [&](const char* name) { indexes_.push_back(table_->add_counter(name)); };
  add_counter("udp_in_wrong_icrc");
  add_counter("udp_in_too_short");
  for (const auto& [name, value] : os::named(Received{})) add_counter(name);
  for (const auto& [name, value] : os::named(os::UdpSender::Counters{})) add_counter(name);
  add_counter("capture_dropped");
  add_counter("verbose_lines");
  add_counter("limit_verbose_lines");
  add_counter("verbose_repeats");
  add_counter("limit_channels");
  add_counter("wakes_sent");
  add_counter("wakes_of_receiver");
  add_counter("wakes_of_progress_thread");
}

void SocketCounters::show(std::span<const os::UdpReceiver* const> receivers,
                          const os::UdpSender& sender, const Diagnostics& diagnostics,
                          const Channels& channels, const WakeCounters& wakes,
                          std::uint64_t capture_drops) const {
  if (!table_) return;
  ipc::QpTable table = *table_;
  auto index = indexes_.begin();
  const auto show = [&](std::uint64_t value) { table.set_counter(*index++, value); };
  show(dropped_[std::to_underlying(wire::Drop::kIcrc)]);
  show(dropped_[std::to_underlying(wire::Drop::kTooShort)]);
  Received in = closed_sum_;
  for (const os::UdpReceiver* receiver : receivers) add(in, receiver->counters());
  for (const auto& [name, value] : os::named(in)) show(value);
  for (const auto& [name, value] : os::named(sender.counters())) show(value);
  show(capture_drops);
  show(diagnostics.written());
  show(diagnostics.omitted());
  show(diagnostics.suppressed());
  show(channels.limit_refusals());
  show(wakes.sent);
  show(wakes.receiver);
  show(wakes.progress);
}

void SocketCounters::add(Received& sum, const Received& other) {
  sum.datagrams += other.datagrams;
  sum.bytes += other.bytes;
  sum.too_long += other.too_long;
  sum.errors += other.errors;
  sum.lost += other.lost;
}

}  // namespace verbena::client
