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
  // connection.  If `fd` is not null, it gets the descriptor that the answer carries.  EMFILE: this
  // process could not receive that descriptor.  After any other error, the reason was passed to
  // explain().
  static std::optional<ServiceConnection> open(ipc::umad::Hello hello, int& error,
                                               os::Fd* fd = nullptr);

  // Sends a request and waits for the answer.  Returns nothing if the service has ended.
  std::optional<std::vector<std::byte>> ask(std::span<const std::byte> request,
                                            std::vector<os::Fd>& fds,
                                            std::span<const int> fds_to_pass = {});
  // Works as ask(), for requests whose answer is a Reply.  If the service has ended, the error of
  // the Reply is EIO.
  ipc::umad::Reply ask_reply(std::span<const std::byte> request,
                             std::span<const int> fds_to_pass = {});

 private:
  explicit ServiceConnection(os::UnixChannel channel) : channel_(std::move(channel)) {}

  os::UnixChannel channel_;
};

// Returns the devices of this program's node, sorted by name.  Without a node (VERBENA_NODE),
// returns host_devices().  Returns nothing if the service or libverbena does not answer.
std::optional<std::vector<ipc::umad::Device>> query_devices();
// Returns the devices of the host itself, in the order of libverbena.
std::optional<std::vector<ipc::umad::Device>> host_devices();
// Returns true if this program runs on a node of a fabric (VERBENA_NODE).
bool has_node();

// Prints "verbena: " and the text to stderr.  Prints only the first text unless umad_debug() is
// set.
void explain(const std::string& text);
int debug_level();

// Holds the result of choose_port().
struct ChosenPort {
  std::string device{};
  int port = 0;
};
// Chooses a device and a port as libibumad does.  A port is usable if it is an InfiniBand port and
// not disabled.  With `enforce_smi`, it must also allow a subnet manager (not IsSMdisabled).
//   * If the program has given a name and a port, returns them without a check.  The same is true
//     for a name without a port (0) if `wants_port` is false.
//   * If `name` is null, chooses the first device with an active port.  If there is none, chooses
//     the first device with a usable port.  If no port is usable, returns libibumad's default.
//   * If `port` is 0, chooses the first active port of the device.  If there is none, chooses the
//     first port whose link is up.  If no link is up, chooses the first usable port.
// Returns nothing if `port` is 0, and the named device does not exist or has no usable port.
std::optional<ChosenPort> choose_port(const char* name, int port, bool wants_port,
                                      bool enforce_smi = false);

const ipc::umad::Device* find_device(const std::vector<ipc::umad::Device>& devices,
                                     const std::string& name);
const ipc::umad::Port* find_port(const ipc::umad::Device& device, int number);

}  // namespace verbena::abi::umad
