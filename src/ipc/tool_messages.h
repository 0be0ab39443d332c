#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/counters.h"
#include "ipc/messages.h"

// Defines the messages between the command line tool and the agent.
namespace verbena::ipc {

struct Status {
  static constexpr Type kType = Type::kStatus;
  void fields(auto&) {}
};

// Asks for one page of a list of all processes and then all connections.  The two numbers are those
// of the last entries of the previous page.  So no entry is missed if an earlier entry disappears.
struct Processes {
  static constexpr Type kType = Type::kProcesses;
  std::uint64_t after_process = 0;
  std::uint64_t after_connection = 0;
  void fields(auto& a) { a(after_process, after_connection); }
};

struct Stop {
  static constexpr Type kType = Type::kStop;
  void fields(auto&) {}
};

// Starts a capture for a process and the processes that this process starts.  The message carries
// the descriptor of the file for the capture.  The capture ends when the process and every program
// that has joined the capture have ended.
struct Capture {
  static constexpr Type kType = Type::kCapture;
  std::uint32_t pid = 0;
  void fields(auto& a) { a(pid); }
};

// Asks the agent to update the files of the port's counters while the process lives.  The message
// carries the descriptor of the directory that the process sees as
// /sys/class/infiniband/verbena0/ports/1.
struct UpdatePortFiles {
  static constexpr Type kType = Type::kUpdatePortFiles;
  std::uint32_t pid = 0;
  void fields(auto& a) { a(pid); }
};

struct PortStatus {
  std::string device{};
  std::uint8_t number = 1;
  bool active = false;
  std::string down_reason{};
  // Empty, or the reason why the port reaches only programs of this host (Reach).
  std::string why_only_this_host{};
  void fields(auto& a) { a(device, number, active, down_reason, why_only_this_host); }
};

struct StatusReply {
  static constexpr Type kType = Type::kStatusReply;
  std::uint32_t pid = 0;
  std::string build{};
  Duration uptime{};
  bool all_users = false;  // the agent serves the programs of all users
  std::uint32_t programs = 0;
  std::uint32_t leases = 0;
  std::uint32_t ids = 0;
  // The agent's own resource limits; the largest number means "no limit".
  std::uint64_t open_files_max = ~std::uint64_t{0};
  std::uint64_t cpu_seconds_max = ~std::uint64_t{0};
  std::vector<PortStatus> ports{};
  std::vector<NamedCount> counters{};
  void fields(auto& a) {
    a(pid, build, uptime, all_users, programs, leases, ids, open_files_max, cpu_seconds_max, ports,
      counters);
  }
  // Returns the first port that is not active, or null.
  const PortStatus* find_down_port() const;
};

inline constexpr std::uint32_t kProcessesPerReply = 32;
inline constexpr std::uint32_t kConnectionsPerReply = 256;  // each has some 100 bytes

// Describes one process.  The reply carries the descriptors of the QP tables, in the order of the
// processes that have one.
struct ProcessInfo {
  std::uint64_t number = 0;  // ascending in the list
  std::uint32_t pid = 0;
  std::string name{};
  bool has_table = false;
  std::vector<std::uint16_t> ranges{};  // for each leased range, the upper 12 bits of its QPNs
  void fields(auto& a) { a(number, pid, name, has_table, ranges); }
};

// Describes an RDMA CM id of a program.
struct ConnectionInfo {
  std::uint64_t number = 0;  // ascending in the list
  std::uint32_t pid = 0;
  std::string state{};
  rdmacm::SocketAddress source{};
  rdmacm::SocketAddress destination{};
  Qpn qpn{};
  Qpn remote_qpn{};
  std::uint32_t tries = 0;
  void fields(auto& a) { a(number, pid, state, source, destination, qpn, remote_qpn, tries); }
};

struct ProcessesReply {
  static constexpr Type kType = Type::kProcessesReply;
  bool more = false;
  std::vector<ProcessInfo> processes{};
  std::vector<ConnectionInfo> connections{};
  void fields(auto& a) { a(more, processes, connections); }
};

struct CaptureStarted {
  static constexpr Type kType = Type::kCaptureStarted;
  std::uint64_t capture = 0;
  void fields(auto& a) { a(capture); }
};

}  // namespace verbena::ipc
