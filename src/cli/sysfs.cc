#include "cli/sysfs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "cli/executable.h"
#include "os/fd.h"
#include "os/private_files.h"
#include "verbena_build.h"

namespace verbena::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "verbena0";  // the same as in vb_device_query()
constexpr const char* kVerbsName = "uverbs0";

std::string interface_name(std::uint32_t index) {
  std::array<char, IF_NAMESIZE> name{};
  return ::if_indextoname(index, name.data()) != nullptr ? name.data() : "";
}

// Throws std::filesystem::filesystem_error and std::ios_base::failure.
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

void write_port(const fs::path& port, const ipc::Device& device) {
  write(port / "state", device.port_active ? "4: ACTIVE" : "1: DOWN");
  write(port / "phys_state", device.port_active ? "5: LinkUp" : "3: Disabled");
  write(port / "rate", "100 Gb/sec (4X EDR)");  // the same as in vb_port_query()
  write(port / "link_layer", "Ethernet");
  write(port / "lid", "0x0");
  write(port / "lid_mask_count", "0");
  write(port / "sm_lid", "0x0");
  write(port / "sm_sl", "0");
  write(port / "cap_mask", "0x04010000");
  write(port / "pkeys/0", "0xffff");
  for (const ipc::GidEntry& entry : device.gids) {
    const std::string index = std::to_string(entry.index);
    write(port / "gids" / index, hex_text(entry.gid));
    write(port / "gid_attrs/types" / index, "RoCE v2");
    write(port / "gid_attrs/ndevs" / index, interface_name(entry.interface));
  }
}

void write_device(const fs::path& root, const ipc::Device& device) {
  write(root / "node_type", "1: CA");
  write(root / "node_guid", hex_text(device.node_guid.value));
  write(root / "sys_image_guid", hex_text(device.node_guid.value));
  write(root / "node_desc", "verbena");
  write(root / "fw_ver", VB_VERSION);
  write(root / "hw_rev", "0x1");  // the same as in vb_device_query()
  write(root / "hca_type", kName);
  write(root / "board_id", kName);
  write(root / "device/vendor", "0x07eb");
  write(root / "device/device", "0x0001");
  write(root / "device/numa_node", "-1");
  write_port(root / "ports/1", device);
  // An adapter has one network interface.  Show that of the first GID.
  const auto first = std::ranges::min_element(device.gids, {}, &ipc::GidEntry::index);
  if (first == device.gids.end()) return;
  if (const std::string name = interface_name(first->interface); !name.empty()) {
    fs::create_directories(root / "device/net");
    fs::create_directory_symlink("/sys/class/net/" + name, root / "device/net" / name);
  }
}

// Makes it possible to create files in `directory`, of which the host may have only the parent.
Result<void> make_room(const fs::path& directory) {
  std::error_code none;
  if (fs::is_directory(directory, none)) return os::open_private_directory(directory);
  return os::open_private_directory(directory.parent_path());
}

}  // namespace

bool looks_in_sysfs(const std::string& path) {
  static constexpr std::array<std::string_view, 6> kPrograms{
      "ibstat", "ibstatus", "ibdev2netdev", "ucx_info", "ucx_perftest", "rdma-ndd"};
  static constexpr std::array<std::string_view, 5> kLibraries{
      "libucp.so.0", "libuct.so.0", "libuct_ib.so.0", "libibumad.so.3", "libibmad.so.5"};
  if (std::ranges::find(kPrograms, fs::path(path).filename()) != kPrograms.end()) return true;
  const auto needed = needed_libraries(path);
  return std::ranges::any_of(kLibraries, [&](std::string_view library) {
    return std::ranges::find(needed, library) != needed.end();
  });
}

std::optional<std::string> provide_sysfs(AgentConnection& agent) {
  const ipc::Device& device = agent.welcome().device;
  const auto failed = [](const Error& error) {
    std::string text = *error.context != '\0' ? error.context : to_string(error.code);
    if (error.detail != 0) text += fmt::format(" ({})", std::strerror(error.detail));
    return fmt::format("--sysfs: {}", text);
  };
  if (const auto own = os::enter_private_files(); !own) return failed(own.error());
  // Both directories may be missing.  Then open their parent, /sys/class, only once.
  const bool has_class = fs::is_directory("/sys/class/infiniband");
  for (const fs::path path : {"/sys/class/infiniband", "/sys/class/infiniband_verbs"}) {
    if (!has_class && path != "/sys/class/infiniband") break;
    if (const auto room = make_room(path); !room) return failed(room.error());
  }
  if (const auto room = make_room("/dev/infiniband"); !room) return failed(room.error());
  try {
    write_device(fs::path("/sys/class/infiniband") / kName, device);
    const fs::path verbs = fs::path("/sys/class/infiniband_verbs") / kVerbsName;
    write(verbs.parent_path() / "abi_version", "6");
    write(verbs / "ibdev", kName);
    write(verbs / "abi_version", "1");
    fs::create_directories("/dev/infiniband");
  } catch (const std::exception& error) {
    return fmt::format("--sysfs: {}", error.what());
  }
  const auto node =
      os::add_private_alias(fmt::format("/dev/infiniband/{}", kVerbsName), "/dev/null");
  return node ? std::nullopt : std::optional(failed(node.error()));
}

std::optional<std::string> provide_port_counters(AgentConnection& agent) {
  const os::Fd port(::open(fmt::format("/sys/class/infiniband/{}/ports/1", kName).c_str(),
                           O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!port) return std::string(std::strerror(errno));
  const auto shown = agent.ask<ipc::Done>(
      ipc::ShowPort{.pid = static_cast<std::uint32_t>(::getpid())}, std::array{port.get()});
  if (!shown) return shown.error();
  if (shown->failed) return shown->text;
  return std::nullopt;
}

}  // namespace verbena::cli
