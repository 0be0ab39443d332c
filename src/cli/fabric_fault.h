#pragma once

#include <cstdint>
#include <string>

#include "ipc/fabric.h"

namespace verbena::cli {

struct FaultOptions {
  std::string fabric{};  // empty: the one that is up
  std::string a{};       // a node, or an end of a link
  std::string b{};       // the other end
  std::string state{};   // down, up or lossy; off or on
  double percent = 0;    // of packets that are lost, with "lossy"
  std::uint64_t seed = 1;
};

// Makes the request that the options describe.
ipc::SetFault fault_request(const FaultOptions& options);

// Carries out `verbena fabric fault`, and returns its exit code.
int fabric_fault(const FaultOptions& options);

}  // namespace verbena::cli
