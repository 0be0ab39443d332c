#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/counter_names.h"
#include "base/error.h"
#include "link/address.h"
#include "link/burst.h"
#include "os/fd.h"

// Sends and receives bursts of RoCEv2 packets through ordinary UDP sockets.  The ICRC covers fields
// of the IP header that a program can neither set nor read through a socket.  The source files
// explain the socket options that make the values of these fields known.
namespace verbena::os {

// Receives from the sockets of one lease.  Only one thread at a time may use it.  REQUIRES: the
// sockets outlive the receiver, which does not own them.
class UdpReceiver {
 public:
  static constexpr std::size_t kMessagesMax = 32;  // per system call

  struct Options {
    // Uses UDP_GRO: batches from this host arrive as one message, and the kernel coalesces packets
    // of one flow from other hosts, which makes receiving several times as fast.  But the kernel
    // may coalesce packets for QPs of several programs; all of them then go to the program of the
    // first packet.  Do not use this option with peers whose flows mix destination QPs.
    bool coalesce_packets = false;
  };
  struct Datagram {
    // The source is the peer.  The interface is set only if an address is link-local.
    link::Address address;
    std::span<const std::byte> payload;
    std::uint16_t index = 0;  // position in its batch; UdpSender uses it as IPv4 identification
  };
  struct Counters {
    std::uint64_t datagrams = 0;
    std::uint64_t bytes = 0;
    std::uint64_t too_long = 0;  // dropped, because no RoCEv2 packet has that size
    std::uint64_t errors = 0;    // failed system calls, not counting EAGAIN
    // Counts packets that the kernel dropped: the socket's buffer was full, or the UDP checksum was
    // wrong.
    std::uint64_t lost = 0;
  };

  // Makes a receiver for these sockets; -1 for an IP version that the host lacks.  Fails with
  // kSystem.
  static Result<std::unique_ptr<UdpReceiver>> create(int ipv4, int ipv6, const Options& options);
  static Result<std::unique_ptr<UdpReceiver>> create(int ipv4, int ipv6) {
    return create(ipv4, ipv6, Options());
  }
  ~UdpReceiver();
  UdpReceiver(const UdpReceiver&) = delete;
  UdpReceiver& operator=(const UdpReceiver&) = delete;

  // Tells which sockets receive() polls.  Each poll is a system call.  kAll polls both sockets.
  // kLikely, for callers that poll often, skips an IP version that has been silent for more than
  // kEmptyPollsMax polls, but polls it every kPollAllEvery calls.  If neither version has ever had
  // packets, kLikely polls them alternately.
  enum class Poll : std::uint8_t { kAll, kLikely };
  static constexpr std::uint64_t kPollAllEvery = 16;
  static constexpr std::uint64_t kEmptyPollsMax = 1000;

  // Receives at most kMessagesMax messages; empty if there are none.  Never waits.  The result is
  // valid until the next call.
  std::span<const Datagram> receive(Poll poll = Poll::kAll);
  // Returns true if the last receive() received kMessagesMax messages: there may be more.
  bool full() const { return full_; }
  // Returns true if the last receive() has dropped and counted something.
  bool dropped() const { return dropped_; }
  // Switches off UDP_GRO.  Packets that the kernel has coalesced already still arrive in one
  // message.
  void stop_coalescing();

  // Returns the current counters.  Reads Counters::lost from the kernel.
  Counters counters() const;

 private:
  struct Batch;

  UdpReceiver(int ipv4, int ipv6, const Options& options);
  // This value in empty_polls_ marks an IP version that the host lacks.
  static constexpr std::uint64_t kAbsentVersion = std::uint64_t{1} << 63;

  bool is_likely(bool ipv6) const;
  void prepare(std::size_t index);
  void drop(std::uint64_t& counter);
  std::size_t receive_from(int fd, std::size_t first, bool ipv6);
  void unpack(std::size_t index, bool ipv6);

  int ipv4_;
  int ipv6_;
  std::size_t buffer_bytes_;
  bool ipv6_first_ = false;  // alternates, for fairness
  bool full_ = false;
  bool dropped_ = false;
  std::uint64_t likely_polls_ = 0;
  std::array<std::uint64_t, 2> empty_polls_{};  // polls since the last packet, for IPv4 and IPv6
  std::unique_ptr<Batch> batch_;
  std::vector<Datagram> datagrams_{};
  Counters counters_{};
  std::array<std::uint32_t, 2> lost_before_{};  // what the IPv4 and the IPv6 socket lost earlier
};

// Observes every packet just before the kernel gets it, for captures.  The packet has its ICRC; its
// source port and IPv4 identification are those that it will have on the wire, unless the kernel
// refuses a batch and its packets are sent again one by one.  UdpSender calls the
// observer in the sending thread, so the observer must not wait.
class PacketObserver {
 public:
  PacketObserver() = default;
  PacketObserver(const PacketObserver&) = delete;
  PacketObserver& operator=(const PacketObserver&) = delete;
  virtual ~PacketObserver() = default;
  virtual void sent(const link::Address& address, std::span<const std::byte> datagram,
                    std::uint16_t identification) = 0;
};

// Seals each packet of a burst (link::seal() adds the ICRC) and sends it from the packet's source
// address and port.  If another program has the port, the sender takes the next free port.  When
// kSocketsMax ports of an IP version are open, further flows share those sockets.
//
// Any number of threads may call send() at once, each with its own burst.
class UdpSender {
 public:
  static constexpr std::size_t kSocketsMax = 16;  // for each IP version

  struct Options {
    PacketObserver* observer = nullptr;  // outlives the sender
    std::uint16_t destination_port = 4791;
    // Uses UDP_SEGMENT: packets of one flow and QP go to the kernel as one message, if all
    // but the last, which may be shorter, have the same size.
    bool coalesce_packets = true;
    // If set, the sender reaches only this host: it sends to addresses for which this function
    // returns true, and to the members of multicast groups on this host.  If empty, it reaches all
    // hosts.
    std::function<bool(const Gid&)> is_of_this_host{};
  };
  // Counts packets that the kernel accepted, and those that it refused, by reason.
  struct Counters {
    std::uint64_t packets = 0;
    std::uint64_t bytes = 0;
    std::uint64_t batches = 0;  // messages with several packets
    std::uint64_t no_room = 0;  // EAGAIN, ENOBUFS, ENOMEM: a queue is full
    std::uint64_t too_big = 0;  // EMSGSIZE: longer than the path's MTU
    // ENETUNREACH (also for a foreign source, or with Options::is_of_this_host), EHOSTUNREACH,
    // ENETDOWN, ENODEV
    std::uint64_t no_route = 0;
    std::uint64_t no_source = 0;    // EADDRNOTAVAIL, EINVAL: the source is not of this host
    std::uint64_t not_allowed = 0;  // EPERM, EACCES: a firewall
    std::uint64_t other = 0;        // other errors, or no socket could be opened
  };

  explicit UdpSender(const Options& options)
      : options_(options), coalesces_(options.coalesce_packets) {}
  UdpSender() : UdpSender(Options()) {}
  ~UdpSender();
  UdpSender(const UdpSender&) = delete;
  UdpSender& operator=(const UdpSender&) = delete;

  // Sends the burst without waiting.  Packets that the kernel refuses are lost and counted.
  void send(link::Burst& burst);

  Counters counters() const;
  // Returns the errno of the last packet that was counted as refused.
  int last_errno() const { return counters_.last_errno.load(std::memory_order_relaxed); }

  // Changes two of the options for later packets.  REQUIRES: no thread is inside send().
  void set_destination(std::uint16_t port, std::function<bool(const Gid&)> is_of_this_host);
  // Closes the sockets.  REQUIRES: no thread is inside send(), and none will call it.
  void close();

 private:
  struct Socket {
    std::atomic<int> fd{-1};  // set after the ports; only close() changes it again
    std::uint16_t requested_port = 0;
    std::uint16_t port = 0;
  };
  using Sockets = std::array<Socket, kSocketsMax>;
  struct AtomicCounters {
    std::atomic<std::uint64_t> packets{}, bytes{}, batches{}, no_room{}, too_big{}, no_route{},
        no_source{}, not_allowed{}, other{};
    std::atomic<int> last_errno{};
  };
  struct Plan;

  const Socket* socket_for(bool ipv6, std::uint16_t requested_port);
  const Socket* open_socket(bool ipv6, std::uint16_t requested_port);
  void send_plan(Plan& plan, link::Burst& burst);
  bool retry_one_by_one(const Plan& plan, std::size_t index, link::Burst& burst, int error_number);
  void count_refused(std::size_t packets, int error_number);

  Options options_;
  std::atomic<bool> coalesces_;
  std::mutex opening_mutex_{};
  std::array<Sockets, 2> sockets_{};  // IPv4, IPv6
  AtomicCounters counters_{};
};

// Tools show the counters by these names.
using NamedValue = std::pair<const char*, std::uint64_t>;
std::array<NamedValue, 5> named(const UdpReceiver::Counters& counters);
std::array<NamedValue, 9> named(const UdpSender::Counters& counters);

}  // namespace verbena::os
