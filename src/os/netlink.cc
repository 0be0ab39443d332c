#include "os/netlink.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "os/clock.h"
#include "os/system_call.h"

namespace verbena::os {
namespace {

constexpr std::size_t kReceiveBytes =
    std::size_t{32} * 1024;  // the kernel's limit per dump message
constexpr int kDumpAttempts = 8;
// The kernel answers before send returns, so this timeout never matters in practice.
constexpr Duration kAnswerTimeout = std::chrono::seconds(5);

}  // namespace

std::span<const std::byte> NetlinkMessage::find(std::span<const std::byte> attributes,
                                                std::uint16_t attribute_type) {
  while (attributes.size() >= sizeof(rtattr)) {
    rtattr head{};
    std::memcpy(&head, attributes.data(), sizeof(head));
    if (head.rta_len < sizeof(rtattr) || head.rta_len > attributes.size()) break;
    if ((head.rta_type & NLA_TYPE_MASK) == attribute_type) {
      return attributes.subspan(RTA_LENGTH(0), head.rta_len - RTA_LENGTH(0));
    }
    attributes = attributes.subspan(
        std::min<std::size_t>(attributes.size(), RTA_ALIGN(std::size_t{head.rta_len})));
  }
  return {};
}

Result<Netlink> Netlink::open(std::uint32_t groups, int protocol) {
  Fd fd = VB_TRY(take_fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol),
                         "cannot make a netlink socket"));
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = groups;
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return system_error(errno, "cannot bind a netlink socket");
  }
  return Netlink(std::move(fd));
}

Result<std::vector<NetlinkMessage>> Netlink::call(nlmsghdr& request) {
  const bool dump = (request.nlmsg_flags & NLM_F_DUMP) == NLM_F_DUMP;
  for (int attempt = 0; attempt < kDumpAttempts; ++attempt) {
    request.nlmsg_seq = ++sequence_;
    const long n =
        repeat_call(SYS_sendto, fd_.get(), &request, std::size_t{request.nlmsg_len}, 0, nullptr, 0);
    if (n < 0) return system_error(errno, "cannot use a netlink socket");
    if (!VB_TRY(receive_answer(sequence_, dump))) continue;
    std::vector<NetlinkMessage> messages;
    messages.reserve(messages_.size());
    for (const auto& [at, size] : messages_) {
      messages.emplace_back(std::span<const std::byte>(bytes_).subspan(at, size));
    }
    return messages;
  }
  return system_error(EAGAIN, "the host's addresses change too fast to be read");
}

Result<bool> Netlink::receive_answer(std::uint32_t sequence, bool dump) {
  bytes_.clear();
  messages_.clear();
  bool consistent = true;
  for (;;) {
    const std::size_t start = bytes_.size();
    bytes_.resize(start + kReceiveBytes);
    if (VB_TRY(wait_for(fd_.get(), POLLIN, now() + kAnswerTimeout)) == 0) {
      return system_error(ETIMEDOUT, "cannot use a netlink socket");
    }
    const long n = repeat_call(SYS_recvfrom, fd_.get(), bytes_.data() + start, kReceiveBytes, 0,
                               nullptr, nullptr);
    if (n < 0 && errno == EAGAIN) continue;
    if (n < 0) return system_error(errno, "cannot use a netlink socket");
    const std::size_t end = start + static_cast<std::size_t>(n);
    bytes_.resize(end);
    for (std::size_t at = start; end - at >= sizeof(nlmsghdr);) {
      nlmsghdr header{};
      std::memcpy(&header, bytes_.data() + at, sizeof(header));
      if (header.nlmsg_len < sizeof(header) || header.nlmsg_len > end - at) break;
      if (header.nlmsg_seq == sequence) {
        if ((header.nlmsg_flags & NLM_F_DUMP_INTR) != 0) consistent = false;
        if (header.nlmsg_type == NLMSG_DONE) return consistent;
        if (header.nlmsg_type == NLMSG_ERROR) {
          const auto error =
              NetlinkMessage(std::span<const std::byte>(bytes_).subspan(at)).fixed<int>();
          return system_error(-error, "the kernel refused a netlink request");
        }
        messages_.emplace_back(at, header.nlmsg_len);
        if (!dump) return true;
      }
      at += std::min<std::size_t>(end - at, NLMSG_ALIGN(header.nlmsg_len));
    }
  }
}

}  // namespace verbena::os
