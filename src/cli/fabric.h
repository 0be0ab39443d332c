#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/agent_connection.h"
#include "cli/fabric_fault.h"
#include "ipc/fabric.h"

namespace verbena::cli {

struct FabricOptions {
  enum class Action : std::uint8_t {
    kUp,
    kDown,
    kList,
    kShow,
    kLog,
    kFault,
    kCheck,
    kMake
  } action{};
  std::string file{};                   // for up and check
  std::string faults{};                 // for up and check: a file of faults, or empty
  std::string name{};                   // empty: the default of the command
  std::vector<std::string> managers{};  // for up: HCAs, or "none"; empty: the default
  FaultOptions fault{};
  bool json = false;
  // The remaining members are for make.
  std::uint32_t hosts = 2;
  std::uint32_t rails = 1;
  bool infiniband = false;
  std::uint32_t fat_tree_hosts = 0;  // 0: no fat tree
};

// Carries out a command of `verbena fabric`, and returns its exit code.
int fabric(const FabricOptions& options);

// Sets the environment, so that this process and its children are on a virtual host.  If `fabric`
// is empty, takes the only fabric that is up.  Returns the devices and addresses of the host.
// Fails if there is no such fabric or host.  find_host() says how `host` may name the host.
Answer<ipc::HostStatus> enter_host(const std::string& fabric, const std::string& host);
// Finds a host by its name, by its description, or by its GUID ("0x2c90300000001").  A description
// must belong to only one host.  The error continues the words "the fabric 'lab' ...".
Answer<ipc::HostStatus> find_host(const std::vector<ipc::HostStatus>& hosts,
                                  const std::string& text);

// These two return what `verbena fabric show` prints.
std::string fabric_as_text(const ipc::FabricReply& fabric);
std::string fabric_as_json(const ipc::FabricReply& fabric);

}  // namespace verbena::cli
