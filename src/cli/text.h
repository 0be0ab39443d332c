#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/strong.h"
#include "base/time.h"
#include "rdmacm/types.h"

// Formats values for users.
namespace verbena::cli {

std::string address_text(const Gid& gid);                        // "-" if zero
std::string address_text(const rdmacm::SocketAddress& address);  // with the port or service
std::string qpn_text(std::uint32_t qpn);                         // 0x000011, or "-" for 0
std::string qp_type_text(std::uint8_t type);                     // enum ibv_qp_type
std::string qp_state_text(std::uint8_t state);                   // enum ibv_qp_state
std::string duration_text(std::int64_t seconds);                 // 3 h 2 min
std::int64_t whole_seconds(Duration duration);

// Writes "verbena COMMAND: TEXT" to standard error, and returns the exit code 1.
int print_error(const char* command, const std::string& text);

// Formats a table whose columns are as wide as their widest cell.
std::string table_text(const std::vector<std::vector<std::string>>& rows);

}  // namespace verbena::cli
