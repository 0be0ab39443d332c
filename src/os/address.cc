#include "os/address.h"

#include <arpa/inet.h>

#include <array>

namespace verbena::os {

std::string address_text(const Gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool ipv4 = wire::is_ipv4(gid);
  inet_ntop(ipv4 ? AF_INET : AF_INET6, gid.bytes.data() + (ipv4 ? 12 : 0), text.data(),
            text.size());
  return text.data();
}

}  // namespace verbena::os
