#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/agent_connection.h"
#include "plan/plan.h"
#include "subnet/topology.h"

namespace verbena::cli {

// Holds the contents of a file: virtual hosts (`fabric`), or the subnet of a netlist (`topology`).
struct FabricFile {
  std::string path{};  // absolute
  plan::Fabric fabric{};
  std::optional<subnet::Topology> topology{};
};

// Reads and checks a file.  The error is a line for the user: "FILE:LINE:COLUMN: REASON" for a
// mistake at a known place.
Answer<FabricFile> read_fabric_file(const std::string& path);

struct FaultsFile {
  std::string path{};  // absolute
  std::vector<plan::ScheduledFault> faults{};
};

// Reads a file of faults, and checks that the fabric has the nodes and links that the faults name.
Answer<FaultsFile> read_faults_file(const std::string& path, const FabricFile& fabric);

// Returns the name of a fabric: the value of --name; without --name, the name in the file; and if
// the file contains no name, the name of the file itself.
Answer<std::string> fabric_name(const std::string& name_option, const FabricFile& fabric_file);

// Returns "1 host" or "3 hosts".
std::string quantity_text(std::size_t number, const char* singular, const char* plural);

// Returns the size of the fabric: "3 hosts, 6 rails".
std::string size_text(const FabricFile& fabric_file);

}  // namespace verbena::cli
