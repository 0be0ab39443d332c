// Collects the facts about the host for `verbena doctor`.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "cli/agent_connection.h"
#include "cli/doctor.h"
#include "cli/executable.h"
#include "cli/run.h"
#include "cli/text.h"
#include "ipc/qp_table.h"
#include "ipc/tool_messages.h"
#include "link/capture.h"
#include "os/agent_name.h"
#include "os/clock.h"
#include "os/socket_owner.h"
#include "os/unix_channel.h"
#include "verbena_build.h"
#include "wire/ip.h"

namespace verbena::cli {
namespace {

constexpr Duration kLoaderTimeout = std::chrono::seconds(10);

std::string environment(const char* name) {
  const char* value = ::secure_getenv(name);
  return value == nullptr ? "" : value;
}

bool is_readable(const std::string& path) { return ::access(path.c_str(), R_OK) == 0; }

// Returns the loader's messages about missing libraries and symbols that libibverbs and librdmacm
// need, and about a libverbena that comes from another directory.  Works like ldd -r, with the
// loader of this program.
std::vector<std::string> find_unresolved(const std::string& directory) {
  const auto self = read_executable("/proc/self/exe");
  if (!self || self->loader.empty()) return {};
  std::vector<std::string> messages;
  for (const char* library : {"libibverbs.so.1", "librdmacm.so.1"}) {
    const auto output = os::run_program(
        {self->loader, "--list", directory + "/" + library},
        {"LD_LIBRARY_PATH=" + prepend_path(directory, ::secure_getenv("LD_LIBRARY_PATH")),
         "LD_BIND_NOW=1", "LD_WARN=1"},
        os::now() + kLoaderTimeout);
    if (!output) continue;
    std::istringstream lines(output->text);
    for (std::string line; std::getline(lines, line);) {
      const bool is_elsewhere = line.find("libverbena.so.0 =>") != std::string::npos &&
                                line.find("=> " + directory + "/") == std::string::npos;
      const bool is_error = line.find("not found") != std::string::npos ||
                            line.find("undefined symbol") != std::string::npos ||
                            line.find("error") != std::string::npos;
      if (is_error || is_elsewhere) messages.push_back(line.substr(line.find_first_not_of(" \t")));
    }
  }
  return messages;
}

// Returns other libraries that a program without `verbena run` would load in place of Verbena's.
std::vector<std::string> find_libraries_before(const std::string& directory) {
  std::vector<std::string> found;
  std::istringstream folders(environment("LD_LIBRARY_PATH"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (folder == directory) return found;
    for (const char* library : {"/libibverbs.so.1", "/librdmacm.so.1", "/libverbena.so.0"}) {
      if (is_readable(folder + library)) found.push_back(folder + library);
    }
  }
  return {};  // Verbena's directory is not in LD_LIBRARY_PATH; only `verbena run` adds it
}

void collect_files(HostFacts& facts) {
  const auto directory = library_directory();
  if (!directory) {
    facts.libraries_problem = directory.error();
    return;
  }
  facts.library_directory = *directory;
  for (const char* library : {"libverbena.so.0", "libibverbs.so.1", "librdmacm.so.1"}) {
    if (is_readable(*directory + "/" + library)) continue;
    facts.libraries_problem = *directory + " has no " + library;
    return;
  }
  facts.unresolved = find_unresolved(*directory);
  facts.libraries_before = find_libraries_before(*directory);
  facts.preload = environment("LD_PRELOAD");
  facts.agent_path = *directory + "/verbenad";
  const std::string agent_variable = environment("VERBENA_AGENT");
  if (::access(facts.agent_path.c_str(), X_OK) != 0 && !agent_variable.empty())
    facts.agent_path = agent_variable;
  facts.agent_can_be_run = ::access(facts.agent_path.c_str(), X_OK) == 0;
}

// Finds strangers who have taken a name that programs of this user look for.
void collect_name_squatters(HostFacts& facts) {
  const auto look_up = [&](const char* whose, const std::string& name, uid_t user) {
    const auto owner = os::find_name_owner(name);
    if (!owner || *owner == 0 || *owner == user) return;
    facts.name_squatters.push_back({.whose = whose,
                                    .owner = "a process of " + os::user_name(*owner) + " (uid " +
                                             std::to_string(*owner) + ")"});
  };
  constexpr uid_t kRoot = 0;
  look_up("root's agent for all users", os::all_users_agent_name(), kRoot);
  look_up("root's socket service", os::root_socket_service_name(), kRoot);
  if (os::socket_service_name() != os::root_socket_service_name()) {
    look_up("this user's socket service", os::socket_service_name(), ::geteuid());
  }
}

void collect_agent(HostFacts& facts) {
  auto agent = AgentConnection::find();
  if (!agent) {
    facts.agent_problem = agent.error();
    const auto channel = os::UnixChannel::connect(os::agent_socket_name(), os::now());
    if (channel && !channel->check_peer_uid(::geteuid())) {
      facts.name_owner = os::describe_name_owner(*channel);
    } else if (const auto owner = os::find_name_owner(os::agent_socket_name());
               !channel && owner && os::is_stranger(*owner)) {
      facts.name_owner = os::describe_stranger(*owner);
    }
    return;
  }
  if (!*agent) return;
  const auto status = (*agent)->ask<ipc::StatusReply>(ipc::Status{});
  if (!status) {
    facts.agent_problem = status.error();
    return;
  }
  facts.agent = *status;
  for (const ipc::Device& device : (*agent)->welcome().devices) {
    for (const ipc::Port& port : device.ports) {
      facts.gids.insert(facts.gids.end(), port.gids.begin(), port.gids.end());
    }
  }
}

void collect_port(HostFacts& facts) {
  facts.bind = environment("VERBENA_BIND");
  facts.bind_is_own =
      facts.bind.empty() ||
      std::ranges::any_of(facts.addresses, [&](const os::Interface& interface) {
        return address_text(interface.address) == facts.bind.substr(0, facts.bind.find('%'));
      });
  facts.holder = os::udp_port_holder(wire::kRoceUdpPort);
  if (facts.holder.is_bound) {
    facts.holder_user = os::user_name(facts.holder.uid);
  } else {
    facts.send = os::try_send_to(wire::kRoceUdpPort);
  }
  facts.rxe_loaded = is_readable("/sys/module/rdma_rxe");
}

void collect_network(HostFacts& facts) {
  if (auto links = os::network_links()) facts.links = *std::move(links);
  if (auto addresses = os::interfaces()) facts.addresses = *std::move(addresses);
  facts.kernel_devices = os::kernel_rdma_devices();
  facts.receive_buffer_bytes = os::receive_buffer_bytes(os::kWantedReceiveBufferBytes);
  facts.send_buffer_bytes = os::send_buffer_bytes(os::kWantedSendBufferBytes);
}

}  // namespace

HostFacts collect_host_facts() {
  HostFacts facts;
  facts.build = verbena_build_id();
  collect_files(facts);
  collect_network(facts);
  collect_port(facts);
  collect_name_squatters(facts);
  collect_agent(facts);
  facts.open_files = os::open_files_limit();
  facts.locked_memory = os::locked_memory_limit();
  facts.file_size = os::file_size_limit();
  // Skip the test below this limit, because making shared memory would raise SIGXFSZ.
  if (facts.file_size.soft >= link::CaptureRing::kBytes) {
    facts.shared_memory =
        os::try_shared_memory(std::max(ipc::QpTable::kBytes, link::CaptureRing::kBytes));
  }
  facts.steering = os::try_steering(os::RocePort::kLeasesMax);
  facts.segmentation = os::try_segmentation();
  facts.pidfd = os::try_pidfd();
  facts.peer_pidfd = os::try_peer_pidfd();
  facts.process_vm_readv = os::try_process_vm_readv();
  facts.link = environment("VERBENA_LINK");
  facts.user_namespace = os::try_user_namespace();
  facts.private_files = os::try_private_files();
  facts.ipv6 = os::try_ipv6();
  return facts;
}

}  // namespace verbena::cli
