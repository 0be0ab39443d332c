#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "base/strong.h"
#include "base/time.h"
#include "faults/fault.h"
#include "wire/bth.h"

// Describes a fabric of virtual hosts, as the file of `verbena fabric up` does.
//
//   name = "lab"
//
//   [[hosts]]
//   name = "a"
//   rails = [
//     { network = "red", addresses = ["10.31.0.1", "fd31::1"] },
//     { network = "blue", addresses = ["10.31.1.1"], mtu = 1500, vlan = 5 },
//   ]
//
//   [[routers]]
//   networks = ["red", "blue"]
//
//   [[faults]]
//   after = 5
//   fault = "link a red lossy 2"
//   seed = 7
//
// A rail is a device with one Ethernet port.  Rails with the same network and VLAN reach each
// other.  Rails with the same VLAN also reach each other if a router joins their networks.
namespace verbena::plan {

inline constexpr std::size_t kTextBytesMax = std::size_t{1} << 20;
inline constexpr std::size_t kKeyPartsMax = 8;  // of a TOML key such as "a.b"
inline constexpr std::size_t kHostsMax = 256;
inline constexpr std::size_t kRoutersMax = 64;
inline constexpr std::size_t kAddressesPerRailMax = 16;
inline constexpr std::size_t kPkeysMax = 128;
inline constexpr std::size_t kFaultsMax = 1024;
inline constexpr Duration kAfterMax = std::chrono::hours(24 * 7);
inline constexpr std::uint32_t kMtuMin = 576;
inline constexpr std::uint32_t kMtuMax = 65535;
// The largest RDMA packets (4096 bytes) fit the usual size of jumbo frames.
inline constexpr std::uint32_t kMtuDefault = 9000;
inline constexpr std::uint16_t kVlanMax = 4094;

struct Rail {
  std::string device{};
  std::string network{};
  std::vector<Gid> addresses{};
  std::uint32_t mtu_bytes = kMtuDefault;
  std::uint16_t vlan = 0;  // 0: no VLAN
  std::vector<Pkey> pkeys{wire::kDefaultPkey};

  friend bool operator==(const Rail&, const Rail&) = default;
};

struct Host {
  std::string name{};
  std::vector<Rail> rails{};

  friend bool operator==(const Host&, const Host&) = default;
};

// Joins networks, so that rails of one network reach rails of the others.
struct Router {
  std::vector<std::string> networks{};

  friend bool operator==(const Router&, const Router&) = default;
};

// Describes a fault that begins when the fabric has been up for the time `after`.
struct ScheduledFault {
  Duration after{};
  faults::Fault fault{};
  std::uint32_t line = 1;  // the position of the fault in the file, for messages only
  std::uint32_t column = 1;

  friend bool operator==(const ScheduledFault& a, const ScheduledFault& b) {
    return a.after == b.after && a.fault == b.fault;
  }
};

struct Fabric {
  std::string name{};  // empty if the file has no name
  std::vector<Host> hosts{};
  std::vector<Router> routers{};
  std::vector<ScheduledFault> faults{};  // in the order of the file

  friend bool operator==(const Fabric&, const Fabric&) = default;
};

// Describes an error in a text, and its position.  Lines and columns count from 1.
struct Problem {
  std::uint32_t line = 1;
  std::uint32_t column = 1;
  std::string text{};
};

// Parses the text of a file.  All faults must name links and nodes that the fabric has.
std::expected<Fabric, Problem> parse(std::string_view text);
// Parses a file that contains only faults.  The fabric is not known, so the names are not checked.
std::expected<std::vector<ScheduledFault>, Problem> parse_faults(std::string_view text);

// Makes a fabric of hosts with the names a, b, c, ..., or h1, h2, h3, ... if there are more than 26
// hosts.  The first rail of each host is in the network net0, the second in net1, and so on.
// Networks do not reach each other.  REQUIRES: 1 to kHostsMax hosts, and 1 to kDevicesMax rails.
Fabric make(std::size_t host_count, std::size_t rails_per_host);
// Writes a text that parse() reads as this fabric.
std::string to_text(const Fabric& fabric);

}  // namespace verbena::plan
