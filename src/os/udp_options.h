#pragma once

#include <netinet/udp.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "os/fd.h"

// What RocePort, UdpReceiver and UdpSender all need of a UDP socket.
namespace verbena::os {

// Of <linux/udp.h>, in case the C library's are older.
inline constexpr int kUdpNoCheck6Rx = 102;
inline constexpr int kUdpSegment = 103;
inline constexpr int kUdpGro = 104;

// Both are cut to net.core.rmem_max and wmem_max unless we may force them.
inline constexpr int kReceiveBufferBytes = 8 * 1024 * 1024;  // a burst of some thousand packets
inline constexpr int kSendBufferBytes = 4 * 1024 * 1024;

bool set_option(int fd, int level, int name, int value);

// A non-blocking UDP socket; an IPv6 one is for IPv6 alone.  kNotSupported: the host lacks the
// family.
Result<Fd> open_udp_socket(bool ipv6);

// Asks for what a link::Flow is made of: the packet's destination, traffic class and hop limit.
Result<void> ask_for_ancillary_data(int fd);

// A buffer of this size, or as large as the host allows.
void set_receive_buffer(int fd, int bytes);

// The socket's family is IPv6.
bool is_ipv6_socket(int fd);

}  // namespace verbena::os
