#pragma once

#include <netinet/udp.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "os/fd.h"

// Opens UDP sockets, and sets the options that RocePort, UdpReceiver and UdpSender share.
namespace verbena::os {

// <linux/udp.h> defines these; the C library's headers may lack them.
inline constexpr int kUdpNoCheck6Rx = 102;
inline constexpr int kUdpSegment = 103;
inline constexpr int kUdpGro = 104;

// The kernel limits these sizes to net.core.rmem_max and wmem_max, unless this process is
// privileged.
inline constexpr int kReceiveBufferBytes = 8 * 1024 * 1024;  // for a burst of some thousand packets
inline constexpr int kSendBufferBytes = 4 * 1024 * 1024;

// Sets an integer option (setsockopt(2)).  Returns true if the kernel accepted it.
bool set_option(int fd, int level, int name, int value);

// Opens a non-blocking UDP socket for either IPv4 or IPv6.  kNotSupported: the host lacks this IP
// version.
Result<Fd> open_udp_socket(bool ipv6);

// Makes the socket report each packet's destination, traffic class and hop limit, which UdpReceiver
// stores in link::Address.
Result<void> enable_ancillary_data(int fd);

// Sets the receive buffer to this size, or to the largest that the host allows.
void set_receive_buffer(int fd, int bytes);

// Returns true if the socket's address family is IPv6.
bool is_ipv6_socket(int fd);

}  // namespace verbena::os
