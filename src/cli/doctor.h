#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ipc/messages.h"
#include "ipc/tool_messages.h"
#include "os/host_checks.h"
#include "os/interfaces.h"
#include "os/roce_port.h"

// Implements `verbena doctor`, which finds out whether programs can run on this host, and tells the
// user what to do if they cannot.
namespace verbena::cli {

// Holds the facts about the host that host_facts.cc collects.
struct HostFacts {
  std::string build{};

  // ---- Verbena's own files
  std::string library_directory{};
  std::string libraries_problem{};        // empty if all libraries exist
  std::vector<std::string> unresolved{};  // the loader's messages about missing symbols
  // Lists files that the loader would find in LD_LIBRARY_PATH before Verbena's libraries.
  std::vector<std::string> libraries_before{};
  std::string preload{};  // $LD_PRELOAD
  bool agent_can_be_run = true;
  std::string agent_path{};

  // ---- the agent
  std::string agent_problem{};  // the reason why the agent does not serve this tool
  std::string name_owner{};     // a process of another user that has the agent's name
  struct Squatter {
    std::string whose{};  // the service to which the name belongs
    std::string owner{};
  };
  std::vector<Squatter> name_squatters{};   // others who have a service's name
  std::optional<ipc::StatusReply> agent{};  // the agent's status, if one runs
  std::vector<ipc::GidEntry> gids{};        // the agent's GID table

  // ---- UDP port 4791
  std::string bind{};       // $VERBENA_BIND
  bool bind_is_own = true;  // $VERBENA_BIND is empty or an address of this host
  os::PortHolder holder{};
  std::string holder_user{};
  bool rxe_loaded = false;
  std::optional<os::CheckResult> send{};  // result of a send to the port, if it is free

  // ---- limits
  os::ResourceLimit open_files{os::kUnlimited, os::kUnlimited};
  os::ResourceLimit locked_memory{os::kUnlimited, os::kUnlimited};
  os::ResourceLimit file_size{os::kUnlimited, os::kUnlimited};
  std::uint64_t receive_buffer_bytes = 0;
  std::uint64_t send_buffer_bytes = 0;

  // ---- the network
  std::optional<std::vector<os::NetworkLink>> links{};  // no value if the kernel does not answer
  std::vector<os::Interface> addresses{};
  std::vector<std::string> kernel_devices{};  // the names of the kernel's RDMA devices

  // ---- packets between programs of this host
  std::string link{};  // $VERBENA_LINK

  // ---- features that the kernel allows
  os::CheckResult shared_memory{true, 0};
  os::CheckResult steering{true, 0};
  os::CheckResult segmentation{true, 0};
  os::CheckResult pidfd{true, 0};
  os::CheckResult peer_pidfd{true, 0};
  os::CheckResult process_vm_readv{true, 0};
  os::CheckResult user_namespace{true, 0};
  os::CheckResult private_files{true, 0};
  os::CheckResult ipv6{true, 0};
};
HostFacts collect_host_facts();

// Holds one line of the output: "LEVEL  WHAT: FACT", and the advice below it.
struct Finding {
  enum class Level : std::uint8_t {
    kOk,
    kNote,     // programs run, but slowly, with fewer features, or reachable by other hosts
    kProblem,  // programs cannot run
  };
  Level level{};
  std::string what{};
  std::string fact{};
  std::string fix{};  // what the user can do; empty for kOk
  friend bool operator==(const Finding&, const Finding&) = default;
};

// Derives the findings from the facts.
std::vector<Finding> diagnose(const HostFacts& facts);

// These two return what `verbena doctor` prints.
std::string as_text(const std::vector<Finding>& findings);
std::string as_json(const std::vector<Finding>& findings);

// Carries out `verbena doctor`, and returns its exit code: 1 if there is a problem.
int doctor(bool json);

}  // namespace verbena::cli
