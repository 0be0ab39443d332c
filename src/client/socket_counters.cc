#include "client/socket_counters.h"

#include <utility>

namespace verbena::client {

void SocketCounters::dropped(const Error& why) {
  const auto reason = std::to_underlying(wire::drop_reason(why));
  if (reason < dropped_.size()) ++dropped_[reason];
}

void SocketCounters::set_table(ipc::QpTable table) {
  table_ = table;
  places_.clear();
  const auto place = [&](const char* name) { places_.push_back(table_->add_counter(name)); };
  place("udp_in_wrong_icrc");
  place("udp_in_too_short");
  for (const auto& [name, value] : os::named(In{})) place(name);
  for (const auto& [name, value] : os::named(os::UdpSender::Counters{})) place(name);
  place("capture_dropped");
  place("verbose_lines");
  place("limit_verbose_lines");
  place("verbose_repeats");
  place("limit_channels");
  place("wakes_sent");
  place("wakes_of_receiver");
  place("wakes_of_progress_thread");
}

void SocketCounters::show(std::span<const os::UdpReceiver* const> receivers,
                          const os::UdpSender& sender, const Diagnostics& diagnostics,
                          const Channels& channels, const WakeCounters& wakes,
                          std::uint64_t captured_not) const {
  if (!table_) return;
  ipc::QpTable table = *table_;
  auto at = places_.begin();
  const auto show = [&](std::uint64_t value) { table.set_counter(*at++, value); };
  show(dropped_[std::to_underlying(wire::Drop::kIcrc)]);
  show(dropped_[std::to_underlying(wire::Drop::kTooShort)]);
  In in = closed_;
  for (const os::UdpReceiver* receiver : receivers) add(in, receiver->counters());
  for (const auto& [name, value] : os::named(in)) show(value);
  for (const auto& [name, value] : os::named(sender.counters())) show(value);
  show(captured_not);
  show(diagnostics.written());
  show(diagnostics.left_out());
  show(diagnostics.folded());
  show(channels.limits_met());
  show(wakes.sent);
  show(wakes.receiver);
  show(wakes.progress);
}

void SocketCounters::add(In& sum, const In& more) {
  sum.datagrams += more.datagrams;
  sum.bytes += more.bytes;
  sum.too_long += more.too_long;
  sum.errors += more.errors;
  sum.lost += more.lost;
}

}  // namespace verbena::client
