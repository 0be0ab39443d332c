#include <infiniband/verbs.h>

#include <array>
#include <string_view>

#include "abi/abi.h"

// Names constants exactly as Debian's library does (tests/abi/tables.txt), because people search
// for these names.

namespace {

template <std::size_t N>
const char* at(const std::array<const char*, N>& names, int number) {
  if (number < 0 || static_cast<std::size_t>(number) >= N) return "unknown";
  return names[static_cast<std::size_t>(number)];
}

constexpr std::array kWcStatus{
    "success",
    "local length error",
    "local QP operation error",
    "local EE context operation error",
    "local protection error",
    "Work Request Flushed Error",
    "memory management operation error",
    "bad response error",
    "local access error",
    "remote invalid request error",
    "remote access error",
    "remote operation error",
    "transport retry counter exceeded",
    "RNR retry counter exceeded",
    "local RDD violation error",
    "remote invalid RD request",
    "aborted error",
    "invalid EE context number",
    "invalid EE context state",
    "fatal error",
    "response timeout error",
    "general error",
    "TM error",
    "TM software rendezvous",
};

constexpr std::array kEventType{
    "CQ error",
    "local work queue catastrophic error",
    "invalid request local work queue error",
    "local access violation work queue error",
    "communication established",
    "send queue drained",
    "path migrated",
    "path migration request error",
    "local catastrophic error",
    "port active",
    "port error",
    "LID change",
    "P_Key change",
    "SM change",
    "SRQ catastrophic error",
    "SRQ limit reached",
    "last WQE reached",
    "client reregistration",
    "GID table change",
    "WQ fatal",
};

constexpr std::array kNodeType{
    "unknown",           "InfiniBand channel adapter",
    "InfiniBand switch", "InfiniBand router",
    "iWARP NIC",         "usNIC",
    "usNIC UDP",         "unspecified",
};

constexpr std::array kPortState{
    "no state change (NOP)", "down", "init", "armed", "active", "active defer",
};

}  // namespace

VB_EXPORT const char* ibv_wc_status_str(ibv_wc_status status) { return at(kWcStatus, status); }
VB_EXPORT const char* ibv_event_type_str(ibv_event_type event) { return at(kEventType, event); }
VB_EXPORT const char* ibv_node_type_str(ibv_node_type type) { return at(kNodeType, type); }
VB_EXPORT const char* ibv_port_state_str(ibv_port_state state) { return at(kPortState, state); }
