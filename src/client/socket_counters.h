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

// Counts wake-ups.  `sent` counts how often this program woke another program by a lane's doorbell.
// `receiver` counts how often the thread that waits for packets (ReceiverRole) was woken, and
// `progress` how often the progress thread was woken.
struct WakeCounters {
  std::uint64_t sent = 0;
  std::uint64_t receiver = 0;
  std::uint64_t progress = 0;
};

// Counts the packets and errors of a program's own sockets.  `verbena ps` shows them with the
// counters of hca::Engine (ipc/qp_table.h).  REQUIRES: the caller holds the drive lock.
class SocketCounters {
 public:
  // Counts a datagram that is not a valid packet.  `error` comes from wire::drop().
  void count_dropped(const Error& error);
  // Adds the counters of a receiver that is about to close, so that they are not lost.
  void add_closing(const os::UdpReceiver& receiver) { add(closed_sum_, receiver.counters()); }

  // Sets the table that show() writes to.  REQUIRES: the memory of the table outlives this object.
  void set_table(ipc::QpTable table);
  // Writes all counters to the table.  `receivers` are the open receivers.  add_closing() has added
  // the counters of the others.
  void show(std::span<const os::UdpReceiver* const> receivers, const os::UdpSender& sender,
            const Diagnostics& diagnostics, const Channels& channels, const WakeCounters& wakes,
            std::uint64_t capture_drops) const;

 private:
  using Received = os::UdpReceiver::Counters;
  static void add(Received& sum, const Received& other);

  std::array<std::uint64_t, static_cast<std::size_t>(wire::Drop::kCount)> dropped_{};
  Received closed_sum_{};
  std::optional<ipc::QpTable> table_{};
  std::vector<std::uint32_t> indexes_{};  // the counters' indexes in the table, in show()'s order
};

}  // namespace verbena::client
