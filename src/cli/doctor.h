#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ipc/messages.h"
#include "os/host_checks.h"
#include "os/interfaces.h"
#include "os/roce_port.h"

// `verbena doctor`: would programs run here, and if not, what is to be done?
namespace verbena::cli {

// What was seen of the host; host_facts.cc looks.
struct HostFacts {
  std::string build{};

  // ---- Verbena's own files
  std::string library_directory{};
  std::string libraries_problem{};        // empty: all are there
  std::vector<std::string> unresolved{};  // lines of the dynamic loader about what is missing
  std::vector<std::string>
      libraries_before{};  // others' libibverbs, before ours on LD_LIBRARY_PATH
  std::string preload{};   // $LD_PRELOAD
  bool agent_can_be_run = true;
  std::string agent_path{};

  // ---- the agent
  std::string agent_problem{};              // one is there but does not serve
  std::string name_holder{};                // not this user, but has the name of his agent
  std::optional<ipc::StatusReply> agent{};  // it runs
  std::vector<ipc::GidEntry> gids{};        // as it says

  // ---- UDP port 4791
  std::string bind{};       // $VERBENA_BIND
  bool bind_is_own = true;  // an address of this host
  os::PortHolder holder{};
  std::string holder_user{};
  bool rxe_loaded = false;
  std::optional<os::Tried> send{};  // nobody listens, so it was tried

  // ---- limits
  os::ResourceLimit open_files{os::kUnlimited, os::kUnlimited};
  os::ResourceLimit locked_memory{os::kUnlimited, os::kUnlimited};
  os::ResourceLimit file_size{os::kUnlimited, os::kUnlimited};
  std::uint64_t receive_buffer_bytes = 0;
  std::uint64_t send_buffer_bytes = 0;

  // ---- the network
  std::optional<std::vector<os::NetworkLink>> links{};  // nothing: the kernel does not tell
  std::vector<os::Interface> addresses{};
  std::vector<std::string> kernel_devices{};

  // ---- what the kernel allows
  os::Tried shared_memory{true, 0};
  os::Tried steering{true, 0};
  os::Tried segmentation{true, 0};
  os::Tried pidfd{true, 0};
  os::Tried peer_pidfd{true, 0};
  os::Tried process_vm_readv{true, 0};
  os::Tried user_namespace{true, 0};
  os::Tried private_files{true, 0};
  os::Tried ipv6{true, 0};
};
HostFacts look_at_host();

struct Finding {
  enum class Level : std::uint8_t {
    kOk,
    kNote,     // worth knowing: slower, narrower, or open to others
    kProblem,  // programs cannot run
  };
  Level level{};
  std::string what{};
  std::string fact{};
  std::string fix{};  // of notes and problems
  friend bool operator==(const Finding&, const Finding&) = default;
};

std::vector<Finding> diagnose(const HostFacts& facts);

std::string as_text(const std::vector<Finding>& findings);
std::string as_json(const std::vector<Finding>& findings);

int doctor(bool json);

}  // namespace verbena::cli
