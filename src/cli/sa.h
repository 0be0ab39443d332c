#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "ipc/sa_messages.h"

// Implements `verbena sa`.  It shows the paths, groups and addresses that the agent of a node of an
// InfiniBand fabric has learned from the subnet administration and from its neighbours.  It can
// also make the agent forget paths and addresses, and find and register services.
namespace verbena::cli {

struct SaOptions {
  enum class Action : std::uint8_t {
    kPaths,
    kGroups,
    kAddresses,
    kStats,
    kFlush,
    kServices,
    kRegister
  };
  Action action{};
  bool json = false;
  std::string node{};    // a node of a fabric; empty: the node that VERBENA_NODE names
  std::string fabric{};  // the fabric of that node; empty: the only one that is up
  // These members are for the services of an InfiniBand subnet.
  unsigned port = 1;  // number of a port of the first device
  std::string service_name{};
  std::optional<std::uint64_t> service_id{};
  std::uint32_t lease_seconds = 3600;
};

// Carries out a command of `verbena sa`, and returns its exit code.
int sa(const SaOptions& options);

struct SaListing {
  std::uint32_t agent_pid = 0;
  std::vector<std::string> devices{};  // names of the devices, indexed by PortId::device
  ipc::SaTopic topic{};
  ipc::SaReply rows{};  // the rows of all pages
};

// These functions return what the commands print.
std::string as_text(const SaListing& listing);
std::string as_json(const SaListing& listing);
std::string as_text(const ipc::SaFlushed& flushed);
std::string as_json(std::uint32_t agent_pid, const ipc::SaFlushed& flushed);

// These functions format values of paths and groups.  A value that is not known is "-".
std::string mtu_text(std::uint8_t code);          // in bytes
std::string static_rate_text(std::uint8_t code);  // "2.5", in Gbit/s; `code` is enum ibv_rate
std::string join_state_text(std::uint8_t bits);   // "full, send-only full"
std::string life_time_text(std::uint8_t code);    // "67.1 ms"

}  // namespace verbena::cli
