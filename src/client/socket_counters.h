#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "client/channels.h"
#include "client/diagnostics.h"
#include "ipc/qp_table.h"
#include "os/udp_link.h"
#include "wire/drop.h"

namespace verbena::client {

// What a program's own sockets count, shown beside its engine's counters (ipc/qp_table.h).  Belongs
// to the drive lock.
class SocketCounters {
 public:
  // A datagram that was no packet: wire::drop() said why.
  void dropped(const Error& why);
  // Counts on with what this one has counted.
  void closing(const os::UdpReceiver& receiver) { add(closed_, receiver.counters()); }

  // Where show() writes; outlives this.
  void set_table(ipc::QpTable table);
  // `receivers`: those that are open.
  void show(std::span<const os::UdpReceiver* const> receivers, const os::UdpSender& sender,
            const Diagnostics& diagnostics, const Channels& channels,
            std::uint64_t captured_not) const;

 private:
  using In = os::UdpReceiver::Counters;
  static void add(In& sum, const In& more);

  std::array<std::uint64_t, static_cast<std::size_t>(wire::Drop::kCount)> dropped_{};
  In closed_{};
  std::optional<ipc::QpTable> table_{};
  std::vector<std::uint32_t> places_{};
};

}  // namespace verbena::client
