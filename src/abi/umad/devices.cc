#include <endian.h>
#include <infiniband/umad.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <span>

#include "abi/umad/service.h"

// Implements the queries of devices and ports.  The original libibumad reads sysfs.  Here, the
// service of the program's node answers each query.  Without a node, libverbena answers it.

using namespace verbena::abi;
using namespace verbena::abi::umad;
namespace um = verbena::ipc::umad;

namespace {

template <std::size_t Bytes>
void copy_text(char (&to)[Bytes], const std::string& from) {
  const std::size_t length = std::min(from.size(), Bytes - 1);
  std::memcpy(to, from.data(), length);
  std::memset(to + length, 0, Bytes - length);
}

bool fill_port(const um::Device& device, const um::Port& from, umad_port_t& port) {
  copy_text(port.ca_name, device.name);
  port.portnum = from.number;
  port.base_lid = from.lid;
  port.lmc = from.lmc;
  port.sm_lid = from.sm_lid;
  port.sm_sl = from.sm_sl;
  port.state = from.state;
  port.phys_state = from.physical_state;
  port.rate = from.rate;
  port.capmask = htobe32(from.capability_mask);
  port.gid_prefix = htobe64(from.gid_prefix);
  port.port_guid = htobe64(from.guid);
  copy_text(port.link_layer, from.infiniband ? "InfiniBand" : "Ethernet");
  port.pkeys_size = static_cast<unsigned>(from.pkeys.size());
  // The program may release the P_Keys with umad_release_port(), which calls free().
  port.pkeys = static_cast<std::uint16_t*>(std::calloc(from.pkeys.size() + 1, sizeof *port.pkeys));
  if (port.pkeys == nullptr) return false;
  std::ranges::copy(from.pkeys, port.pkeys);
  return true;
}

int release(umad_ca_t& ca) {
  for (umad_port_t*& port : ca.ports) {
    if (port == nullptr) continue;
    std::free(port->pkeys);
    std::free(port);
    port = nullptr;
  }
  return 0;
}

int fill_ca(const um::Device& device, umad_ca_t& ca) {
  copy_text(ca.ca_name, device.name);
  ca.node_type = device.node_type;
  ca.numports = 0;
  copy_text(ca.fw_ver, device.firmware);
  copy_text(ca.ca_type, device.type);
  copy_text(ca.hw_ver, device.hardware);
  ca.node_guid = htobe64(device.node_guid);
  ca.system_guid = htobe64(device.system_guid);
  std::ranges::fill(ca.ports, nullptr);
  for (const um::Port& from : device.ports) {
    if (from.number >= UMAD_CA_MAX_PORTS) continue;
    auto*& port = ca.ports[from.number];
    port = static_cast<umad_port_t*>(std::calloc(1, sizeof *port));
    if (port == nullptr || !fill_port(device, from, *port)) {
      release(ca);
      return -ENOMEM;
    }
    ca.numports = std::max<int>(ca.numports, from.number);
  }
  return 0;
}

int get_ca(const std::string& name, umad_ca_t& ca) {
  const auto devices = query_devices();
  const um::Device* device = devices ? find_device(*devices, name) : nullptr;
  return device == nullptr ? -ENOENT : fill_ca(*device, ca);
}

int get_port(const char* name, int number, umad_port_t& port) {
  const auto choice = choose_port(name, number, true);
  if (!choice) return -ENODEV;
  const auto devices = query_devices();
  const um::Device* device = devices ? find_device(*devices, choice->device) : nullptr;
  const um::Port* from = device != nullptr ? find_port(*device, choice->port) : nullptr;
  if (from == nullptr) return -EIO;
  return fill_port(*device, *from, port) ? 0 : -EIO;
}

// Holds the file that a subnet manager (SM) keeps open while it runs (/dev/infiniband/issmN on
// Linux).  The file exists as long as this process has its descriptor.  The service sees when the
// program opens or closes the file.
struct SmFile {
  ServiceConnection connection;
  verbena::os::Fd file;
};

int issm_path(const char* name, int port, char* path, int max) {
  const auto choice = choose_port(name, port, true);
  if (!choice) return -ENODEV;
  if (choice->port < 0 || choice->port > UINT8_MAX) return -EINVAL;
  static std::mutex lock;
  static auto& files = *new std::map<std::pair<std::string, int>, SmFile>();
  const std::lock_guard guard(lock);
  const auto key = std::pair(choice->device, choice->port);
  auto found = files.find(key);
  if (found == files.end()) {
    int error = 0;
    verbena::os::Fd file;
    auto connection = ServiceConnection::open({.purpose = um::Hello::Purpose::kManager,
                                               .device = choice->device,
                                               .port = static_cast<std::uint8_t>(choice->port)},
                                              error, &file);
    if (!connection) return -EINVAL;
    found = files.emplace(key, SmFile{std::move(*connection), std::move(file)}).first;
  }
  std::snprintf(path, static_cast<std::size_t>(max), "/proc/self/fd/%d", found->second.file.get());
  return 0;
}

}  // namespace

VB_EXPORT int umad_init(void) { return 0; }
VB_EXPORT int umad_done(void) { return 0; }

VB_EXPORT int umad_get_cas_names(char cas[][UMAD_CA_NAME_LEN], int max) {
  int count = 0;
  guarded([&] {
    const auto devices = query_devices();
    if (!devices && max > 0) {
      copy_text(cas[count++], choose_port(nullptr, 0, false)->device);
    } else if (devices) {
      for (const um::Device& device : *devices) {
        if (count < max && device.name.size() < UMAD_CA_NAME_LEN)
          copy_text(cas[count++], device.name);
      }
    }
    return 0;
  });
  return count;
}

VB_EXPORT int umad_get_ca_portguids(const char* ca_name, __be64* portguids, int max) {
  int result = -ENOMEM;
  guarded([&] {
    umad_ca_t ca{};
    result = -1;
    if (get_ca(choose_port(ca_name, 0, false)->device, ca) < 0) return 0;
    result = 0;
    if (portguids != nullptr) {
      result = ca.numports + 1 > max ? -ENOMEM : ca.numports + 1;
      for (int i = 0; i < result; ++i) {
        portguids[i] = ca.ports[i] != nullptr ? ca.ports[i]->port_guid : 0;
      }
    }
    return release(ca);
  });
  return result;
}

VB_EXPORT int umad_get_ca(const char* ca_name, umad_ca_t* ca) {
  int result = 0;
  if (guarded([&] {
        result = get_ca(choose_port(ca_name, 0, false)->device, *ca);
        return 0;
      }) != 0) {
    return -ENOMEM;
  }
  return result;
}

VB_EXPORT int umad_release_ca(umad_ca_t* ca) { return ca == nullptr ? -ENODEV : release(*ca); }

VB_EXPORT int umad_get_port(const char* ca_name, int portnum, umad_port_t* port) {
  int result = 0;
  if (guarded([&] {
        result = get_port(ca_name, portnum, *port);
        return 0;
      }) != 0) {
    return -ENOMEM;
  }
  return result;
}

VB_EXPORT int umad_release_port(umad_port_t* port) {
  if (port == nullptr) return -ENODEV;
  std::free(port->pkeys);
  port->pkeys = nullptr;
  port->pkeys_size = 0;
  return 0;
}

VB_EXPORT int umad_get_issm_path(const char* ca_name, int portnum, char path[], int max) {
  int result = 0;
  if (guarded([&] {
        result = issm_path(ca_name, portnum, path, max);
        return 0;
      }) != 0) {
    return -ENOMEM;
  }
  return result;
}

// ---- lists --------------------------------------------------------------------------------------

VB_EXPORT umad_device_node* umad_get_ca_device_list(void) {
  umad_device_node* head = nullptr;
  errno = guarded([&] {
    const auto devices = query_devices();
    if (!devices) return 0;
    umad_device_node** next = &head;
    for (const um::Device& device : *devices) {
      // One block holds the node and its name, so that free() of the node releases both.
      const std::size_t bytes = device.name.size() + 1;
      auto* node = static_cast<umad_device_node*>(std::calloc(1, sizeof *head + bytes));
      if (node == nullptr) return ENOMEM;
      node->ca_name = static_cast<char*>(
          std::memcpy(reinterpret_cast<char*>(node + 1), device.name.c_str(), bytes));
      *next = node;
      next = &node->next;
    }
    return 0;
  });
  if (errno != 0) {
    umad_free_ca_device_list(head);
    return nullptr;
  }
  return head;
}

VB_EXPORT void umad_free_ca_device_list(umad_device_node* head) {
  while (head != nullptr) {
    umad_device_node* next = head->next;
    std::free(head);
    head = next;
  }
}

VB_EXPORT int umad_sort_ca_device_list(umad_device_node** head, std::size_t size) {
  return guarded([&] {
    std::vector<umad_device_node*> nodes;
    for (umad_device_node* node = *head; node != nullptr; node = node->next) nodes.push_back(node);
    if (size == 0) size = nodes.size();
    if (size < 2) return 0;
    if (nodes.size() != size) return EINVAL;
    std::ranges::sort(nodes, [](const umad_device_node* a, const umad_device_node* b) {
      return std::strcmp(a->ca_name, b->ca_name) < 0;
    });
    *head = nodes.front();
    for (std::size_t i = 0; i < size; ++i) nodes[i]->next = i + 1 < size ? nodes[i + 1] : nullptr;
    return 0;
  });
}

// ---- pairs --------------------------------------------------------------------------------------

// Hardware with several planes has one device for SMPs, and another device for all other MADs.
// Devices here have only one plane, so both names are the same.
VB_EXPORT int umad_get_smi_gsi_pairs(umad_ca_pair cas[], std::size_t max) {
  std::size_t count = 0;
  const int error = guarded([&] {
    std::fill_n(cas, max, umad_ca_pair{});
    const auto devices = query_devices();
    if (!devices) return 0;
    for (const um::Device& device : std::span(*devices).first(std::min(max, devices->size()))) {
      umad_ca_pair& pair = cas[count];
      copy_text(pair.smi_name, device.name);
      copy_text(pair.gsi_name, device.name);
      ++count;
    }
    return 0;
  });
  return error != 0 ? -1 : static_cast<int>(count);
}

VB_EXPORT int umad_get_smi_gsi_pair_by_ca_name(const char* devname, std::uint8_t portnum,
                                               umad_ca_pair* ca_pair, unsigned enforce_smi) {
  if (ca_pair == nullptr) return -1;
  *ca_pair = {};
  const int error = guarded([&] {
    const auto devices = query_devices();
    if (!devices) return ENODEV;
    for (const um::Device& device : *devices) {
      if (devname != nullptr && device.name != devname) continue;
      const auto fits = [&](const um::Port& port) {
        // A port that the program names with its device may be down.
        constexpr unsigned kDown = 1;
        const bool is_named = devname != nullptr && portnum != 0;
        return (portnum == 0 || port.number == portnum) && (is_named || port.state > kDown);
      };
      const auto port = std::ranges::find_if(device.ports, fits);
      if (port == device.ports.end() || (enforce_smi != 0 && !port->infiniband)) continue;
      copy_text(ca_pair->smi_name, device.name);
      copy_text(ca_pair->gsi_name, device.name);
      ca_pair->smi_preferred_port = ca_pair->gsi_preferred_port = port->number;
      return 0;
    }
    return ENODEV;
  });
  if (error != 0) errno = error;
  return -error;
}
