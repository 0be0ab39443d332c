#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/strong.h"
#include "base/time.h"

// Provides the checks of `verbena doctor`.  Each check tries a feature of this host instead of
// guessing.  A check undoes its changes, and sends no packet unless its comment says so.  Call the
// checks from a process with one thread, since some of them fork.
namespace verbena::os {

// Holds the result of a check.
struct CheckResult {
  bool works = false;
  int error = 0;  // the errno, if it does not work
};

// Maps a sealed memfd of this size.  The table of a program for `verbena ps` and the ring of a
// capture need such memory.
CheckResult try_shared_memory(std::size_t bytes);
// Attaches a filter that steers `leases` QPN ranges within a group of SO_REUSEPORT sockets
// (RocePort).
CheckResult try_steering(std::size_t leases);
// Sets the socket option UDP_SEGMENT.
CheckResult try_segmentation();
// Calls pidfd_open(2).
CheckResult try_pidfd();
// Reads SO_PEERPIDFD, which the agent prefers to pidfd_open(2).
CheckResult try_peer_pidfd();
// Reads memory of this process from a child (process_vm_readv(2)).
CheckResult try_process_vm_readv();
CheckResult try_user_namespace();
// Mounts directories in memory over /sys/class and /dev, as `verbena run --sysfs` does.
CheckResult try_private_files();
CheckResult try_ipv6();
// Sends one datagram of one byte from 127.0.0.1 to this UDP port of 127.0.0.1.  EPERM: a firewall
// blocks it.
CheckResult try_send_to(std::uint16_t port);

// These functions request a buffer of `requested_bytes` for a UDP socket, and return the size that
// the kernel gives it.
std::uint64_t receive_buffer_bytes(std::uint64_t requested_bytes);
std::uint64_t send_buffer_bytes(std::uint64_t requested_bytes);
// Verbena requests buffers of these sizes.
extern const std::uint64_t kWantedReceiveBufferBytes;
extern const std::uint64_t kWantedSendBufferBytes;

// Reads the number in a file of /proc/sys.  Returns std::nullopt if this fails.
std::optional<std::uint64_t> sysctl(const char* path);

struct ResourceLimit {
  std::uint64_t soft = 0;
  std::uint64_t hard = 0;
};
inline constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};
ResourceLimit open_files_limit();
ResourceLimit locked_memory_limit();
ResourceLimit file_size_limit();

// Returns the names of the kernel's RDMA devices, hardware or soft-RoCE.
std::vector<std::string> kernel_rdma_devices();
// Returns the user's name, such as "bob", or "user id 17" if it has none.
std::string user_name(unsigned uid);

struct Output {
  int status = 0;  // as waitpid(2) returns it
  std::string text{};
};
// Runs a program and returns at most 64 KiB of its standard output and error together.  Returns
// nothing if the program could not be run, or if it had not ended by the deadline and was killed.
std::optional<Output> run_program(const std::vector<std::string>& command,
                                  const std::vector<std::string>& environment, Time deadline);

}  // namespace verbena::os
