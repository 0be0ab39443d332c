#include "interfaces/interfaces.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <ranges>

#include "wire/address_text.h"
#include "wire/ip.h"

namespace verbena::interfaces {
namespace {

constexpr std::uint8_t kIpv4Bits = 32;
constexpr std::uint8_t kIpv6Bits = 128;
constexpr int kHexBase = 16;
constexpr std::string_view kRunning = "running";
constexpr std::string_view kDown = "down";

template <class Number>
std::optional<Number> parse_number(std::string_view text, int base = 10) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || end != text.data() + text.size()) return {};
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (const auto part : std::views::split(text, separator)) {
    if (!part.empty()) parts.emplace_back(&*part.begin(), std::ranges::size(part));
  }
  return parts;
}

std::optional<std::vector<std::byte>> parse_hex(std::string_view text) {
  std::vector<std::byte> bytes;
  if (text.size() % 2 != 0) return {};
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const auto byte = parse_number<std::uint8_t>(text.substr(i, 2), kHexBase);
    if (!byte) return {};
    bytes.push_back(std::byte{*byte});
  }
  return bytes;
}

std::optional<Address> parse_prefix(std::string_view text) {
  const auto slash = text.find('/');
  if (slash == std::string_view::npos) return {};
  const auto ip = wire::parse_address(std::string(text.substr(0, slash)));
  const auto bits = parse_number<std::uint8_t>(text.substr(slash + 1));
  if (!ip || !bits || *bits > (wire::is_ipv4(*ip) ? kIpv4Bits : kIpv6Bits)) return {};
  return Address{*ip, *bits};
}

std::optional<Interface> parse_interface(std::string_view text) {
  const auto fields = split(text, ' ');
  constexpr std::size_t kFixedFields = 5;
  if (fields.size() < kFixedFields) return {};
  const auto index = parse_number<std::uint32_t>(fields[1]);
  const auto mtu = parse_number<std::uint32_t>(fields[2]);
  auto hardware_address = parse_hex(fields[4]);
  if (fields[0].size() > kNameMax || !index || *index == 0 || !mtu || !hardware_address) return {};
  if (hardware_address->size() != kEthernetAddressBytes &&
      hardware_address->size() != kInfinibandAddressBytes) {
    return {};
  }
  if (fields[3] != kRunning && fields[3] != kDown) return {};
  Interface result{.name = std::string(fields[0]),
                   .index = *index,
                   .mtu_bytes = *mtu,
                   .running = fields[3] == kRunning,
                   .hardware_address = *std::move(hardware_address)};
  for (const std::string_view field : fields | std::views::drop(kFixedFields)) {
    const auto address = parse_prefix(field);
    if (!address) return {};
    result.addresses.push_back(*address);
  }
  return result;
}

}  // namespace

std::string name_for(std::string_view device, std::size_t index) {
  return device.size() <= kNameMax ? std::string(device) : fmt::format("rail-{}", index);
}

std::string to_text(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const Interface& interface : interfaces) {
    text += fmt::format("{}{} {} {} {} ", text.empty() ? "" : "; ", interface.name, interface.index,
                        interface.mtu_bytes, interface.running ? kRunning : kDown);
    for (const std::byte byte : interface.hardware_address) {
      text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
    }
    for (const Address& address : interface.addresses) {
      text += fmt::format(" {}/{}", wire::address_text(address.ip), address.prefix_bits);
    }
  }
  return text;
}

std::optional<std::vector<Interface>> parse(std::string_view text) {
  std::vector<Interface> all;
  for (const std::string_view part : split(text, ';')) {
    auto interface = parse_interface(part);
    if (!interface) return {};
    all.push_back(*std::move(interface));
  }
  return all;
}

}  // namespace verbena::interfaces
