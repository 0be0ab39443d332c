#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "link/burst.h"
#include "link/flow.h"
#include "link/burst.h"
#include "os/fd.h"

// RoCEv2 through ordinary UDP sockets: bursts in and out.  The reasons for the socket options are
// beside them in the sources: the ICRC covers the IP header, which a socket neither writes nor
// sees.
namespace verbena::os {

// Takes what arrives on the sockets of one lease.  One thread at a time; the sockets are somebody
// else's and must outlive it.
class UdpReceiver {
 public:
  static constexpr std::size_t kMessagesMax = 32;  // of one system call

  struct Options {
    // UDP_GRO: batches of this host arrive in one piece, and the kernel joins packets of one flow
    // from others, which makes receiving several times as fast.  From others it may join packets
    // for QPs of several programs, which then all come to the first's: so not with such peers.
    bool join_packets = false;
  };
  struct Datagram {
    link::Flow flow;  // source = the peer; interface only where an address is link-local
    std::span<const std::byte> payload;
  };
  struct Counters {
    std::uint64_t datagrams = 0;
    std::uint64_t bytes = 0;
    std::uint64_t too_long = 0;  // no RoCEv2 packet has that size; dropped
    std::uint64_t errors = 0;    // system calls that failed but for want of data
    // Thrown away by the kernel: no room in the socket's buffer, or a wrong UDP checksum.
    std::uint64_t lost = 0;
  };

  // -1 for a family that is not there.  Fails with kSystem.
  static Result<std::unique_ptr<UdpReceiver>> create(int ipv4, int ipv6, const Options& options);
  static Result<std::unique_ptr<UdpReceiver>> create(int ipv4, int ipv6) {
    return create(ipv4, ipv6, Options());
  }
  ~UdpReceiver();
  UdpReceiver(const UdpReceiver&) = delete;
  UdpReceiver& operator=(const UdpReceiver&) = delete;

  // Who looks often leaves out, but for one look in kLookEvery, the IP version on which nothing has
  // come for long: each look is a system call.
  enum class Look : std::uint8_t { kAll, kLikely };
  static constexpr std::uint64_t kLookEvery = 16;
  static constexpr std::uint64_t kEmptyLooksMax = 1000;

  // What is there, at most kMessagesMax messages; empty if there is nothing.  Never waits.  Valid
  // until the next call.
  std::span<const Datagram> receive(Look look = Look::kAll);
  // The last call took as many as it can: there may be more.
  bool full() const { return full_; }
  // The last receive() has dropped something, and counted it.
  bool dropped() const { return dropped_; }
  // From now on the kernel joins nothing.  What it has joined still comes.
  void stop_joining();

  // As of now: the kernel is asked for its part.
  Counters counters() const;

 private:
  struct Batch;

  UdpReceiver(int ipv4, int ipv6, const Options& options);
  void prepare(std::size_t index);
  void drop(std::uint64_t& counter);
  std::size_t receive_from(int fd, std::size_t first, bool ipv6);
  void unpack(std::size_t index, bool ipv6);

  int ipv4_;
  int ipv6_;
  std::size_t buffer_bytes_;
  bool ipv6_first_ = false;  // fairness: the families take turns
  bool full_ = false;
  bool dropped_ = false;
  std::uint64_t looks_ = 0;
  std::array<std::uint64_t, 2> empty_looks_{};  // in a row: IPv4, IPv6
  std::unique_ptr<Batch> batch_;
  std::vector<Datagram> datagrams_{};
  Counters counters_{};
  std::uint64_t lost_before_ = 0;  // while the sockets were another's
};

// Sees every packet just before the kernel gets it, for captures: sealed, with the source port and
// the IPv4 identification that it will have.  Called in the sending thread; must not wait.
class PacketObserver {
 public:
  PacketObserver() = default;
  PacketObserver(const PacketObserver&) = delete;
  PacketObserver& operator=(const PacketObserver&) = delete;
  virtual ~PacketObserver() = default;
  virtual void sent(const link::Flow& flow, std::span<const std::byte> datagram,
                    std::uint16_t identification) = 0;
};

// Seals each packet of a burst and sends it from the flow's source address and
// port. A port that somebody else has is replaced by the next free one.  Past kSocketsMax ports of
// a family, flows share the sockets that are there.
//
// Threads: send() from any number of threads at once, each with its own burst.
class UdpSender {
 public:
  static constexpr std::size_t kSocketsMax = 16;  // of each family

  struct Options {
    PacketObserver* observer = nullptr;  // outlives the sender
    std::uint16_t destination_port = 4791;
    // UDP_SEGMENT: packets of one flow, QP and size go to the kernel as one.
    bool join_packets = true;
  };
  // Packets that the kernel did not take, by reason, and those it did.
  struct Counters {
    std::uint64_t packets = 0;
    std::uint64_t bytes = 0;
    std::uint64_t batches = 0;   // of packets sent as one
    std::uint64_t no_room = 0;   // EAGAIN, ENOBUFS, ENOMEM: full queues; lost
    std::uint64_t too_big = 0;   // EMSGSIZE: longer than the path's MTU
    std::uint64_t no_route = 0;  // ENETUNREACH (for a foreign source, too), EHOSTUNREACH, ENODEV...
    std::uint64_t no_source = 0;    // EADDRNOTAVAIL, EINVAL: the source is no address of ours
    std::uint64_t not_allowed = 0;  // EPERM, EACCES: a firewall
    std::uint64_t other = 0;        // also: no socket could be opened
    int last_errno = 0;
  };

  explicit UdpSender(const Options& options) : options_(options), joins_(options.join_packets) {}
  UdpSender() : UdpSender(Options()) {}
  ~UdpSender();
  UdpSender(const UdpSender&) = delete;
  UdpSender& operator=(const UdpSender&) = delete;

  // Never waits.  What the kernel does not take is lost and counted.
  void send(link::Burst& burst);

  Counters counters() const;

  // Closes its sockets.  REQUIRES: nobody is inside send(), and nobody will be.
  void close();

 private:
  struct Socket {
    std::atomic<int> fd{-1};  // set last, never changed after
    std::uint16_t wanted_port = 0;
    std::uint16_t port = 0;
  };
  using Sockets = std::array<Socket, kSocketsMax>;
  struct AtomicCounters {
    std::atomic<std::uint64_t> packets{}, bytes{}, batches{}, no_room{}, too_big{}, no_route{},
        no_source{}, not_allowed{}, other{};
    std::atomic<int> last_errno{};
  };
  struct Plan;

  const Socket* socket_for(bool ipv6, std::uint16_t wanted_port);
  const Socket* open_socket(bool ipv6, std::uint16_t wanted_port);
  void send_plan(Plan& plan, link::Burst& burst);
  bool retry_apart(const Plan& plan, std::size_t index, link::Burst& burst, int error_number);
  void count_lost(std::size_t packets, int error_number);

  Options options_;
  std::atomic<bool> joins_;
  std::mutex opening_{};
  std::array<Sockets, 2> sockets_{};  // IPv4, IPv6
  AtomicCounters counters_{};
};

// Counters with their names, for tools.
using NamedValue = std::pair<const char*, std::uint64_t>;
std::array<NamedValue, 5> named(const UdpReceiver::Counters& counters);
std::array<NamedValue, 9> named(const UdpSender::Counters& counters);

}  // namespace verbena::os
