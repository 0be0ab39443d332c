#pragma once

#include <linux/netlink.h>
#include <linux/rtnetlink.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/error.h"
#include "os/fd.h"

// Queries the kernel's tables by netlink: routing (rtnetlink), for interfaces.cc and neighbours.cc,
// and sockets (sock_diag), for tcp_table.cc and unix_peer.cc.  Only one thread may use an object.
namespace verbena::os {

// Builds a request: the header, the fixed part of the request's type, and attributes.
template <class Fixed>
class NetlinkRequest {
 public:
  NetlinkRequest(std::uint16_t type, std::uint16_t flags) {
    message_.header.nlmsg_type = type;
    message_.header.nlmsg_flags = static_cast<std::uint16_t>(NLM_F_REQUEST | flags);
    message_.header.nlmsg_len = offsetof(Message, attributes);
  }
  Fixed& fixed() { return message_.fixed; }

  void add(std::uint16_t type, std::span<const std::byte> value) {
    const rtattr attribute{static_cast<std::uint16_t>(RTA_LENGTH(value.size())), type};
    std::byte* at = reinterpret_cast<std::byte*>(&message_) + message_.header.nlmsg_len;
    VB_CHECK(message_.header.nlmsg_len + RTA_SPACE(value.size()) <= sizeof(message_));
    std::memcpy(at, &attribute, sizeof(attribute));
    std::memcpy(at + RTA_LENGTH(0), value.data(), value.size());
    message_.header.nlmsg_len += static_cast<std::uint32_t>(RTA_SPACE(value.size()));
  }
  void add_u32(std::uint16_t type, std::uint32_t value) {
    add(type, std::as_bytes(std::span(&value, 1)));
  }

  nlmsghdr& header() { return message_.header; }

 private:
  struct Message {
    nlmsghdr header{};
    Fixed fixed{};
    alignas(RTA_ALIGNTO) std::array<std::byte, 96> attributes{};
  };
  Message message_{};
};

// Reads a received message, and checks each part against the length of the message.  fixed()
// returns a copy.  attribute() returns a part of the message itself.
class NetlinkMessage {
 public:
  explicit NetlinkMessage(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::uint16_t type() const { return read<nlmsghdr>(0).nlmsg_type; }
  template <class Fixed>
  Fixed fixed() const {
    return read<Fixed>(NLMSG_HDRLEN);
  }
  // Returns the value of the first attribute of this type after the fixed part; empty if there is
  // none.
  template <class Fixed>
  std::span<const std::byte> attribute(std::uint16_t attribute_type) const {
    return find(bytes_.subspan(std::min(bytes_.size(), std::size_t{NLMSG_SPACE(sizeof(Fixed))})),
                attribute_type);
  }
  // Returns the value of the first attribute of this type in `attributes`; empty if there is none.
  static std::span<const std::byte> find(std::span<const std::byte> attributes,
                                         std::uint16_t attribute_type);

 private:
  template <class T>
  T read(std::size_t at) const {
    T value{};
    if (at < bytes_.size()) {
      std::memcpy(&value, bytes_.data() + at, std::min(sizeof(T), bytes_.size() - at));
    }
    return value;
  }
  std::span<const std::byte> bytes_;
};

// Returns the integer in an attribute's value, or 0 if the value is too short.
template <class T>
T value_of(std::span<const std::byte> attribute) {
  T value{};
  if (attribute.size() >= sizeof(T)) std::memcpy(&value, attribute.data(), sizeof(T));
  return value;
}

// Owns a netlink socket, which also receives the notifications for `groups`.
class Netlink {
 public:
  static Result<Netlink> open(std::uint32_t groups = 0, int protocol = NETLINK_ROUTE);

  int fd() const { return fd_.get(); }
  [[nodiscard]] Fd release_fd() { return std::move(fd_); }

  // Sends a request and returns the messages of the answer, valid until the next call.  kSystem has
  // the errno of the kernel's answer as its detail.
  Result<std::vector<NetlinkMessage>> call(nlmsghdr& request);

 private:
  explicit Netlink(Fd fd) : fd_(std::move(fd)) {}
  // Receives the answer into messages_.  Returns false if the tables changed during a dump, so that
  // the caller must repeat the request.
  Result<bool> receive_answer(std::uint32_t sequence, bool dump);

  Fd fd_;
  std::uint32_t sequence_ = 0;
  std::vector<std::byte> bytes_{};
  std::vector<std::pair<std::size_t, std::size_t>> messages_{};  // offset and length in bytes_
};

}  // namespace verbena::os
