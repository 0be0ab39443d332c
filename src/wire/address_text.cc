#include "wire/address_text.h"

#include <arpa/inet.h>

#include <array>
#include <cstring>

#include "wire/ip.h"

namespace verbena::wire {

std::string address_text(const Gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool ipv4 = is_ipv4(gid);
  inet_ntop(ipv4 ? AF_INET : AF_INET6, gid.bytes.data() + (ipv4 ? 12 : 0), text.data(),
            text.size());
  return text.data();
}

std::optional<Gid> parse_address(const std::string& text) {
  if (in_addr v4{}; inet_pton(AF_INET, text.c_str(), &v4) == 1) {
    return ipv4_gid(ntohl(v4.s_addr));
  }
  Gid gid;
  if (inet_pton(AF_INET6, text.c_str(), gid.bytes.data()) != 1) return std::nullopt;
  return gid;
}

}  // namespace verbena::wire
