#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/fabric.h"
#include "cli/fabric_file.h"

namespace verbena::cli {

// Names the HCAs on which the fabric runs OpenSM, and the path of OpenSM.
struct ManagerChoice {
  std::vector<std::string> nodes{};
  std::string opensm{};   // the path; empty if there are no nodes
  std::string warning{};  // a message for the user, or empty
};

// Chooses the nodes of the managers.  `sm_options` has the values of --sm; `opensm` is the path of
// OpenSM, or nothing if it is not installed.  The error is a line for the user.
Answer<ManagerChoice> choose_managers(const FabricFile& fabric_file,
                                      const std::vector<std::string>& sm_options,
                                      const std::optional<std::string>& opensm);

// Carries out `verbena fabric up`, and returns its exit code.
int fabric_up(const FabricOptions& options);

}  // namespace verbena::cli
