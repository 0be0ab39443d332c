#include "cli/text.h"

#include <fmt/format.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>

#include "base/printable.h"
#include "os/address.h"
#include "rdmacm/service_id.h"
#include "wire/ip.h"

namespace verbena::cli {

std::string address_text(const Gid& gid) { return gid == Gid{} ? "-" : os::address_text(gid); }

std::string address_text(const rdmacm::SocketAddress& address) {
  if (address.family == 0) return "-";
  const bool is_wildcard = address.ip == Gid{} || address.ip == wire::ipv4_gid(0);
  std::string where = is_wildcard ? "*" : address_text(address.ip);
  switch (rdmacm::named_by(address)) {
    case rdmacm::NamedBy::kPort: break;
    case rdmacm::NamedBy::kService:
      return fmt::format("{} service 0x{:x}", where, address.service.value);
    case rdmacm::NamedBy::kNothing: return where;
  }
  if (address.family == 4) {
    return fmt::format("{}:{}", is_wildcard ? "*" : address_text(address.ip), address.port);
  }
  std::array<char, IF_NAMESIZE> name{};
  std::string scope;
  if (address.scope != 0) {
    scope = "%";
    scope += if_indextoname(address.scope, name.data()) != nullptr ? std::string(name.data())
                                                                   : std::to_string(address.scope);
  }
  return fmt::format("[{}{}]:{}", is_wildcard ? "::" : address_text(address.ip), scope,
                     address.port);
}

std::string qpn_text(std::uint32_t qpn) { return qpn == 0 ? "-" : fmt::format("0x{:06x}", qpn); }

std::string qp_type_text(std::uint8_t type) {
  switch (type) {
    case 2: return "RC";
    case 3: return "UC";
    case 4: return "UD";
    case 9: return "XRC-SEND";
    case 10: return "XRC-RECV";
    default: return fmt::format("{}", type);
  }
}

std::string qp_state_text(std::uint8_t state) {
  constexpr std::array kNames{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  return state < kNames.size() ? kNames[state] : fmt::format("{}", state);
}

std::string duration_text(std::int64_t seconds) {
  if (seconds < 60) return fmt::format("{} s", seconds);
  if (seconds < 3600) return fmt::format("{} min {} s", seconds / 60, seconds % 60);
  return fmt::format("{} h {} min", seconds / 3600, seconds / 60 % 60);
}

std::string table_text(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  std::vector<std::vector<std::string>> cells = rows;
  for (auto& row : cells) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i] = printable(row[i]);
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const auto& row : cells) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::int64_t whole_seconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::seconds>(duration).count();
}

int print_error(const char* command, const std::string& text) {
  std::fprintf(stderr, "verbena %s: %s\n", command, printable(text).c_str());
  return 1;
}

}  // namespace verbena::cli
