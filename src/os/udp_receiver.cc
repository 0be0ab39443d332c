// Implements UdpReceiver of os/udp_link.h.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "os/address.h"
#include "os/system_call.h"
#include "os/udp_link.h"
#include "os/udp_options.h"

namespace verbena::os {
namespace {

constexpr std::size_t kReceivedControlBytes = 192;  // four messages of at most 40 bytes
constexpr std::size_t kDatagramBytesMax = link::Burst::kPacketBytesMax + link::Burst::kIcrcBytes;
constexpr std::size_t kCoalescedBytesMax = 65536;  // the longest IP packet
constexpr std::size_t kReceivedSegmentsMax = 128;  // UDP_MAX_SEGMENTS of a recent kernel

// Holds what the control messages of a received message report.
struct Ancillary {
  link::Address address{};
  std::uint32_t interface = 0;
  std::size_t segment_bytes = 0;  // of each coalesced datagram; 0: the message is one datagram
};

template <class T>
T control_data(cmsghdr* message) {
  T value{};
  std::memcpy(&value, CMSG_DATA(message), std::min(sizeof(T), message->cmsg_len - CMSG_LEN(0)));
  return value;
}

void read_control(cmsghdr* c, Ancillary& out) {
  if (c->cmsg_level == IPPROTO_IP) {
    if (c->cmsg_type == IP_PKTINFO) {
      const auto info = control_data<in_pktinfo>(c);
      out.address.destination = gid_of(info.ipi_addr);
    } else if (c->cmsg_type == IP_TTL) {
      out.address.hop_limit = static_cast<std::uint8_t>(control_data<int>(c));
    } else if (c->cmsg_type == IP_TOS) {
      out.address.traffic_class = control_data<std::uint8_t>(c);
    }
  } else if (c->cmsg_level == IPPROTO_IPV6) {
    if (c->cmsg_type == IPV6_PKTINFO) {
      const auto info = control_data<in6_pktinfo>(c);
      out.address.destination = gid_of(info.ipi6_addr);
      out.interface = info.ipi6_ifindex;
    } else if (c->cmsg_type == IPV6_HOPLIMIT) {
      out.address.hop_limit = static_cast<std::uint8_t>(control_data<int>(c));
    } else if (c->cmsg_type == IPV6_TCLASS) {
      out.address.traffic_class = static_cast<std::uint8_t>(control_data<int>(c));
    }
  } else if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == kUdpGro) {
    out.segment_bytes = static_cast<std::size_t>(std::max(0, control_data<int>(c)));
  }
}

// Returns the number of packets that the kernel has dropped since the socket was made.  The
// kernel's counter has 32 bits and starts again at 0.
std::uint32_t lost_by_kernel(int fd) {
  std::array<std::uint32_t, 16> info{};  // SK_MEMINFO_VARS is 9, and may grow
  constexpr std::size_t kDrops = 8;      // SK_MEMINFO_DROPS
  socklen_t bytes = sizeof(info);
  const bool ok = fd >= 0 && ::getsockopt(fd, SOL_SOCKET, SO_MEMINFO, info.data(), &bytes) == 0;
  return ok ? info[kDrops] : 0;
}

}  // namespace

struct UdpReceiver::Batch {
  std::array<mmsghdr, kMessagesMax> messages;
  std::array<iovec, kMessagesMax> vectors;
  std::array<SocketAddress, kMessagesMax> peers;
  struct alignas(cmsghdr) Control {
    std::array<std::byte, kReceivedControlBytes> bytes;
  };
  std::array<Control, kMessagesMax> controls;
  std::unique_ptr<std::byte[]> memory;  // uninitialised, so unused buffers take no pages
};

Result<std::unique_ptr<UdpReceiver>> UdpReceiver::create(int ipv4, int ipv6,
                                                         const Options& options) {
  for (const int fd : {ipv4, ipv6}) {
    if (fd < 0) continue;
    VB_TRY_VOID(enable_ancillary_data(fd));
    if (!set_option(fd, IPPROTO_UDP, kUdpGro, options.coalesce_packets ? 1 : 0) &&
        options.coalesce_packets) {
      return system_error(errno, "UDP_GRO");
    }
  }
  return std::unique_ptr<UdpReceiver>(new UdpReceiver(ipv4, ipv6, options));
}

UdpReceiver::UdpReceiver(int ipv4, int ipv6, const Options& options)
    : ipv4_(ipv4),
      ipv6_(ipv6),
      buffer_bytes_(options.coalesce_packets ? kCoalescedBytesMax : kDatagramBytesMax),
      batch_(new Batch),
      lost_before_{lost_by_kernel(ipv4), lost_by_kernel(ipv6)} {
  // This count makes Poll::kLikely skip an IP version that the host lacks.
  if (ipv4 < 0) empty_polls_[0] = kAbsentVersion;
  if (ipv6 < 0) empty_polls_[1] = kAbsentVersion;
  batch_->memory = std::make_unique_for_overwrite<std::byte[]>(kMessagesMax * buffer_bytes_);
  datagrams_.reserve(options.coalesce_packets ? kMessagesMax * kReceivedSegmentsMax : kMessagesMax);
  for (std::size_t i = 0; i < kMessagesMax; ++i) {
    batch_->vectors[i] = {.iov_base = batch_->memory.get() + i * buffer_bytes_,
                          .iov_len = buffer_bytes_};
    prepare(i);
  }
}

UdpReceiver::~UdpReceiver() = default;

UdpReceiver::Counters UdpReceiver::counters() const {
  Counters all = counters_;
  const std::uint32_t lost_ipv4 = lost_by_kernel(ipv4_) - lost_before_[0];
  const std::uint32_t lost_ipv6 = lost_by_kernel(ipv6_) - lost_before_[1];
  all.lost = std::uint64_t{lost_ipv4} + lost_ipv6;
  return all;
}

namespace {
constexpr auto kReceiverNames = std::to_array<MemberName<UdpReceiver::Counters>>({
    {&UdpReceiver::Counters::datagrams, "udp_in_datagrams"},
    {&UdpReceiver::Counters::bytes, "udp_in_bytes"},
    {&UdpReceiver::Counters::too_long, "udp_in_too_long"},
    {&UdpReceiver::Counters::errors, "udp_in_errors"},
    {&UdpReceiver::Counters::lost, "udp_in_lost_in_kernel"},
});
static_assert(names_every_counter(kReceiverNames));
}  // namespace

std::array<NamedValue, 5> named(const UdpReceiver::Counters& counters) {
  return named_values(kReceiverNames, counters);
}

void UdpReceiver::stop_coalescing() {
  for (const int fd : {ipv4_, ipv6_}) {
    if (fd >= 0) set_option(fd, IPPROTO_UDP, kUdpGro, 0);
  }
}

std::span<const UdpReceiver::Datagram> UdpReceiver::receive(Poll poll) {
  datagrams_.clear();
  full_ = dropped_ = false;
  const bool polls_all = poll == Poll::kAll || ++likely_polls_ % kPollAllEvery == 0;
  const bool ipv6_is_first = ipv6_first_;
  const bool poll_first = polls_all || is_likely(ipv6_is_first);
  const bool poll_second = polls_all || is_likely(!ipv6_is_first);
  ipv6_first_ = !ipv6_is_first;
  ++empty_polls_[0];
  ++empty_polls_[1];
  std::size_t messages = 0;
  if (poll_first) messages = receive_from(ipv6_is_first ? ipv6_ : ipv4_, 0, ipv6_is_first);
  if (poll_second && messages < kMessagesMax) {
    messages += receive_from(ipv6_is_first ? ipv4_ : ipv6_, messages, !ipv6_is_first);
  }
  full_ = messages == kMessagesMax;
  return datagrams_;
}

// Returns true if a caller that polls should poll this IP version now.  If neither version has ever
// had packets, the versions alternate.
bool UdpReceiver::is_likely(bool ipv6) const {
  const std::uint64_t empty = empty_polls_[ipv6 ? 1 : 0];
  const std::uint64_t other = empty_polls_[ipv6 ? 0 : 1];
  if (empty < kPollAllEvery || empty < other) return true;
  return empty == other ? ipv6 == ipv6_first_ : empty <= kEmptyPollsMax;
}

// Resets the fields of a message header that the kernel has overwritten.
void UdpReceiver::prepare(std::size_t index) {
  Batch& b = *batch_;
  msghdr& header = b.messages[index].msg_hdr;
  header = {};
  header.msg_name = &b.peers[index];
  header.msg_namelen = sizeof(SocketAddress);
  header.msg_iov = &b.vectors[index];
  header.msg_iovlen = 1;
  header.msg_control = b.controls[index].bytes.data();
  header.msg_controllen = kReceivedControlBytes;
}

void UdpReceiver::drop(std::uint64_t& counter) {
  ++counter;
  dropped_ = true;
}

std::size_t UdpReceiver::receive_from(int fd, std::size_t first, bool ipv6) {
  if (fd < 0) return 0;
  const long n = repeat_call(SYS_recvmmsg, fd, batch_->messages.data() + first,
                             static_cast<unsigned>(kMessagesMax - first), MSG_DONTWAIT, nullptr);
  if (n < 0) {
    if (errno == EAGAIN) return 0;  // the kernel has written nothing
    drop(counters_.errors);
    prepare(first);
    return 0;
  }
  if (n > 0) empty_polls_[ipv6 ? 1 : 0] = 0;
  for (std::size_t i = first; i < first + static_cast<std::size_t>(n); ++i) {
    unpack(i, ipv6);
    prepare(i);
  }
  return static_cast<std::size_t>(n);
}

void UdpReceiver::unpack(std::size_t index, bool ipv6) {
  mmsghdr& message = batch_->messages[index];
  if ((message.msg_hdr.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    drop(counters_.too_long);
    return;
  }
  Ancillary ancillary;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message.msg_hdr); c != nullptr;
       c = CMSG_NXTHDR(&message.msg_hdr, c)) {
    read_control(c, ancillary);
  }
  const SocketAddress& peer = batch_->peers[index];
  ancillary.address.source = ipv6 ? gid_of(peer.v6.sin6_addr) : gid_of(peer.v4.sin_addr);
  ancillary.address.source_port = ntohs(ipv6 ? peer.v6.sin6_port : peer.v4.sin_port);
  if (is_link_local(ancillary.address.source) || is_link_local(ancillary.address.destination)) {
    ancillary.address.interface = ancillary.interface;
  }

  const auto* bytes = static_cast<const std::byte*>(batch_->vectors[index].iov_base);
  std::span<const std::byte> rest(bytes, message.msg_len);
  counters_.bytes += rest.size();
  const std::size_t segment_bytes =
      ancillary.segment_bytes == 0 ? rest.size() : ancillary.segment_bytes;
  std::uint16_t packets = 0;
  do {
    const std::size_t size = std::min(segment_bytes, rest.size());
    if (datagrams_.size() == datagrams_.capacity() || size > kDatagramBytesMax) {
      drop(counters_.too_long);
    } else {
      datagrams_.push_back(
          {.address = ancillary.address, .payload = rest.first(size), .index = packets++});
      ++counters_.datagrams;
    }
    rest = rest.subspan(size);
  } while (!rest.empty());
}

}  // namespace verbena::os
