#include "cli/doctor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "cli/text.h"
#include "ipc/counters.h"
#include "ipc/tool_messages.h"
#include "link/capture.h"
#include "node/gid_table.h"
#include "os/limits.h"
#include "wire/ip.h"

namespace verbena::cli {
namespace {

using Level = Finding::Level;

using os::kAgentFiles;
using os::kAgentFilesPerProgram;

// Each program needs this number of open files, which was measured.
constexpr std::uint64_t kOpenFilesMin = 32;
constexpr std::uint64_t kProgramsRecommended = 100;

constexpr const char* kReinstall = "install Verbena again: cmake --install build/release";

const char* to_string(Level level) {
  switch (level) {
    case Level::kOk: return "ok";
    case Level::kNote: return "note";
    case Level::kProblem: return "problem";
  }
  return "?";
}

class Report {
 public:
  void ok(std::string what, std::string fact) {
    findings_.push_back({Level::kOk, std::move(what), std::move(fact), {}});
  }
  void note(std::string what, std::string fact, std::string fix) {
    findings_.push_back({Level::kNote, std::move(what), std::move(fact), std::move(fix)});
  }
  void problem(std::string what, std::string fact, std::string fix) {
    findings_.push_back({Level::kProblem, std::move(what), std::move(fact), std::move(fix)});
  }
  // Adds the result of a check: `good` if it works, else `bad` at this level.
  void check(const char* what, const os::CheckResult& result, const char* good, Level level,
             const char* bad, const char* fix) {
    if (result.works) return ok(what, good);
    findings_.push_back(
        {level, what, fmt::format("{} ({})", bad, std::strerror(result.error)), fix});
  }
  std::vector<Finding> take() { return std::move(findings_); }

 private:
  std::vector<Finding> findings_{};
};

std::string bytes_text(std::uint64_t bytes) {
  if (bytes == os::kUnlimited) return "unlimited";
  if (bytes >= 1 << 20) return fmt::format("{} MiB", bytes >> 20);
  return bytes >= 1 << 10 ? fmt::format("{} KiB", bytes >> 10) : fmt::format("{} bytes", bytes);
}

std::string count_text(std::uint64_t count) {
  return count == os::kUnlimited ? "unlimited" : fmt::format("{}", count);
}

std::string programs_text(std::uint64_t count) {
  return fmt::format("{} {}", count, count == 1 ? "program" : "programs");
}

void add_files(Report& report, const HostFacts& facts) {
  if (!facts.libraries_problem.empty()) {
    report.problem("libraries", facts.libraries_problem, kReinstall);
  } else if (!facts.unresolved.empty()) {
    report.problem("libraries",
                   fmt::format("the dynamic loader says: {}", fmt::join(facts.unresolved, "; ")),
                   kReinstall);
  } else {
    report.ok("libraries", fmt::format("in {}, build {}", facts.library_directory, facts.build));
  }
  if (!facts.libraries_before.empty()) {
    report.note("LD_LIBRARY_PATH",
                fmt::format("{} comes before Verbena's", fmt::join(facts.libraries_before, ", ")),
                "start programs with 'verbena run', which puts Verbena's libraries first");
  }
  if (facts.preload.find("ibverbs") != std::string::npos ||
      facts.preload.find("rdmacm") != std::string::npos) {
    report.note("LD_PRELOAD", fmt::format("'{}' is loaded before Verbena's", facts.preload),
                "unset LD_PRELOAD");
  }
}

void add_names(Report& report, const HostFacts& facts) {
  for (const HostFacts::Squatter& squatter : facts.name_squatters) {
    report.note("names", fmt::format("{} has the name of {}", squatter.owner, squatter.whose),
                "end that process (root may): until then, that service cannot start");
  }
}

void add_agent(Report& report, const HostFacts& facts) {
  if (!facts.name_owner.empty()) {
    return report.problem(
        "agent", fmt::format("{} has the name of this user's agent", facts.name_owner),
        "end that process (root may), or use a network namespace of your own, which has its own "
        "names: unshare --user --map-root-user --net");
  }
  if (!facts.agent_problem.empty()) {
    return report.problem("agent", facts.agent_problem,
                          "verbena agent stop; end its programs first");
  }
  if (facts.agent) {
    return report.ok("agent",
                     fmt::format("pid {}, build {}, {}", facts.agent->pid, facts.agent->build,
                                 programs_text(facts.agent->programs)));
  }
  if (!facts.agent_can_be_run && facts.libraries_problem.empty()) {
    return report.problem("agent", fmt::format("'{}' cannot be run", facts.agent_path),
                          "if its file system is mounted noexec, remount it; otherwise set "
                          "VERBENA_AGENT to the path of verbenad");
  }
  report.ok("agent", "none is running; one starts with the first program");
}

bool is_on_all_addresses(const os::PortHolder& holder) {
  return holder.address == Gid{} || holder.address == wire::ipv4_gid(0);
}

// Returns true if the port may belong to the kernel's soft-RoCE.  The kernel's own sockets belong
// to uid 0 and to no process.  A user namespace that does not map uid 0 shows the overflow uid
// instead.
bool may_be_rxe(const HostFacts& facts) {
  constexpr unsigned kOverflowUid = 65534;
  const unsigned uid = facts.holder.uid;
  return facts.holder.pid == 0 && (uid == 0 || uid == kOverflowUid) && facts.rxe_loaded;
}

// Describes the process that has the port.
std::string holder_text(const HostFacts& facts) {
  const os::PortHolder& holder = facts.holder;
  const std::string where =
      is_on_all_addresses(holder) ? "all addresses" : address_text(holder.address);
  if (holder.pid != 0) {
    return fmt::format("pid {} ({}) of {} holds it on {}{}", holder.pid,
                       printable_name(holder.program), facts.holder_user, where,
                       holder.is_stopped ? ", and is stopped" : "");
  }
  if (may_be_rxe(facts)) {
    return fmt::format("the kernel's rdma_rxe holds it on {}: a socket without a process", where);
  }
  return fmt::format("a process of {} that is not visible here holds it on {}", facts.holder_user,
                     where);
}

// Returns advice how to get the port from the process that has it.
std::string port_fix(const HostFacts& facts) {
  if (may_be_rxe(facts)) return "rdma link delete NAME (see 'rdma link'), or modprobe -r rdma_rxe";
  if (facts.holder.is_stopped)
    return fmt::format("kill -CONT {0}, or kill -9 {0}", facts.holder.pid);
  const std::string share_advice =
      "let root run 'verbena agent start --all-users', which lets programs of all users reach each "
      "other, or start each user's first program with VERBENA_BIND=ADDRESS, with another address "
      "of "
      "this host for each";
  if (facts.holder.is_of_this_user) return "end the process; the next program retries";
  if (facts.holder.program == "verbenad") {
    return fmt::format(
        "wait until the programs of {0} end, run 'verbena agent stop' as {0}, or {1}",
        facts.holder_user, share_advice);
  }
  if (is_on_all_addresses(facts.holder)) {
    return fmt::format("end it; if that is another user's agent, {}", share_advice);
  }
  return "end it, or set VERBENA_BIND to another address: it holds the port on one address only";
}

void add_port(Report& report, const HostFacts& facts) {
  constexpr const char* kWhat = "UDP port 4791";
  constexpr const char* kBindAdvice =
      "to open it on one address only, set VERBENA_BIND=ADDRESS for the first program "
      "(verbenad --bind)";
  const ipc::PortStatus* const down_port = facts.agent ? facts.agent->find_down_port() : nullptr;
  if (facts.agent && down_port == nullptr) {
    if (const std::string& host_alone = facts.agent->ports.front().why_only_this_host;
        !host_alone.empty()) {
      return report.problem(kWhat, "programs reach only this host: " + host_alone, port_fix(facts));
    }
    if (facts.holder.is_bound && !is_on_all_addresses(facts.holder)) {
      return report.ok(kWhat,
                       fmt::format("the agent has it on {}", address_text(facts.holder.address)));
    }
    return report.note(kWhat, "the agent has it on all addresses of this host", kBindAdvice);
  }
  if (facts.agent) {
    return report.problem(kWhat, "the agent could not open it: " + down_port->down_reason,
                          facts.holder.is_bound
                              ? port_fix(facts)
                              : "give the host an address: ip addr add ADDRESS dev DEVICE");
  }
  if (!facts.bind_is_own) {
    return report.problem(kWhat,
                          fmt::format("VERBENA_BIND={} is no address of this host", facts.bind),
                          "set VERBENA_BIND to an address of 'ip addr', or unset it");
  }
  if (facts.holder.is_bound) {
    return report.problem(kWhat, holder_text(facts), port_fix(facts));
  }
  if (!facts.bind.empty()) {
    return report.ok(kWhat, fmt::format("free; an agent will open it on {} only", facts.bind));
  }
  report.note(kWhat, "free; an agent will open it on all addresses of this host", kBindAdvice);
}

// Reports how packets reach other programs of this host, and why.
void add_links_within_host(Report& report, const HostFacts& facts) {
  constexpr const char* kWhat = "packets within the host";
  if (facts.link == "udp") {
    report.note(kWhat, "by the loopback interface, because VERBENA_LINK is udp",
                "unset VERBENA_LINK: shared memory is several times as fast");
  } else if (facts.shared_memory.works) {
    report.ok(kWhat, "by shared memory (--link lane), if both programs allow that");
  } else {
    report.note(kWhat, "by the loopback interface, because memfd_create does not work",
                "see the advice at 'shared memory'");
  }
  report.check(
      "direct access", facts.process_vm_readv,
      "allowed: programs carry out WRITE and READ in each other's memory by themselves",
      Level::kNote, "process_vm_readv is refused: WRITE and READ within the host go as packets",
      "sysctl -w kernel.yama.ptrace_scope=0 (on the host, as root), or allow process_vm_readv and "
      "process_vm_writev in the container's seccomp profile");
}

std::uint64_t programs_of(std::uint64_t open_files) {
  if (open_files == os::kUnlimited) return os::kUnlimited;
  return (open_files - std::min(open_files, kAgentFiles)) / kAgentFilesPerProgram;
}

// Reports low limits of the running agent, which are those of the program that started it.
void add_limits_of_agent(Report& report, const HostFacts& facts) {
  if (!facts.agent) return;
  constexpr const char* kFix =
      "'verbena agent stop', then 'verbena agent start' with higher limits";
  const auto& agent = *facts.agent;
  if (const std::uint64_t programs = programs_of(agent.open_files_max);
      programs < kProgramsRecommended) {
    report.note("agent's open files",
                fmt::format("RLIMIT_NOFILE of the agent (pid {}) is {}, as in the program that "
                            "started it: it can serve about {}",
                            agent.pid, agent.open_files_max, programs_text(programs)),
                kFix);
  }
  if (agent.cpu_seconds_max != os::kUnlimited) {
    report.note("agent's CPU time",
                fmt::format("RLIMIT_CPU of the agent (pid {}) is {} s, as in the program that "
                            "started it: the kernel ends the agent then",
                            agent.pid, agent.cpu_seconds_max),
                kFix);
  }
}

void add_limits(Report& report, const HostFacts& facts) {
  add_limits_of_agent(report, facts);
  const auto& files = facts.open_files;
  const std::string fact = fmt::format("RLIMIT_NOFILE is {} (soft), {} (hard)",
                                       count_text(files.soft), count_text(files.hard));
  const std::uint64_t programs = programs_of(files.hard);
  if (files.soft < kOpenFilesMin || programs < 2) {
    report.problem("open files", fact + "; a program and the agent need about 32 each",
                   "ulimit -n 1024 (or 'nofile' in /etc/security/limits.conf)");
  } else if (programs < kProgramsRecommended) {
    report.note("open files",
                fmt::format("{}; the agent can serve about {}", fact, programs_text(programs)),
                "ulimit -n 4096 before the first program (or 'nofile' in limits.conf)");
  } else {
    report.ok("open files", fact);
  }
  report.ok("locked memory",
            fmt::format("RLIMIT_MEMLOCK is {}, and does not matter: nothing is pinned",
                        bytes_text(facts.locked_memory.soft)));
  if (facts.file_size.soft < link::CaptureRing::kBytes) {
    report.note("file size",
                fmt::format("RLIMIT_FSIZE is {}, which also limits shared memory: 'verbena ps' may "
                            "not show the queue pairs of programs, and captures are cut short",
                            bytes_text(facts.file_size.soft)),
                "ulimit -f unlimited");
  }
  report.check("shared memory", facts.shared_memory, "memfd works; /dev/shm is not used",
               Level::kProblem, "memfd_create does not work",
               "allow memfd_create in the container's seccomp profile, or more memory");
}

void add_buffer(Report& report, const char* what, const char* name, std::uint64_t bytes,
                std::uint64_t wanted) {
  if (bytes >= wanted) return report.ok(what, bytes_text(bytes));
  report.note(what,
              fmt::format("{}, but {} are wanted: bursts lose packets, which are sent again",
                          bytes_text(bytes), bytes_text(wanted)),
              fmt::format("sysctl -w net.core.{}={} (on the host, as root)", name, wanted));
}

// Formats an address with its GID: "10.0.0.2 (GID 1)".  Without an agent the GID index is unknown
// and omitted.
std::string gid_text(const HostFacts& facts, const os::Interface& address) {
  const auto gid = std::ranges::find_if(facts.gids, [&](const ipc::GidEntry& entry) {
    return entry.gid == address.address && entry.interface == address.index;
  });
  if (gid == facts.gids.end()) return address_text(address.address);
  return fmt::format("{} (GID {})", address_text(address.address), gid->index);
}

void add_interface(Report& report, const HostFacts& facts, const os::NetworkLink& link) {
  std::vector<std::string> gids;
  bool only_link_local = true;
  for (const os::Interface& address : facts.addresses) {
    if (address.index != link.index) continue;
    gids.push_back(gid_text(facts, address));
    if (!address.link_local) only_link_local = false;
  }
  const std::string what = "interface " + link.name;
  if (gids.empty()) {
    return report.note(what, link.up ? "no address, so no GID" : "down, no address",
                       fmt::format("ip link set {0} up; ip addr add ADDRESS dev {0}", link.name));
  }
  const std::string fact =
      fmt::format("MTU {} (RDMA {}), {}", link.mtu_bytes, 128u << node::rdma_mtu(link.mtu_bytes),
                  fmt::join(gids, ", "));
  if (!link.up) {
    return report.note(what, "down; " + fact, fmt::format("ip link set {} up", link.name));
  }
  constexpr std::uint32_t kRdmaMtuMin = 256, kHeaderBytesMax = 80;
  if (link.mtu_bytes < kRdmaMtuMin + kHeaderBytesMax) {
    return report.note(what, fact + ": too small for packets with 256 bytes of data",
                       fmt::format("ip link set {} mtu 1500", link.name));
  }
  if (only_link_local) {
    return report.note(what, fact + ": link-local only, so peers must also name the interface",
                       fmt::format("ip addr add ADDRESS dev {}", link.name));
  }
  report.ok(what, fact);
}

void add_network(Report& report, const HostFacts& facts) {
  add_buffer(report, "receive buffer", "rmem_max", facts.receive_buffer_bytes,
             os::kWantedReceiveBufferBytes);
  add_buffer(report, "send buffer", "wmem_max", facts.send_buffer_bytes,
             os::kWantedSendBufferBytes);
  if (!facts.links) {
    report.problem("interfaces", "cannot be listed: the kernel refuses netlink",
                   "allow AF_NETLINK in the container's seccomp profile");
  } else {
    for (const os::NetworkLink& link : *facts.links) add_interface(report, facts, link);
    if (!std::ranges::any_of(facts.addresses, &os::Interface::up)) {
      report.problem("addresses", "no interface is up and has an address",
                     "ip link set lo up, or ip addr add ADDRESS dev DEVICE");
    }
  }
  report.check("IPv6", facts.ipv6, "available", Level::kNote, "not available: only IPv4 is used",
               "if you need IPv6: sysctl -w net.ipv6.conf.all.disable_ipv6=0");
  if (!facts.kernel_devices.empty()) {
    report.note("other RDMA devices",
                fmt::format("{}: programs under 'verbena run' do not see them",
                            fmt::join(facts.kernel_devices, ", ")),
                "to use them, start programs without 'verbena run'");
  }
  const auto counts_refused_packets = [](const ipc::NamedCount& counter) {
    return counter.name == "udp_out_not_allowed" && counter.value > 0;
  };
  const bool has_firewall =
      (facts.send && facts.send->error == EPERM) ||
      (facts.agent && std::ranges::any_of(facts.agent->counters, counts_refused_packets));
  if (has_firewall) {
    report.problem("firewall", "it refuses packets to UDP port 4791",
                   "nft list ruleset, iptables -S OUTPUT: let UDP port 4791 through");
  }
}

void add_rights(Report& report, const HostFacts& facts) {
  report.check("steering filter", facts.steering, "attached to SO_REUSEPORT sockets, 512 ranges",
               Level::kProblem, "SO_ATTACH_REUSEPORT_CBPF is refused",
               "allow setsockopt in the container's seccomp profile; sysctl -w "
               "net.core.optmem_max=20480");
  os::CheckResult pidfd = facts.pidfd;
  if (!pidfd.works && facts.peer_pidfd.works) pidfd = facts.peer_pidfd;
  report.check("process handles", pidfd,
               facts.pidfd.works ? "pidfd_open works"
                                 : "pidfd_open is refused, but SO_PEERPIDFD serves as well",
               Level::kProblem, "neither pidfd_open nor SO_PEERPIDFD works",
               "use Linux 5.3 or later; allow pidfd_open in the container's seccomp profile");
  report.check("segmentation offload", facts.segmentation, "UDP_SEGMENT works", Level::kNote,
               "UDP_SEGMENT does not work: each packet costs a pass through the kernel",
               "use Linux 4.18 or later");
  add_links_within_host(report, facts);
  report.check("run --sysfs", facts.private_files,
               "works; UCX, ibstatus and others that look for devices in /sys need it",
               Level::kNote,
               "does not work: UCX, ibstatus and others that look for devices in /sys find none",
               "allow user namespaces or CAP_SYS_ADMIN, and mount, to the container (docker run "
               "--privileged); sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, if the "
               "host has this setting");
  report.check("user namespaces", facts.user_namespace,
               "allowed; Verbena's tests use them, and run --sysfs without root", Level::kNote,
               "refused; Verbena's tests use them, and run --sysfs without root",
               "nothing to do, unless programs need --sysfs");
}

}  // namespace

std::vector<Finding> diagnose(const HostFacts& facts) {
  Report report;
  add_files(report, facts);
  add_names(report, facts);
  add_agent(report, facts);
  add_port(report, facts);
  add_limits(report, facts);
  add_network(report, facts);
  add_rights(report, facts);
  return report.take();
}

std::string as_text(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += fmt::format("{:<7}  {}: {}\n", to_string(finding.level), printable(finding.what),
                        printable(finding.fact));
    if (!finding.fix.empty()) text += fmt::format("{:<7}  -> {}\n", "", printable(finding.fix));
  }
  return text;
}

std::string as_json(const std::vector<Finding>& findings) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"level", to_string(finding.level)},
                    {"what", finding.what},
                    {"fact", finding.fact},
                    {"fix", finding.fix}});
  }
  return Json{{"findings", std::move(list)}}.dump(2, ' ', true, Json::error_handler_t::replace) +
         "\n";
}

int doctor(bool json) {
  const std::vector<Finding> findings = diagnose(collect_host_facts());
  std::fputs((json ? as_json(findings) : as_text(findings)).c_str(), stdout);
  const bool has_problem = std::ranges::any_of(
      findings, [](const Finding& finding) { return finding.level == Level::kProblem; });
  return has_problem ? 1 : 0;
}

}  // namespace verbena::cli
