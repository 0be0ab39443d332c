#pragma once

#include <optional>
#include <string>

#include "cli/agent_connection.h"
#include "plan/plan.h"
#include "subnet/topology.h"

namespace verbena::cli {

// Holds what a file describes: virtual hosts, or the subnet of a netlist.
struct FabricFile {
  std::string path{};
  plan::Fabric fabric{};
  std::optional<subnet::Topology> topology{};
};

// Reads and checks a file.  A problem is told as "FILE:LINE:COLUMN: REASON".
Answer<FabricFile> read_fabric_file(const std::string& path);

// Returns the name of a fabric: the given one, that in the file, or that of the file.
Answer<std::string> fabric_name(const std::string& given, const FabricFile& from);

// Tells how large the fabric is: "3 hosts, 6 rails".
std::string size_text(const FabricFile& from);

}  // namespace verbena::cli
