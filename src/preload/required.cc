#include "preload/required.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "os/clock.h"
#include "os/system_call.h"
#include "preload/change_over.h"
#include "preload/leaving.h"
#include "preload/next.h"
#include "preload/service_link.h"

namespace verbena::preload::required {
namespace {

using policy::Choice;
using policy::Role;

constexpr Duration kTimeout = std::chrono::seconds(5);
constexpr Duration kOfferTimeout = std::chrono::seconds(1);
constexpr Duration kCheckInterval = std::chrono::milliseconds(10);

constinit const policy::Rules* rules = nullptr;  // null if no rule has an effect

std::optional<broker::SocketName> name_of(int fd, long call) {
  sockaddr_storage name{};
  socklen_t bytes = sizeof(name);
  if (os::system_call(call, fd, &name, &bytes) != 0) return std::nullopt;
  return service_link::name_from(name);
}

// Returns true if the address belongs to this network namespace.  Only then can a socket be bound
// to it.
bool is_own_address(const broker::SocketName& name) {
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6;
  std::copy(name.address.begin(), name.address.end(), to.sin6_addr.s6_addr);
  const long fd = os::system_call(SYS_socket, AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return true;
  const int off = 0;
  os::system_call(SYS_setsockopt, fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  const bool is_own = os::system_call(SYS_bind, fd, &to, sizeof(to)) == 0 || errno != EADDRNOTAVAIL;
  os::system_call(SYS_close, fd);
  return is_own;
}

const char* text_of(stream::Reason reason) {
  switch (reason) {
    case stream::Reason::kExec: return "a program that cannot use the ring inherits it";
    case stream::Reason::kPassed: return "its descriptor goes to another process";
    case stream::Reason::kKernelCall: return "a call bypasses the ring";
    case stream::Reason::kUrgent: return "urgent data goes only by TCP";
    case stream::Reason::kNone:
      return "its peer does not use Verbena's sockets (verbena run --sockets)";
    case stream::Reason::kEnd:
    case stream::Reason::kOther: break;
  }
  return "something that cannot use the ring uses its descriptor";
}

void report_reset(const char* why, int fd) {
  if (SocketTable::has(STDERR_FILENO)) return;
  std::array<char, 512> line{};
  const auto local = name_of(fd, SYS_getsockname);
  const auto peer = name_of(fd, SYS_getpeername);
  const int length = ::snprintf(
      line.data(), line.size(),
      "verbena: %s (pid %d): the connection from port %u to port %u is reset, because it must not "
      "use TCP: %s\n",
      program_invocation_short_name, ::getpid(), local ? local->port : 0U, peer ? peer->port : 0U,
      why);
  const auto bytes = std::min(static_cast<std::size_t>(std::max(length, 0)), line.size() - 1);
  os::system_call(SYS_write, STDERR_FILENO, line.data(), bytes);
}

// Describes an event of a connection that waits for its change to the ring.
enum class Event : std::uint8_t { kNone, kUnconnected, kEnded };
Event event_of(int fd) {
  if (!name_of(fd, SYS_getpeername)) return Event::kUnconnected;
  pollfd one{.fd = fd, .events = POLLRDHUP, .revents = 0};
  const timespec at_once{};
  if (next().ppoll(&one, 1, &at_once, nullptr) <= 0) return Event::kNone;
  // If there are unread bytes, the peer has sent FIN after them, and may have changed over before
  // it sent them.  So this end goes on waiting for the ring.
  int unread = 0;
  os::system_call(SYS_ioctl, fd, FIONREAD, &unread);
  return unread > 0 ? Event::kNone : Event::kEnded;
}

}  // namespace

void prepare() {
  const char* const mode = ::secure_getenv("VERBENA_SOCKETS");
  const char* const text = ::secure_getenv("VERBENA_SOCKET_RULES");
  const bool only = mode != nullptr && std::string_view(mode) == "only";
  auto parsed =
      policy::Rules::parse(text != nullptr ? text : "", only ? Choice::kRing : Choice::kBoth);
  if (!parsed) {
    ::fprintf(stderr, "verbena: VERBENA_SOCKET_RULES:%zu: %s; all connections stay on TCP\n",
              parsed.error().line, parsed.error().text.c_str());
    parsed = policy::Rules(Choice::kTcp);
  }
  static const policy::Rules process_rules = *std::move(parsed);
  if (!process_rules.have_no_effect()) rules = &process_rules;
  const char* const early = ::secure_getenv("VERBENA_SOCKETS_EARLY");
  if (early != nullptr) change_over::set_first_call_wait(std::chrono::milliseconds(::atoi(early)));
}

bool has_rules() { return rules != nullptr; }

Choice choose(int fd, const sockaddr* to, socklen_t bytes) {
  if (rules == nullptr) return Choice::kBoth;
  std::optional<broker::SocketName> peer;
  std::optional<broker::SocketName> local;
  if (to != nullptr) {
    sockaddr_storage address{};
    std::copy_n(reinterpret_cast<const std::byte*>(to),
                std::min<std::size_t>(bytes, sizeof(address)),
                reinterpret_cast<std::byte*>(&address));
    peer = service_link::name_from(address);
  } else {
    peer = name_of(fd, SYS_getpeername);
    local = name_of(fd, SYS_getsockname);
  }
  const auto& name = to != nullptr ? peer : local;
  if (!name) return Choice::kBoth;
  const Choice choice = rules->choose(to != nullptr ? Role::kClient : Role::kServer,
                                      program_invocation_short_name, *name);
  if (choice == Choice::kRing && peer && !is_own_address(*peer)) return Choice::kTcp;
  return choice;
}

void offer(int fd, Socket& socket) {
  if (!socket.must_use_ring.load(std::memory_order_relaxed)) return;
  const int error = errno;
  const Time until = os::now() + kOfferTimeout;
  while (name_of(fd, SYS_getpeername)) {
    change_over::advance_at_once(fd, socket);
    if (socket.state.load() != Socket::State::kNew || os::now() >= until) break;
    ::sched_yield();
  }
  errno = error;
}

bool wait_for_ring(int fd, Socket& socket) {
  const int error = errno;
  for (const Time until = os::now() + kTimeout;;) {
    if (socket.uses_stream()) break;
    if (socket.state.load() == Socket::State::kTcpOnly) return false;
    const Event event = event_of(fd);
    if (event == Event::kUnconnected || event == Event::kEnded) break;
    change_over::advance_at_once(fd, socket);
    if (socket.uses_stream()) break;
    if (os::now() >= until) {
      fail(fd, socket, stream::Reason::kNone);
      return false;
    }
    service_link::wait(kCheckInterval);
  }
  errno = error;
  return true;
}

void fail(int fd, Socket& socket, stream::Reason reason) {
  const int error = errno;
  const auto before = socket.state.exchange(Socket::State::kTcpOnly);
  if (before != Socket::State::kTcpOnly) {
    report_reset(text_of(reason), fd);
    leaving::reset(fd);
    if (before == Socket::State::kOffered || before == Socket::State::kOnStream) {
      service_link::forget(socket, reason);
    }
  }
  errno = error;
}

}  // namespace verbena::preload::required
