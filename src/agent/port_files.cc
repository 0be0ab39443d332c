#include "agent/port_files.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string_view>
#include <utility>

#include "ipc/counters.h"
#include "os/file_rights.h"

namespace verbena::agent {
namespace {

constexpr std::string_view kCounters = "counters/";
constexpr std::string_view kHwCounters = "hw_counters/";

std::unexpected<Error> failed(const char* what) {
  return fail(Errc::kSystem, what, static_cast<std::uint16_t>(errno));
}

std::uint64_t value_of(const CounterSums& sums, std::string_view name) {
  const auto found = sums.find(name);
  return found == sums.end() ? 0 : found->second;
}

// Makes and opens a directory.  Refuses links, so that no name leads out of the parent.
Result<os::Fd> make_directory(const os::Fd& parent, const char* name) {
  if (::mkdirat(parent.get(), name, 0755) != 0 && errno != EEXIST) {
    return failed("cannot make a directory of counters");
  }
  os::Fd directory(::openat(parent.get(), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory) return failed("cannot open a directory of counters");
  return directory;
}

// Writes in place, because a reader may keep the file open.  Truncates the file if the old value
// has more digits: another agent has written it, or this agent has opened its port again, whose
// counters begin at 0.
Result<void> write_file(const os::Fd& directory, const std::string& name, const std::string& text) {
  const os::Fd file(::openat(directory.get(), name.c_str(),
                             O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC,
                             0644));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) return failed("cannot open a counter's file");
  if (!S_ISREG(status.st_mode))
    return fail(Errc::kInvalidArgument, "a counter's file must be a regular file");
  const auto bytes = static_cast<ssize_t>(text.size());
  if (::pwrite(file.get(), text.data(), text.size(), 0) != bytes ||
      (status.st_size > bytes && ::ftruncate(file.get(), bytes) != 0)) {
    return failed("cannot write a counter's file");
  }
  return {};
}

}  // namespace

std::vector<ipc::NamedCount> port_counters(const CounterSums& programs, const CounterSums& agent,
                                           std::uint64_t times_down) {
  const auto of_programs = [&](std::string_view name) {
    VB_CHECK(is_in_port_counters(name));
    return value_of(programs, name);
  };
  // Adds the counter of the agent's QP1, because QP1 is a queue pair of the port, too.
  const auto with_qp1 = [&](const std::string& name) {
    return of_programs(name) + value_of(agent, "qp1_" + name);
  };
  // Adds the counter of the agent's own sockets.
  const auto of_sockets = [&](std::string_view name) {
    return of_programs(name) + value_of(agent, name);
  };
  const std::uint64_t sent = with_qp1("packets_out"), received = with_qp1("packets_in");
  const std::uint64_t bytes_sent = with_qp1("bytes_out"), bytes_received = with_qp1("bytes_in");
  const std::uint64_t damaged = of_programs("udp_in_wrong_icrc") + of_programs("udp_in_too_short") +
                                value_of(agent, "dropped_bad_icrc") +
                                value_of(agent, "dropped_too_short");
  const std::uint64_t not_sent = of_sockets("udp_out_too_big") + of_sockets("udp_out_no_route") +
                                 of_sockets("udp_out_no_source") +
                                 of_sockets("udp_out_not_allowed") + of_sockets("udp_out_other");
  return {
      {"counters/port_xmit_data", bytes_sent / 4},
      {"counters/port_rcv_data", bytes_received / 4},
      {"counters/port_xmit_packets", sent},
      {"counters/port_rcv_packets", received},
      {"counters/port_rcv_errors", damaged},
      {"counters/port_xmit_discards", not_sent},
      {"counters/excessive_buffer_overrun_errors", of_sockets("udp_in_lost_in_kernel")},
      {"counters/link_downed", times_down},
      // These stay 0, because a UDP socket has no physical link, no virtual lanes and no InfiniBand
      // switch.
      {"counters/symbol_error", 0},
      {"counters/link_error_recovery", 0},
      {"counters/local_link_integrity_errors", 0},
      {"counters/port_rcv_remote_physical_errors", 0},
      {"counters/port_rcv_switch_relay_errors", 0},
      {"counters/port_rcv_constraint_errors", 0},
      {"counters/port_xmit_constraint_errors", 0},
      {"counters/VL15_dropped", 0},
      {"hw_counters/sent_pkts", sent},
      {"hw_counters/rcvd_pkts", received},
      {"hw_counters/sent_bytes", bytes_sent},
      {"hw_counters/rcvd_bytes", bytes_received},
      {"hw_counters/duplicate_request", with_qp1("duplicates")},
      {"hw_counters/out_of_seq_request", with_qp1("out_of_order")},
      {"hw_counters/rcvd_rnr_err", with_qp1("rnr_naks_in")},
      {"hw_counters/send_rnr_err", with_qp1("rnr_naks_out")},
      {"hw_counters/rcvd_seq_err", with_qp1("sequence_naks_in")},
      // soft-RoCE counts how often its completer thread was deferred; Verbena has no such thread.
      {"hw_counters/ack_deferred", 0},
      {"hw_counters/retry_exceeded_err", with_qp1("retries_exceeded")},
      {"hw_counters/retry_rnr_exceeded_err", with_qp1("rnr_retries_exceeded")},
      {"hw_counters/completer_retry_err", with_qp1("timeouts") + with_qp1("probes") +
                                              with_qp1("sequence_naks_in") + with_qp1("read_gaps")},
      {"hw_counters/send_err", not_sent},
      {"hw_counters/link_downed", times_down},
      {"hw_counters/rdma_sends", with_qp1("sends")},
      {"hw_counters/rdma_recvs", with_qp1("receives")},
  };
}

Result<void> PortFiles::add(const os::Fd& port, os::Fd process, const os::Peer& user,
                            const std::vector<ipc::NamedCount>& values) {
  if (directories_.size() >= kDirectoriesMax) {
    return fail(Errc::kNoResources, "too many programs have files of the port (kDirectoriesMax)");
  }
  struct statfs status {};
  // In another filesystem than tmpfs, the agent might overwrite files of the user.
  if (!port || ::fstatfs(port.get(), &status) != 0 || status.f_type != TMPFS_MAGIC) {
    return fail(Errc::kInvalidArgument, "the port's files need a directory in memory");
  }
  if (!process) return fail(Errc::kInvalidArgument, "the port's files need a living process");
  const os::FileRightsOf rights(user.uid, user.gid);
  if (!rights.taken()) return fail(Errc::kPermission, "the agent cannot act for this user");
  Directory directory;
  directory.counters = VB_TRY(make_directory(port, "counters"));
  directory.hw_counters = VB_TRY(make_directory(port, "hw_counters"));
  const auto lifespan = std::chrono::duration_cast<std::chrono::milliseconds>(kLifespan).count();
  VB_TRY_VOID(write_file(directory.hw_counters, "lifespan", std::to_string(lifespan) + "\n"));
  directory.process = std::move(process);
  directory.user = user;
  const auto at = directories_.insert(directories_.end(), std::move(directory));
  at->death = Watch(loop_, at->process.get(), [this, at] { remove(at); });
  refresh(values);
  return {};
}

void PortFiles::remove(std::list<Directory>::iterator directory) {
  directories_.erase(directory);
  on_removal_();
}

void PortFiles::refresh(const std::vector<ipc::NamedCount>& values) {
  for (Directory& directory : directories_) {
    const os::FileRightsOf rights(directory.user.uid, directory.user.gid);
    if (!rights.taken()) continue;
    for (const ipc::NamedCount& counter : values) {
      const auto last = directory.last_values.find(counter.name);
      if (last != directory.last_values.end() && last->second == counter.value) continue;
      const bool is_hw = counter.name.starts_with(kHwCounters);
      const std::string file = counter.name.substr(is_hw ? kHwCounters.size() : kCounters.size());
      const os::Fd& parent = is_hw ? directory.hw_counters : directory.counters;
      (void)write_file(parent, file, std::to_string(counter.value) + "\n").has_value();
      directory.last_values.insert_or_assign(counter.name, counter.value);
    }
  }
}

}  // namespace verbena::agent
