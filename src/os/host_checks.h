#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/strong.h"
#include "base/time.h"

// What this host lets Verbena do, tried and not guessed, for `verbena doctor`.  Each call undoes
// what it does and sends nothing but what it says.  One thread, since some of them fork.
namespace verbena::os {

// Whether something works here, and the errno if not.
struct Tried {
  bool works = false;
  int error = 0;
};

// A sealed memfd of this size, mapped: a program's table for `verbena ps`, a capture's ring.
Tried try_shared_memory(std::size_t bytes);
// Steering of `leases` QPN ranges by a filter on a group of SO_REUSEPORT sockets (RocePort).
Tried try_steering(std::size_t leases);
// UDP_SEGMENT.
Tried try_segmentation();
// pidfd_open(2).
Tried try_pidfd();
// SO_PEERPIDFD, which serves the agent as well.
Tried try_peer_pidfd();
// process_vm_readv(2), on a child.
Tried try_process_vm_readv();
Tried try_user_namespace();
// Directories in memory over /sys/class and /dev, as `verbena run --sysfs` makes them.
Tried try_private_files();
Tried try_ipv6();
// One datagram of one byte from 127.0.0.1 to the UDP port of 127.0.0.1: EPERM is a firewall's
// answer.
Tried try_send_to(std::uint16_t port);

// How much of the wanted size a UDP socket's buffer gets.
std::uint64_t receive_buffer_bytes(std::uint64_t wanted);
std::uint64_t send_buffer_bytes(std::uint64_t wanted);
// What Verbena asks for.
extern const std::uint64_t kWantedReceiveBufferBytes;
extern const std::uint64_t kWantedSendBufferBytes;

// The number in a file of /proc/sys, if it can be read.
std::optional<std::uint64_t> sysctl(const char* path);

struct ResourceLimit {
  std::uint64_t soft = 0;
  std::uint64_t hard = 0;
};
inline constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};
ResourceLimit open_files_limit();
ResourceLimit locked_memory_limit();
ResourceLimit file_size_limit();

// Names of RDMA devices of the kernel's, hardware or soft-RoCE.
std::vector<std::string> kernel_rdma_devices();
// "bob", or "user id 17".
std::string user_name(unsigned uid);

// Runs a program and gives its standard output and error together, at most 64 KiB of it.  Nothing
// if it could not be run or has not ended by the deadline; then it is killed.
struct Output {
  int status = 0;  // as waitpid(2) has it
  std::string text{};
};
std::optional<Output> run_program(const std::vector<std::string>& command,
                                  const std::vector<std::string>& environment, Time deadline);

}  // namespace verbena::os
