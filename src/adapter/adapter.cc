#include "adapter/adapter.h"

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <expected>
#include <string_view>
#include <vector>

namespace verbena::adapter {
namespace {

// The adapter is never destroyed, because threads of the program may use it while the program
// exits.
std::atomic<Adapter*> the_adapter{nullptr};
std::mutex open_mutex;
std::atomic<bool> in_forked_child{false};

void after_fork_in_child() {
  in_forked_child = in_forked_child || the_adapter.exchange(nullptr) != nullptr;
  new (&open_mutex) std::mutex;  // another thread may have locked it at the fork
}

template <class T>
using OrProblem = std::expected<T, std::string>;

struct AdapterChoice {
  std::string name;       // if empty, the first adapter with an active port is used
  std::uint8_t port = 0;  // if 0, the first active port is used
};

OrProblem<AdapterChoice> read_choice() {
  const char* const variable = ::secure_getenv("VERBENA_ADAPTER");
  const std::string_view text = variable == nullptr ? "" : variable;
  const std::size_t slash = text.find('/');
  AdapterChoice out{.name = std::string(text.substr(0, slash))};
  if (out.name == "any") out.name.clear();
  if (slash == std::string_view::npos) return out;
  const std::string_view number = text.substr(slash + 1);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), out.port);
  if (error != std::errc{} || end != number.data() + number.size() || out.port == 0) {
    return std::unexpected(
        fmt::format("VERBENA_ADAPTER={}: '{}' is not a port number", text, number));
  }
  return out;
}

// Returns the open devices of librdmacm, because the ids of librdmacm use them.  If librdmacm has
// no open devices, opens all devices.
std::vector<ibv_context*> open_contexts(const Libraries& system) {
  int count = 0;
  std::vector<ibv_context*> all;
  if (ibv_context** const cm_contexts = system.get_devices(&count)) {
    // The list of librdmacm is not freed, so that the contexts remain open.
    all.assign(cm_contexts, cm_contexts + count);
    return all;
  }
  ibv_device** const list = system.get_device_list(&count);
  for (int i = 0; list != nullptr && i < count; ++i) {
    if (ibv_context* const context = system.open_device(list[i])) all.push_back(context);
  }
  if (list != nullptr) system.free_device_list(list);
  return all;
}

bool is_active(const Libraries& system, ibv_context* context, std::uint8_t port) {
  ibv_port_attr attr{};
  return system.query_port(context, port, reinterpret_cast<_compat_ibv_port_attr*>(&attr)) == 0 &&
         attr.state == IBV_PORT_ACTIVE;
}

OrProblem<std::uint8_t> choose_port(const Libraries& system, ibv_context* context,
                                    std::uint8_t wanted_port) {
  ibv_device_attr attr{};
  if (const int error = system.query_device(context, &attr); error != 0) {
    return std::unexpected(std::string("cannot be queried: ") + std::strerror(error));
  }
  if (wanted_port > attr.phys_port_cnt) {
    return std::unexpected(
        fmt::format("has no port {} (its last port is {})", wanted_port, attr.phys_port_cnt));
  }
  if (wanted_port != 0) return wanted_port;
  for (std::uint8_t port = 1; port <= attr.phys_port_cnt; ++port) {
    if (is_active(system, context, port)) return port;
  }
  return std::unexpected("has no port that is up");
}

OrProblem<Adapter*> open_adapter() {
  const auto choice = read_choice();
  if (!choice) return std::unexpected(choice.error());
  const auto system = load_libraries();
  if (!system) return std::unexpected(system.error());
  std::string problems;
  for (ibv_context* context : open_contexts(*system)) {
    const std::string name = system->get_device_name(context->device);
    const bool matches = choice->name.empty() || choice->name == name;
    const auto port = matches ? choose_port(*system, context, choice->port) : std::uint8_t{0};
    if (matches && port) return new Adapter(*system, context, *port);
    problems += fmt::format("{}{}{}", problems.empty() ? "" : "; ", name,
                            matches ? " " + port.error() : "");
  }
  return std::unexpected(fmt::format(
      "no usable RDMA adapter{}: {}", choice->name.empty() ? "" : " '" + choice->name + "'",
      problems.empty() ? "this host has none, or this user may not open it" : problems));
}

Adapter* fail_without_adapter(const std::string& text, int& error) {
  c_api::set_last_error(text);
  error = ENODEV;
  return nullptr;
}

}  // namespace

int fail_without_object() { return c_api::failed({Errc::kBadHandle, 0, "no such object"}); }

int fail_with_errno(const char* what, int error) {
  if (error == 0) error = ENOMEM;
  c_api::set_last_error(fmt::format("cannot {}: {}", what, std::strerror(error)));
  return error;
}

Adapter* Adapter::get_if_open() { return the_adapter.load(std::memory_order_acquire); }

Adapter* Adapter::get(int& error) {
  if (Adapter* adapter = get_if_open()) return adapter;
  if (in_forked_child)
    return fail_without_adapter("a forked child cannot use the adapter of its parent", error);
  const c_api::NoCancellation no_cancellation;
  const std::lock_guard lock(open_mutex);
  if (Adapter* adapter = get_if_open()) return adapter;
  static const int registered = pthread_atfork(nullptr, nullptr, after_fork_in_child);
  (void)registered;
  const auto result = open_adapter();
  if (!result) return fail_without_adapter(result.error(), error);
  the_adapter.store(*result, std::memory_order_release);
  return *result;
}

}  // namespace verbena::adapter
