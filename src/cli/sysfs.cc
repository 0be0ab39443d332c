#include "cli/sysfs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <vector>

#include "cli/executable.h"
#include "interfaces/interfaces.h"
#include "ipc/tool_messages.h"
#include "os/fd.h"
#include "os/private_files.h"
#include "verbena_build.h"

namespace verbena::cli {
namespace {

namespace fs = std::filesystem;

// Returns the name in /sys/class/infiniband_verbs of the device with this index.
std::string verbs_name(std::size_t index) { return fmt::format("uverbs{}", index); }

// Returns the interfaces of the virtual host on which the program will run, or nothing if it runs
// on this machine.
std::optional<std::vector<interfaces::Interface>> interfaces_of_node() {
  if (::secure_getenv("VERBENA_NODE") == nullptr) return std::nullopt;
  const char* const text = ::secure_getenv(interfaces::kVariable);
  return interfaces::parse(text == nullptr ? "" : text)
      .value_or(std::vector<interfaces::Interface>{});
}

std::string interface_name(std::uint32_t index) {
  if (const auto all = interfaces_of_node()) {
    const auto found = std::ranges::find(*all, index, &interfaces::Interface::index);
    return found == all->end() ? "" : found->name;
  }
  std::array<char, IF_NAMESIZE> name{};
  return ::if_indextoname(index, name.data()) != nullptr ? name.data() : "";
}

// Writes a file with one line, and makes its directories.  Throws std::filesystem::filesystem_error
// and std::ios_base::failure.
void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream file;
  file.exceptions(std::ios::failbit | std::ios::badbit);
  file.open(path);
  file << text << '\n';
}

std::string hex_text(std::uint64_t guid) {
  return fmt::format("{:04x}:{:04x}:{:04x}:{:04x}", guid >> 48, (guid >> 32) & 0xffff,
                     (guid >> 16) & 0xffff, guid & 0xffff);
}

std::string hex_text(const Gid& gid) {
  std::string text;
  for (std::size_t i = 0; i < gid.bytes.size(); i += 2) {
    text +=
        fmt::format("{}{:02x}{:02x}", i == 0 ? "" : ":", std::to_integer<unsigned>(gid.bytes[i]),
                    std::to_integer<unsigned>(gid.bytes[i + 1]));
  }
  return text;
}

// Returns the name of a value.  names[0] is the name of the value 1.
std::string name_in(std::span<const char* const> names, unsigned number) {
  return number >= 1 && number <= names.size() ? names[number - 1] : "<unknown>";
}

// Writes the rate as Linux does: "100 Gb/sec (4X EDR)".
std::string rate_text(const ipc::InfinibandLink& link) {
  struct Speed {
    const char* name;
    unsigned lane_tenths;  // of Gb/s
  };
  constexpr std::array<Speed, 9> kSpeeds{{{"SDR", 25},
                                          {"DDR", 50},
                                          {"QDR", 100},
                                          {"FDR10", 100},
                                          {"FDR", 140},
                                          {"EDR", 250},
                                          {"HDR", 500},
                                          {"NDR", 1000},
                                          {"XDR", 2000}}};
  constexpr std::array<unsigned, 5> kLanes{1, 4, 8, 12, 2};
  const auto bit_index = [](unsigned bits) {
    return static_cast<std::size_t>(std::countr_zero(bits));
  };
  const std::size_t speed = std::min(bit_index(link.speed), kSpeeds.size() - 1);
  const unsigned lanes = kLanes[std::min(bit_index(link.width), kLanes.size() - 1)];
  const unsigned tenths = lanes * kSpeeds[speed].lane_tenths;
  const std::string whole = std::to_string(tenths / 10);
  return fmt::format("{}{} Gb/sec ({}X {})", whole, tenths % 10 == 0 ? "" : ".5", lanes,
                     kSpeeds[speed].name);
}

void write_link(const fs::path& path, const ipc::Port& port) {
  constexpr std::array kStates{"DOWN", "INIT", "ARMED", "ACTIVE"};
  constexpr std::array kPhysicalStates{
      "Sleep", "Polling", "Disabled", "PortConfigurationTraining", "LinkUp", "LinkErrorRecovery"};
  if (port.link_layer != LinkLayer::kInfiniband) {
    write(path / "state", port.active ? "4: ACTIVE" : "1: DOWN");
    write(path / "phys_state", port.active ? "5: LinkUp" : "3: Disabled");
    write(path / "rate", "100 Gb/sec (4X EDR)");  // vb_port_query() reports this too
    write(path / "cap_mask", "0x04010000");
    return;
  }
  const ipc::InfinibandLink& link = port.link;
  write(path / "state", fmt::format("{}: {}", link.state, name_in(kStates, link.state)));
  write(path / "phys_state",
        fmt::format("{}: {}", link.physical_state, name_in(kPhysicalStates, link.physical_state)));
  write(path / "rate", rate_text(link));
  write(path / "cap_mask", fmt::format("{:#010x}", link.capability_mask));
}

void write_port(const fs::path& path, const ipc::Port& port) {
  const bool infiniband = port.link_layer == LinkLayer::kInfiniband;
  write_link(path, port);
  write(path / "link_layer", infiniband ? "InfiniBand" : "Ethernet");
  write(path / "lid", fmt::format("{:#x}", port.lid.value));
  write(path / "lid_mask_count", std::to_string(port.lmc));
  write(path / "sm_lid", fmt::format("{:#x}", port.sm_lid.value));
  write(path / "sm_sl", std::to_string(port.sm_sl));
  for (std::size_t i = 0; i < port.pkeys.size(); ++i) {
    write(path / "pkeys" / std::to_string(i), fmt::format("{:#06x}", port.pkeys[i].value));
  }
  for (const ipc::GidEntry& entry : port.gids) {
    const std::string index = std::to_string(entry.index);
    write(path / "gids" / index, hex_text(entry.gid));
    write(path / "gid_attrs/types" / index, infiniband ? "IB/RoCE v1" : "RoCE v2");
    write(path / "gid_attrs/ndevs" / index, interface_name(entry.interface));
  }
}

// Writes the files that /sys/class/net would have for an interface that the kernel does not know.
void write_interface(const fs::path& path, const interfaces::Interface& interface) {
  std::string address;
  for (const std::byte byte : interface.hardware_address) {
    address += fmt::format("{}{:02x}", address.empty() ? "" : ":", std::to_integer<unsigned>(byte));
  }
  const bool infiniband = interface.hardware_address.size() == interfaces::kInfinibandAddressBytes;
  write(path / "address", address);
  write(path / "ifindex", std::to_string(interface.index));
  write(path / "mtu", std::to_string(interface.mtu_bytes));
  write(path / "operstate", interface.running ? "up" : "down");
  write(path / "type", std::to_string(infiniband ? ARPHRD_INFINIBAND : ARPHRD_ETHER));
}

// Writes the network interfaces of a device.  A RoCE device has one, and an InfiniBand device has
// one for each port.
void write_interfaces(const fs::path& path, const ipc::Device& device) {
  const auto& gids = device.ports.front().gids;
  const auto first = std::ranges::min_element(gids, {}, &ipc::GidEntry::index);
  const auto node_interfaces = interfaces_of_node();
  if (!node_interfaces) {
    if (first == gids.end()) return;
    // A RoCE adapter has one network interface, so only the interface of the first GID is shown.
    if (const std::string name = interface_name(first->interface); !name.empty()) {
      fs::create_directories(path);
      fs::create_directory_symlink("/sys/class/net/" + name, path / name);
    }
    return;
  }
  const bool infiniband = device.ports.front().link_layer == LinkLayer::kInfiniband;
  std::uint32_t port = 0;
  for (const interfaces::Interface& interface : *node_interfaces) {
    if (!infiniband && (first == gids.end() || first->interface != interface.index)) continue;
    write_interface(path / interface.name, interface);
    write(path / interface.name / "dev_port", std::to_string(port++));
  }
}

void write_device(const fs::path& root, const ipc::Device& device) {
  write(root / "node_type", "1: CA");
  write(root / "node_guid", hex_text(device.node_guid.value));
  write(root / "sys_image_guid", hex_text(device.node_guid.value));
  write(root / "node_desc", device.description);
  write(root / "fw_ver", VB_VERSION);
  write(root / "hw_rev", "0x1");  // the same as in vb_device_query()
  write(root / "hca_type", device.name);
  write(root / "board_id", device.name);
  write(root / "device/vendor", "0x07eb");
  write(root / "device/device", "0x0001");
  write(root / "device/numa_node", "-1");
  for (std::size_t i = 0; i < device.ports.size(); ++i) {
    write_port(root / "ports" / std::to_string(i + 1), device.ports[i]);
  }
  write_interfaces(root / "device/net", device);
}

void write_verbs_device(const fs::path& root, const ipc::Device& device) {
  write(root.parent_path() / "abi_version", "6");
  write(root / "ibdev", device.name);
  write(root / "abi_version", "1");
}

struct UmadDevice {
  std::string device{};
  std::size_t port = 1;
};
// Returns the ports of InfiniBand devices.  Linux numbers the devices of libibumad by port.
std::vector<UmadDevice> umad_devices(const std::vector<ipc::Device>& devices) {
  std::vector<UmadDevice> all;
  for (const ipc::Device& device : devices) {
    for (std::size_t i = 0; i < device.ports.size(); ++i) {
      if (device.ports[i].link_layer != LinkLayer::kInfiniband) continue;
      all.push_back({.device = device.name, .port = i + 1});
    }
  }
  return all;
}

void write_umad_devices(const fs::path& root, const std::vector<UmadDevice>& devices) {
  write(root / "abi_version", "5");
  for (std::size_t i = 0; i < devices.size(); ++i) {
    for (const char* kind : {"umad", "issm"}) {
      const fs::path directory = root / fmt::format("{}{}", kind, i);
      write(directory / "ibdev", devices[i].device);
      write(directory / "port", std::to_string(devices[i].port));
    }
  }
}

// Lets this process create files in `directory`.  If the directory does not exist, makes its parent
// writable instead, so that the directory can be created.
Result<void> make_writable(const fs::path& directory) {
  std::error_code ignored;
  if (fs::is_directory(directory, ignored)) return os::mount_private_directory(directory);
  return os::mount_private_directory(directory.parent_path());
}

}  // namespace

bool looks_in_sysfs(const std::string& path) {
  static constexpr std::array<std::string_view, 5> kPrograms{"ibstatus", "ibdev2netdev", "ucx_info",
                                                             "ucx_perftest", "rdma-ndd"};
  static constexpr std::array<std::string_view, 3> kLibraries{"libucp.so.0", "libuct.so.0",
                                                              "libuct_ib.so.0"};
  if (std::ranges::find(kPrograms, fs::path(path).filename()) != kPrograms.end()) return true;
  const auto needed = needed_libraries(path);
  return std::ranges::any_of(kLibraries, [&](std::string_view library) {
    return std::ranges::find(needed, library) != needed.end();
  });
}

std::optional<std::string> provide_sysfs(AgentConnection& agent) {
  const auto& devices = agent.welcome().devices;
  const auto error_text = [](const Error& error) {
    std::string text = *error.context != '\0' ? error.context : to_string(error.code);
    if (error.detail != 0) text += fmt::format(" ({})", std::strerror(error.detail));
    return fmt::format("--sysfs: {}", text);
  };
  if (const auto entered = os::enter_private_mounts(); !entered) return error_text(entered.error());
  const auto umads = umad_devices(devices);
  std::vector<fs::path> classes{"/sys/class/infiniband", "/sys/class/infiniband_verbs"};
  if (!umads.empty()) classes.emplace_back("/sys/class/infiniband_mad");
  // The parent comes first, because a directory that is mounted later would hide the others.
  const auto is_missing = [](const fs::path& path) { return !fs::is_directory(path); };
  const auto last = std::ranges::remove_if(classes, is_missing);
  if (!last.empty()) {
    const auto opened = os::mount_private_directory("/sys/class");
    if (!opened) return error_text(opened.error());
  }
  classes.erase(last.begin(), last.end());
  for (const fs::path& path : classes) {
    if (const auto opened = os::mount_private_directory(path); !opened)
      return error_text(opened.error());
  }
  if (const auto opened = make_writable("/dev/infiniband"); !opened)
    return error_text(opened.error());
  try {
    for (std::size_t i = 0; i < devices.size(); ++i) {
      write_device(fs::path("/sys/class/infiniband") / devices[i].name, devices[i]);
      write_verbs_device(fs::path("/sys/class/infiniband_verbs") / verbs_name(i), devices[i]);
    }
    if (!umads.empty()) write_umad_devices("/sys/class/infiniband_mad", umads);
    fs::create_directories("/dev/infiniband");
  } catch (const std::exception& error) {
    return fmt::format("--sysfs: {}", error.what());
  }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < devices.size(); ++i) names.push_back(verbs_name(i));
  for (std::size_t i = 0; i < umads.size(); ++i) {
    names.push_back(fmt::format("umad{}", i));
    names.push_back(fmt::format("issm{}", i));
  }
  for (const std::string& name : names) {
    const auto node = os::add_private_alias("/dev/infiniband/" + name, "/dev/null");
    if (!node) return error_text(node.error());
  }
  return std::nullopt;
}

// Provides the counters only for port 1 of the first device, because the agent counts for the whole
// host.
std::optional<std::string> provide_port_counters(AgentConnection& agent) {
  const os::Fd port(::open(
      fmt::format("/sys/class/infiniband/{}/ports/1", agent.welcome().devices.front().name).c_str(),
      O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!port) return std::string(std::strerror(errno));
  const auto reply = agent.ask<ipc::Done>(
      ipc::UpdatePortFiles{.pid = static_cast<std::uint32_t>(::getpid())}, std::array{port.get()});
  if (!reply) return reply.error();
  if (reply->failed) return reply->text;
  return std::nullopt;
}

}  // namespace verbena::cli
