#pragma once

#include <infiniband/umad.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "abi/abi.h"
#include "base/error.h"
#include "ipc/umad_messages.h"
#include "os/fd.h"
#include "os/unix_channel.h"

// Debian's <infiniband/umad.h> lacks these declarations of later versions.
extern "C" {
struct umad_ca_pair {  // NOLINT(readability-identifier-naming): the name of the C library
  char smi_name[UMAD_CA_NAME_LEN];
  std::uint32_t smi_preferred_port;
  char gsi_name[UMAD_CA_NAME_LEN];
  std::uint32_t gsi_preferred_port;
};
int umad_open_smi_port(const char* ca_name, int portnum);
int umad_get_smi_gsi_pairs(umad_ca_pair cas[], std::size_t max);
int umad_get_smi_gsi_pair_by_ca_name(const char* devname, std::uint8_t portnum,
                                     umad_ca_pair* ca_pair, unsigned enforce_smi);
}

namespace verbena::abi::umad {

// Represents a connection with the service of this program's node.
class ServiceConnection {
 public:
  // Finds the service by VERBENA_FABRIC and VERBENA_NODE, and tells it the purpose of the
  // connection.  If the answer carries a descriptor, `fd` gets it.  On an error, explain() has
  // printed the reason.
  static std::optional<ServiceConnection> open(ipc::umad::Hello hello, int& error,
                                               os::Fd* fd = nullptr);

  // Sends a request and waits for the answer.  Returns nothing if the service has ended.
  std::optional<std::vector<std::byte>> ask(std::span<const std::byte> request,
                                            std::vector<os::Fd>& fds,
                                            std::span<const int> passed = {});
  // Works as ask(), for requests whose answer is a Reply.  If the service has ended, the error of
  // the Reply is EIO.
  ipc::umad::Reply ask_reply(std::span<const std::byte> request, std::span<const int> passed = {});

 private:
  explicit ServiceConnection(os::UnixChannel channel) : channel_(std::move(channel)) {}

  os::UnixChannel channel_;
};

// Returns the devices of this program's node, sorted by name.  Without a node (VERBENA_NODE), the
// devices are the host's own.  Returns nothing if there is no service, or no agent.
std::optional<std::vector<ipc::umad::Device>> query_devices();
// Returns the devices of the host itself, as libverbena reports them.
std::optional<std::vector<ipc::umad::Device>> own_devices();
// Returns true if this program runs on a node of a fabric (VERBENA_NODE).
bool has_node();

// Prints "verbena: " and the text to stderr.  Prints only the first text unless umad_debug() is
// set.
void explain(const std::string& text);
int debug_level();

// Holds the device and the port that a program has named, or that choose() has chosen.
struct Choice {
  std::string device{};
  int port = 0;
};
// Chooses a device and a port as libibumad does.  Only ports of InfiniBand count.
//   * If `name` is null, the first device with an active port is chosen.  If no port is active, the
//     first device with a usable port is chosen.  If no port is usable, the result is libibumad's
//     default.
//   * If `port` is 0, the first active port is chosen.  If no port is active, the first port whose
//     link is up is chosen, and then the first port that is not disabled.
//   * If `wants_port` is false, choose() does not check that the named device exists.
// Returns nothing if the named device has no such port.
std::optional<Choice> choose(const char* name, int port, bool wants_port, bool enforce_smi = false);

const ipc::umad::Device* find_device(const std::vector<ipc::umad::Device>& devices,
                                     const std::string& name);
const ipc::umad::Port* find_port(const ipc::umad::Device& device, int number);

}  // namespace verbena::abi::umad
