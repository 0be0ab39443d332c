#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/strong.h"

// Describes the network interfaces of a virtual host for programs that list interfaces.  The kernel
// has no such interfaces, so `verbena run --node` passes their description to the program, as a
// text in the program's environment.
namespace verbena::interfaces {

// Names the environment variable that holds the text.
inline constexpr const char* kVariable = "VERBENA_INTERFACES";
// Limits the length of a name, as the kernel does (IF_NAMESIZE has one more, for the NUL).
inline constexpr std::size_t kNameMax = 15;

struct Address {
  Gid ip{};
  std::uint8_t prefix_bits = 0;  // IPv4: 0 to 32; IPv6: 0 to 128
  friend bool operator==(const Address&, const Address&) = default;
};

struct Interface {
  std::string name{};  // 1 to kNameMax characters
  std::uint32_t index = 0;
  std::uint32_t mtu_bytes = 0;
  bool running = false;
  std::vector<std::byte> hardware_address{};  // 6 bytes on Ethernet, 20 on InfiniBand
  std::vector<Address> addresses{};
  friend bool operator==(const Interface&, const Interface&) = default;
};

inline constexpr std::size_t kEthernetAddressBytes = 6;
inline constexpr std::size_t kInfinibandAddressBytes = 20;

// Returns the name of a device's interface: the device's own name, or "rail-INDEX" if that name is
// too long for an interface.  `index` is the index of the device on its host.
std::string name_for(std::string_view device, std::size_t index);

// Writes "verbena0 2 9000 running 02a1b2c3d4e5 10.31.0.1/24 fd31::1/64; verbena1 ...".
std::string to_text(const std::vector<Interface>& interfaces);
// Parses a text of to_text().  Returns nothing if the text is invalid, because a user may set the
// variable to anything.
std::optional<std::vector<Interface>> parse(std::string_view text);

}  // namespace verbena::interfaces
