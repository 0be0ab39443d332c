// Implements UdpSender of os/udp_link.h.
//
// The ICRC covers the IPv4 identification and the UDP source port.  A socket cannot set them for a
// packet, but their values are predictable.  The identification is 0 for packets of an unconnected
// socket with IP_PMTUDISC_DO, and 0, 1, 2, ... for the packets of a UDP_SEGMENT batch.  The source
// port is that of the socket, so packets are sealed after their socket is chosen.
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "link/framing.h"
#include "os/address.h"
#include "os/system_call.h"
#include "os/udp_link.h"
#include "os/udp_options.h"

namespace verbena::os {
namespace {

constexpr std::uint16_t kFirstPort = 0xc000;  // source ports are 0xc000 to 0xffff (annex A17.3.2)
constexpr int kPorts = 0x4000;
constexpr std::size_t kSentSegmentsMax = 64;     // UDP_MAX_SEGMENTS of an old kernel
constexpr std::size_t kSegmentBytesMax = 65000;  // of one IP packet, without its headers
// This is the size of four control messages: PKTINFO, traffic class, hop limit and segment size.
constexpr std::size_t kSentControlBytes =
    CMSG_SPACE(sizeof(in6_pktinfo)) + 3 * CMSG_SPACE(sizeof(int));
constexpr std::size_t kDestinationQpnOffset = 5;  // in BTH
constexpr std::size_t kBthBytes = 12;

Result<void> set_sender_options(int fd, bool ipv6, bool this_host_only) {
  // Most packets have these values, and then need no control messages for them.
  constexpr link::Address kDefault;
  set_option(fd, ipv6 ? IPPROTO_IPV6 : IPPROTO_IP, ipv6 ? IPV6_UNICAST_HOPS : IP_TTL,
             kDefault.hop_limit);
  set_option(fd, ipv6 ? IPPROTO_IPV6 : IPPROTO_IP, ipv6 ? IPV6_MULTICAST_HOPS : IP_MULTICAST_TTL,
             kDefault.hop_limit);
  // Without "do not fragment", the kernel would choose a random identification.
  const bool never_fragments =
      ipv6 ? set_option(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO) &&
                 set_option(fd, IPPROTO_IPV6, IPV6_DONTFRAG, 1)
           : set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
  if (!never_fragments) return system_error(errno, "IP_MTU_DISCOVER");
  // No thread reads from these sockets, so a filter drops arriving packets before they take memory.
  sock_filter drop_all = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{.len = 1, .filter = &drop_all};
  ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
  set_option(fd, SOL_SOCKET, SO_RCVBUF, 0);
  if (this_host_only && !(ipv6 ? set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 0)
                               : set_option(fd, IPPROTO_IP, IP_MULTICAST_TTL, 0))) {
    return system_error(errno, "IP_MULTICAST_TTL");
  }
  if (!set_option(fd, SOL_SOCKET, SO_SNDBUFFORCE, kSendBufferBytes)) {
    set_option(fd, SOL_SOCKET, SO_SNDBUF, kSendBufferBytes);
  }
  return {};
}

// Binds to the requested port or to the next free port.  Returns the port, or 0 if there is no free
// port.
std::uint16_t bind_to_free_port(int fd, bool ipv6, std::uint16_t requested) {
  for (int i = 0; i < kPorts; ++i) {
    const auto port =
        static_cast<std::uint16_t>(kFirstPort + (requested - kFirstPort + i) % kPorts);
    const SocketAddress address = socket_address(ipv6 ? Gid{} : wire::ipv4_gid(0), port, 0);
    if (::bind(fd, &address.any, size_of(address)) == 0) return port;
    if (errno != EADDRINUSE && errno != EACCES) return 0;
  }
  return 0;
}

template <class T>
std::size_t append_control(msghdr& header, std::size_t at, int level, int type, const T& value) {
  auto* c = reinterpret_cast<cmsghdr*>(static_cast<std::byte*>(header.msg_control) + at);
  std::memset(c, 0, CMSG_SPACE(sizeof(T)));  // clears the padding, which the kernel reads as well
  c->cmsg_level = level;
  c->cmsg_type = type;
  c->cmsg_len = CMSG_LEN(sizeof(T));
  std::memcpy(CMSG_DATA(c), &value, sizeof(T));
  return at + CMSG_SPACE(sizeof(T));
}

void write_control(msghdr& header, const link::Address& address, std::size_t segment_bytes,
                   bool this_host_only) {
  constexpr link::Address kDefault;
  // A sender that reaches only this host has sockets with a multicast hop limit of 0.  A control
  // message must not change the limit, and cannot set it to 0 for IPv4.
  const bool keeps_hop_limit = this_host_only && wire::is_multicast(address.destination);
  const int traffic_class = address.traffic_class;
  const int hop_limit = address.hop_limit;
  const bool is_default =
      traffic_class == kDefault.traffic_class && hop_limit == kDefault.hop_limit;
  std::size_t at = 0;
  if (wire::is_ipv4(address.destination)) {
    const in_pktinfo info{.ipi_ifindex = static_cast<int>(address.interface),
                          .ipi_spec_dst = ipv4_of(address.source),
                          .ipi_addr = {}};
    at = append_control(header, at, IPPROTO_IP, IP_PKTINFO, info);
    if (!is_default) {
      at = append_control(header, at, IPPROTO_IP, IP_TOS, traffic_class);
      // The kernel refuses a control message with hop limit 0.
      if (!keeps_hop_limit) {
        at = append_control(header, at, IPPROTO_IP, IP_TTL, std::max(1, hop_limit));
      }
    }
  } else {
    const in6_pktinfo info{.ipi6_addr = ipv6_of(address.source), .ipi6_ifindex = address.interface};
    at = append_control(header, at, IPPROTO_IPV6, IPV6_PKTINFO, info);
    if (!is_default) {
      at = append_control(header, at, IPPROTO_IPV6, IPV6_TCLASS, traffic_class);
      if (!keeps_hop_limit) at = append_control(header, at, IPPROTO_IPV6, IPV6_HOPLIMIT, hop_limit);
    }
  }
  if (segment_bytes != 0) {
    at = append_control(header, at, IPPROTO_UDP, kUdpSegment,
                        static_cast<std::uint16_t>(segment_bytes));
  }
  header.msg_controllen = at;
}

// Counts the packets from `first` on that may go to the kernel as one batch.  The packets of a
// batch have the same flow and lie one after the other in memory.  They have the same size, except
// that the last may be shorter.  They also have the same destination QP, because the receiver
// steers a batch by its first packet.
std::size_t batch_length(const link::Burst& burst, std::size_t first) {
  const auto packets = burst.packets();
  const link::Burst::Packet& head = packets[first];
  if (head.bytes < kBthBytes) return 1;
  const std::size_t stride = head.bytes + link::Burst::kIcrcBytes;
  const std::size_t packets_max =
      std::min({kSentSegmentsMax, kSegmentBytesMax / stride, packets.size() - first});
  const auto qpn = burst.transport(head).subspan(kDestinationQpnOffset, 3);
  std::size_t n = 1;
  for (; n < packets_max; ++n) {
    const link::Burst::Packet& p = packets[first + n];
    if (p.bytes > head.bytes || p.bytes < kBthBytes || p.offset != head.offset + n * stride ||
        !(p.address == head.address) ||
        !std::ranges::equal(burst.transport(p).subspan(kDestinationQpnOffset, 3), qpn)) {
      break;
    }
    if (p.bytes < head.bytes) return n + 1;
  }
  return n;
}

}  // namespace

// ---- sockets ---------------------------------------------------------------------------------

UdpSender::~UdpSender() { close(); }

void UdpSender::close() {
  for (Sockets& family : sockets_) {
    for (Socket& socket : family) Fd(socket.fd.exchange(-1)).reset();
  }
}

void UdpSender::set_destination(std::uint16_t port,
                                std::function<bool(const Gid&)> is_of_this_host) {
  // The multicast hop limit of the open sockets depends on this option.
  if ((options_.is_of_this_host == nullptr) != (is_of_this_host == nullptr)) close();
  options_.destination_port = port;
  options_.is_of_this_host = std::move(is_of_this_host);
}

const UdpSender::Socket* UdpSender::socket_for(bool ipv6, std::uint16_t requested_port) {
  Sockets& sockets = sockets_[ipv6 ? 1 : 0];
  for (const Socket& socket : sockets) {
    if (socket.fd.load(std::memory_order_acquire) < 0) return open_socket(ipv6, requested_port);
    if (socket.requested_port == requested_port || socket.port == requested_port) return &socket;
  }
  return &sockets[requested_port % kSocketsMax];
}

const UdpSender::Socket* UdpSender::open_socket(bool ipv6, std::uint16_t requested_port) {
  const std::lock_guard lock(opening_mutex_);
  Sockets& sockets = sockets_[ipv6 ? 1 : 0];
  std::size_t open_count = 0;
  for (; open_count < kSocketsMax && sockets[open_count].fd.load(std::memory_order_relaxed) >= 0;
       ++open_count) {
    if (sockets[open_count].requested_port == requested_port ||
        sockets[open_count].port == requested_port) {
      return &sockets[open_count];  // another thread has opened it
    }
  }
  const Socket* shared = open_count == 0 ? nullptr : &sockets[requested_port % open_count];
  if (open_count == kSocketsMax) return shared;

  auto fd = open_udp_socket(ipv6);
  if (!fd.has_value() ||
      !set_sender_options(fd->get(), ipv6, options_.is_of_this_host != nullptr)) {
    return shared;
  }
  const std::uint16_t port = bind_to_free_port(fd->get(), ipv6, requested_port);
  if (port == 0) return shared;
  sockets[open_count].requested_port = requested_port;
  sockets[open_count].port = port;
  sockets[open_count].fd.store(fd->release(), std::memory_order_release);
  return &sockets[open_count];
}

// ---- sending ---------------------------------------------------------------------------------

// Holds the messages of one burst, one per packet or batch.  It lives on the stack and takes some
// 16 KiB.
struct UdpSender::Plan {
  static constexpr std::size_t kMax = link::Burst::kPacketsMax;

  struct alignas(cmsghdr) Control {
    std::array<std::byte, kSentControlBytes> bytes;
  };
  struct Entry {
    std::uint16_t first;    // index of the first packet in the burst
    std::uint16_t packets;  // more than one for a batch
    int fd;
    std::uint16_t source_port;
  };

  std::size_t size = 0;
  std::array<Entry, kMax> entries;
  std::array<mmsghdr, kMax> messages;
  std::array<iovec, kMax> vectors;
  std::array<SocketAddress, kMax> peers;
  std::array<Control, kMax> controls;

  void add(link::Burst& burst, const Entry& entry, const Options& options,
           PacketObserver* observer);
};

void UdpSender::Plan::add(link::Burst& burst, const Entry& entry, const Options& options,
                          PacketObserver* observer) {
  const auto packets = burst.packets().subspan(entry.first, entry.packets);
  link::Address actual_address;
  const link::Address* address = &packets.front().address;
  if (address->source_port != entry.source_port) {
    actual_address = *address;
    actual_address.source_port = entry.source_port;
    address = &actual_address;
  }
  for (std::uint16_t i = 0; i < entry.packets; ++i) {
    const std::span datagram = burst.datagram(packets[i]);
    link::seal(*address, datagram, i);
    if (observer != nullptr) observer->sent(*address, datagram, i);
  }
  const std::span head = burst.datagram(packets.front()), last = burst.datagram(packets.back());
  const auto bytes = static_cast<std::size_t>(last.data() + last.size() - head.data());
  vectors[size] = {.iov_base = head.data(), .iov_len = bytes};
  entries[size] = entry;
  peers[size] = socket_address(address->destination, options.destination_port, address->interface);
  messages[size].msg_len = 0;
  msghdr& header = messages[size].msg_hdr;
  header = {};
  header.msg_name = &peers[size];
  header.msg_namelen = size_of(peers[size]);
  header.msg_iov = &vectors[size];
  header.msg_iovlen = 1;
  header.msg_control = controls[size].bytes.data();
  write_control(header, *address, entry.packets > 1 ? head.size() : 0,
                options.is_of_this_host != nullptr);
  ++size;
}

void UdpSender::send(link::Burst& burst) {
  const auto packets = burst.packets();
  Plan plan;
  for (std::size_t i = 0; i < packets.size();) {
    const link::Address& address = packets[i].address;
    const std::size_t n = coalesces_.load(std::memory_order_relaxed) ? batch_length(burst, i) : 1;
    const bool ipv6 = !wire::is_ipv4(address.destination);
    if (address.is_infiniband()) {
      count_refused(n, EAFNOSUPPORT);
    } else if (options_.is_of_this_host && !wire::is_multicast(address.destination) &&
               !options_.is_of_this_host(address.destination)) {
      count_refused(n, ENETUNREACH);
    } else if (ipv6 == wire::is_ipv4(address.source)) {
      count_refused(n, EADDRNOTAVAIL);
    } else if (const Socket* socket = socket_for(ipv6, address.source_port | kFirstPort)) {
      plan.add(burst,
               {.first = static_cast<std::uint16_t>(i),
                .packets = static_cast<std::uint16_t>(n),
                .fd = socket->fd.load(std::memory_order_relaxed),
                .source_port = socket->port},
               options_, options_.observer);
    } else {
      count_refused(n, EMFILE);
    }
    i += n;
  }
  send_plan(plan, burst);
  burst.clear();
}

void UdpSender::send_plan(Plan& plan, link::Burst& burst) {
  for (std::size_t i = 0; i < plan.size;) {
    std::size_t end = i + 1;
    while (end < plan.size && plan.entries[end].fd == plan.entries[i].fd) ++end;
    const long n = repeat_call(SYS_sendmmsg, plan.entries[i].fd, plan.messages.data() + i,
                               static_cast<unsigned>(end - i), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n <= 0) {  // the kernel refused the first message; errno tells why
      const int error_number = errno;
      if (!retry_one_by_one(plan, i, burst, error_number)) {
        count_refused(plan.entries[i].packets, error_number);
      }
      ++i;
      continue;
    }
    for (const std::size_t sent_end = i + static_cast<std::size_t>(n); i < sent_end; ++i) {
      const std::size_t packets = plan.entries[i].packets;
      counters_.packets.fetch_add(packets, std::memory_order_relaxed);
      counters_.bytes.fetch_add(plan.vectors[i].iov_len, std::memory_order_relaxed);
      if (packets > 1) counters_.batches.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

// Sends the packets of a refused batch one by one.  The kernel may refuse a batch for two reasons.
// EIO: the device cannot compute UDP checksums, which single packets do not need.  EINVAL or
// EMSGSIZE: a packet is longer than the MTU; then the retry counts each such packet.
bool UdpSender::retry_one_by_one(const Plan& plan, std::size_t index, link::Burst& burst,
                                 int error_number) {
  const Plan::Entry& batch = plan.entries[index];
  if (batch.packets == 1) return false;
  if (error_number != EIO && error_number != EINVAL && error_number != EMSGSIZE) return false;
  if (error_number == EIO) coalesces_.store(false, std::memory_order_relaxed);
  Plan single_packets;
  for (std::uint16_t i = 0; i < batch.packets; ++i) {
    // The observer has seen these packets already.  It does not learn that their IPv4
    // identification is now 0.
    single_packets.add(burst,
                       {.first = static_cast<std::uint16_t>(batch.first + i),
                        .packets = 1,
                        .fd = batch.fd,
                        .source_port = batch.source_port},
                       options_, nullptr);
  }
  send_plan(single_packets, burst);
  return true;
}

// ---- counting --------------------------------------------------------------------------------

void UdpSender::count_refused(std::size_t packets, int error_number) {
  counters_.last_errno.store(error_number, std::memory_order_relaxed);
  std::atomic<std::uint64_t>* counter = &counters_.other;
  switch (error_number) {
    case EAGAIN:
    case ENOBUFS:
    case ENOMEM: counter = &counters_.no_room; break;
    case EMSGSIZE: counter = &counters_.too_big; break;
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ENETDOWN:
    case ENODEV: counter = &counters_.no_route; break;
    case EADDRNOTAVAIL:
    case EINVAL: counter = &counters_.no_source; break;
    case EPERM:
    case EACCES: counter = &counters_.not_allowed; break;
    default: break;
  }
  counter->fetch_add(packets, std::memory_order_relaxed);
}

UdpSender::Counters UdpSender::counters() const {
  return {.packets = counters_.packets.load(),
          .bytes = counters_.bytes.load(),
          .batches = counters_.batches.load(),
          .no_room = counters_.no_room.load(),
          .too_big = counters_.too_big.load(),
          .no_route = counters_.no_route.load(),
          .no_source = counters_.no_source.load(),
          .not_allowed = counters_.not_allowed.load(),
          .other = counters_.other.load()};
}

namespace {
constexpr auto kSenderNames = std::to_array<MemberName<UdpSender::Counters>>({
    {&UdpSender::Counters::packets, "udp_out_packets"},
    {&UdpSender::Counters::bytes, "udp_out_bytes"},
    {&UdpSender::Counters::batches, "udp_out_batches"},
    {&UdpSender::Counters::no_room, "udp_out_no_room"},
    {&UdpSender::Counters::too_big, "udp_out_too_big"},
    {&UdpSender::Counters::no_route, "udp_out_no_route"},
    {&UdpSender::Counters::no_source, "udp_out_no_source"},
    {&UdpSender::Counters::not_allowed, "udp_out_not_allowed"},
    {&UdpSender::Counters::other, "udp_out_other"},
});
static_assert(names_every_counter(kSenderNames));
}  // namespace

std::array<NamedValue, 9> named(const UdpSender::Counters& counters) {
  return named_values(kSenderNames, counters);
}

}  // namespace verbena::os
