#include "abi/umad/service.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "os/agent_name.h"
#include "os/clock.h"
#include "verbena_build.h"

namespace verbena::abi::umad {

namespace um = ipc::umad;

namespace {

constexpr Duration kConnectTimeout = std::chrono::seconds(10);
// libibumad names this device if it finds none.
constexpr const char* kDeviceDefault = "mthca0";
constexpr int kPortDefault = 1;
constexpr std::uint8_t kActive = 4;    // PortInfo.PortState
constexpr std::uint8_t kDisabled = 3;  // PortInfo.PortPhysicalState
constexpr std::uint8_t kLinkUp = 5;
constexpr std::uint32_t kSmDisabled = 0x400;  // PortInfo.CapabilityMask, IsSMdisabled

std::atomic<int> debug{0};

enum class Fitness { kUnusable, kUsable, kBest };  // kBest: the port is active

bool may_use(const um::Port& port, bool enforce_smi) {
  return port.infiniband && !(enforce_smi && (port.capability_mask & kSmDisabled) != 0);
}

// Returns how usable a port of a device is.  If `port` is 0, sets it to the device's best port, if
// the device has a usable port.
Fitness fitness_of(const um::Device& device, int& port, bool enforce_smi) {
  if (port > 0) {
    const um::Port* named_port = find_port(device, port);
    if (named_port == nullptr || !may_use(*named_port, enforce_smi)) return Fitness::kUnusable;
    if (named_port->state == kActive) return Fitness::kBest;
    return named_port->physical_state == kDisabled ? Fitness::kUnusable : Fitness::kUsable;
  }
  const auto first = [&](auto&& fits) {
    const auto found = std::ranges::find_if(
        device.ports, [&](const um::Port& one) { return may_use(one, enforce_smi) && fits(one); });
    if (found != device.ports.end()) port = found->number;
    return found != device.ports.end();
  };
  if (first([](const um::Port& one) { return one.state == kActive; })) return Fitness::kBest;
  if (first([](const um::Port& one) { return one.physical_state == kLinkUp; }) ||
      first([](const um::Port& one) { return one.physical_state != kDisabled; })) {
    return Fitness::kUsable;
  }
  return Fitness::kUnusable;
}

}  // namespace

void explain(const std::string& text) {
  static std::atomic<bool> printed{false};
  if (printed.exchange(true) && debug_level() == 0) return;
  std::fprintf(stderr, "verbena: %s\n", text.c_str());
}

bool has_node() { return os::fabric_host_from_environment().has_value(); }

int debug_level() { return debug.load(std::memory_order_relaxed); }

std::optional<ServiceConnection> ServiceConnection::open(um::Hello hello, int& error, os::Fd* fd) {
  error = ENODEV;
  const auto host = os::fabric_host_from_environment();
  if (!host) {
    explain("libibumad needs a node of an InfiniBand fabric: verbena run --node NAME -- PROGRAM");
    return std::nullopt;
  }
  const auto name = os::mad_socket_name(*host);
  if (!name) {
    explain(std::string("VERBENA_NODE or VERBENA_FABRIC: ") + name.error().context);
    return std::nullopt;
  }
  auto channel = os::UnixChannel::connect(*name, os::now() + kConnectTimeout);
  if (!channel || !channel->check_peer_uid(::geteuid())) {
    explain("fabric '" + host->fabric + "' has no node '" + host->host +
            "' that serves libibumad (verbena fabric show)");
    return std::nullopt;
  }
  hello.build = verbena_build_id();
  ServiceConnection connection(std::move(*channel));
  std::vector<os::Fd> fds;
  const auto answer = connection.ask(um::encode(std::move(hello)), fds);
  const auto reply =
      answer ? um::decode<um::Reply>(*answer) : Result<um::Reply>(um::Reply{.error = EIO});
  error = reply ? reply->error : ELIBBAD;
  if (error != 0) {
    explain("the service of node '" + host->host +
            "': " + (reply && !reply->text.empty() ? reply->text : "no answer"));
    return std::nullopt;
  }
  if (fd != nullptr) {
    if (fds.empty()) {
      error = EMFILE;
      return std::nullopt;
    }
    *fd = std::move(fds.front());
  }
  return connection;
}

std::optional<std::vector<std::byte>> ServiceConnection::ask(std::span<const std::byte> request,
                                                             std::vector<os::Fd>& fds,
                                                             std::span<const int> fds_to_pass) {
  if (!channel_ || !channel_.send(request, fds_to_pass, kNever)) return std::nullopt;
  std::vector<std::byte> answer(um::kMessageBytesMax);
  const auto received = channel_.receive(answer, fds, kNever);
  if (!received || *received == 0) {
    channel_.close();
    return std::nullopt;
  }
  answer.resize(*received);
  return answer;
}

um::Reply ServiceConnection::ask_reply(std::span<const std::byte> request,
                                       std::span<const int> fds_to_pass) {
  std::vector<os::Fd> fds;
  const auto answer = ask(request, fds, fds_to_pass);
  if (!answer) return {.error = EIO, .text = "the fabric has ended"};
  const auto reply = um::decode<um::Reply>(*answer);
  return reply ? *reply : um::Reply{.error = EIO, .text = "the fabric's answer is malformed"};
}

std::optional<std::vector<um::Device>> query_devices() {
  if (!has_node()) return host_devices();
  int error = 0;
  auto connection = ServiceConnection::open({.purpose = um::Hello::Purpose::kQuery}, error);
  if (!connection) return std::nullopt;
  std::vector<os::Fd> fds;
  const auto answer = connection->ask(um::encode(um::Query{}), fds);
  if (!answer) return std::nullopt;
  auto devices = um::decode<um::Devices>(*answer);
  if (!devices) return std::nullopt;
  std::ranges::sort(devices->devices, {}, &um::Device::name);
  return std::move(devices->devices);
}

const um::Device* find_device(const std::vector<um::Device>& devices, const std::string& name) {
  const auto found = std::ranges::find(devices, name, &um::Device::name);
  return found == devices.end() ? nullptr : &*found;
}

const um::Port* find_port(const um::Device& device, int number) {
  const auto found = std::ranges::find_if(
      device.ports, [&](const um::Port& port) { return port.number == number; });
  return found == device.ports.end() ? nullptr : &*found;
}

std::optional<ChosenPort> choose_port(const char* name, int port, bool wants_port,
                                      bool enforce_smi) {
  if (name != nullptr && (!wants_port || port != 0)) return ChosenPort{name, port};
  const auto devices = query_devices().value_or(std::vector<um::Device>{});
  if (name != nullptr) {
    const um::Device* device = find_device(devices, name);
    if (device == nullptr || fitness_of(*device, port, enforce_smi) == Fitness::kUnusable) {
      return std::nullopt;
    }
    return ChosenPort{name, port};
  }
  std::optional<ChosenPort> usable;
  for (const um::Device& device : devices) {
    int number = wants_port ? port : 0;
    const Fitness fitness = fitness_of(device, number, enforce_smi);
    if (fitness == Fitness::kBest) return ChosenPort{device.name, number};
    if (fitness == Fitness::kUsable && !usable) usable = ChosenPort{device.name, number};
  }
  return usable ? usable : ChosenPort{kDeviceDefault, kPortDefault};
}

}  // namespace verbena::abi::umad

VB_EXPORT int umad_debug(int level) {
  if (level >= 0) verbena::abi::umad::debug.store(level, std::memory_order_relaxed);
  return verbena::abi::umad::debug_level();
}
