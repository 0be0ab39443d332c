#pragma once

#include <optional>
#include <string>

#include "base/strong.h"

namespace verbena::wire {

// Formats an address as text, such as "10.0.0.1" or "fe80::1".
std::string address_text(const Gid& gid);
// Parses an IPv4 or IPv6 address in its usual notation, without a zone or a prefix length.  Returns
// nullopt for other text.
std::optional<Gid> parse_address(const std::string& text);

}  // namespace verbena::wire
