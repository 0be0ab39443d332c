#include "preload/service_link.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>

#include "broker/messages.h"
#include "os/agent_name.h"
#include "os/clock.h"
#include "os/daemon.h"
#include "os/shared_memory.h"
#include "os/system_call.h"
#include "os/thread.h"
#include "preload/next.h"
#include "preload/own_descriptors.h"
#include "verbena_build.h"

namespace verbena::preload::service_link {

std::uint64_t cookie_of(int fd) {
  std::uint64_t cookie = 0;
  socklen_t bytes = sizeof(cookie);
  if (os::system_call(SYS_getsockopt, fd, SOL_SOCKET, SO_COOKIE, &cookie, &bytes) != 0) return 0;
  return cookie;
}

namespace {

using os::repeat_call;
using os::system_call;

// A process waits at least this time between two tries to reach or start a service.  If a service
// listens but does not answer, each try costs kAnswerTimeout, so the time doubles after each try.
constexpr Duration kRetryEvery = std::chrono::seconds(1);
constexpr Duration kRetryEveryMax = std::chrono::minutes(1);
constexpr Duration kStartTimeout = std::chrono::seconds(10);
constexpr Duration kAnswerTimeout = std::chrono::seconds(1);

struct Name {
  sockaddr_un address{};
  socklen_t bytes = 0;

  void set(const std::string& name) {
    if (name.size() + 1 > sizeof(address.sun_path)) return;
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path + 1, name.data(), name.size());
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  bool operator==(const Name& other) const {
    return bytes == other.bytes && memcmp(&address, &other.address, bytes) == 0;
  }
};

// Holds the connection of this process to the service.  Only the thread that has set `busy` uses
// the members that are not atomic.
struct Link {
  std::atomic<bool> busy{false};
  std::atomic<bool> is_disabled{false};
  std::atomic<int> fd{-1};
  std::uint64_t fd_cookie = 0;  // cookie of `fd`, to detect that the program has reused the number
  std::atomic<std::uint64_t> received_count{0};  // received messages; the mailbox counts sent ones
  std::atomic<std::uint32_t> number{0};  // how often this process has connected to a service
  Time last_try{};
  Duration retry_every = kRetryEvery;
  // True while the connection is to the user's own service, and root's service would be better.
  std::atomic<bool> may_change_to_root{false};
  Name own_service{};
  Name root_service{};
};
constinit Link link{};

// The mailbox is mapped over this page.  So its address never changes, and a thread may read it
// while another thread connects.
constexpr std::size_t kPageBytes = broker::MailboxMemory::kBytes;
alignas(kPageBytes) constinit std::array<std::byte, kPageBytes> mailbox_page{};

std::uint64_t messages_sent() {
  auto& mailbox = reinterpret_cast<broker::MailboxMemory&>(mailbox_page);
  return std::atomic_ref(mailbox.sent).load(std::memory_order_acquire);
}

// Maps a memfd over mailbox_page, or private memory if `fd` is -1.
bool map_mailbox(int fd) {
  const int flags = MAP_FIXED | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
  return ::mmap(mailbox_page.data(), kPageBytes, PROT_READ | PROT_WRITE, flags, fd, 0) !=
         MAP_FAILED;
}

struct Starter {
  std::string path;
  uid_t uid = 0;  // the user for whom the service is started
  os::Daemon daemon{};
};
constinit Starter* starter = nullptr;

bool send_pending_forgets();

// Holds the cookies of connections for which a thread could not send Forget, because another thread
// used the link.  The reasons are not stored, so the service records that the sockets were closed.
// A free element is 0.
struct PendingForgets {
  std::atomic<std::uint32_t> count{0};
  std::array<std::atomic<std::uint64_t>, 1024> cookies{};
};
constinit PendingForgets pending_forgets{};

// Counts the reservations that this thread holds or tries to get.  If the count is above 1, the
// thread itself may hold the link, for example because a signal handler has interrupted it.
constinit thread_local int own_reservations = 0;

// Reserves the link for one thread.  Converts to false if the link is busy.
class LinkReservation {
 public:
  // Does not wait if the link is busy.
  LinkReservation() : LinkReservation(Duration{}) {}
  // Waits at most for `time` until the link is free.  Does not wait if this thread itself may hold
  // the link.
  explicit LinkReservation(Duration time) {
    ++own_reservations;
    is_held_ = !link.busy.exchange(true);
    if (is_held_ || time == Duration{}) return;
    const Time until = os::now() + time;
    while (!is_held_ && own_reservations == 1 && os::now() < until) {
      os::sleep_shortest();
      is_held_ = !link.busy.exchange(true);
    }
  }
  LinkReservation(const LinkReservation&) = delete;
  LinkReservation& operator=(const LinkReservation&) = delete;
  // A thread first stores its cookie in pending_forgets, and then tries to reserve the link.  The
  // owner of the link first frees the link, and then reads the count.  So at least one of the two
  // sends the Forget message.
  ~LinkReservation() {
    if (is_held_) free_link();
    --own_reservations;
  }
  explicit operator bool() const { return is_held_; }

 private:
  static void free_link() {
    bool is_sent = true;
    do {
      is_sent = pending_forgets.count.load() == 0 || send_pending_forgets();
      link.busy.store(false);
    } while (is_sent && pending_forgets.count.load() > 0 && !link.busy.exchange(true));
  }

  bool is_held_ = false;
};

void close_descriptor(int fd) { system_call(SYS_close, fd); }

// Stores the cookie of a connection that the service must forget.  If there is no free element, the
// service forgets the connection only when the program ends.
void queue_forget(std::uint64_t cookie) {
  for (auto& element : pending_forgets.cookies) {
    std::uint64_t none = 0;
    if (element.load() != none || !element.compare_exchange_strong(none, cookie)) continue;
    pending_forgets.count.fetch_add(1);
    return;
  }
}

void disconnect() {
  const int fd = link.fd.exchange(-1);
  if (fd >= 0 && cookie_of(fd) == link.fd_cookie) close_descriptor(fd);
}

// Returns the descriptor of the connection; -1 if there is none, or if the program has closed it.
int connection() {
  const int fd = link.fd.load();
  if (fd < 0 || link.is_disabled.load()) return -1;
  if (cookie_of(fd) == link.fd_cookie) return fd;
  link.fd.store(-1);
  return -1;
}

template <class Message>
bool send(int fd, const Message& message, int passed_fd = -1) {
  const auto bytes = broker::bytes_of(message);
  iovec vector{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  if (passed_fd >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &passed_fd, sizeof(int));
  }
  return repeat_call(SYS_sendmsg, fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

// Sends the pending Forget messages.  Returns false if the socket to the service is full; then the
// next thread that frees the link tries again.  REQUIRES: the caller has reserved the link.
bool send_pending_forgets() {
  const int fd = connection();
  for (auto& element : pending_forgets.cookies) {
    const std::uint64_t cookie = element.load();
    if (cookie == 0) continue;
    if (fd >= 0 && !send(fd, broker::Forget{.cookie = cookie}) && errno == EAGAIN) return false;
    element.store(0);
    pending_forgets.count.fetch_sub(1);
  }
  return true;
}

// The descriptors of a message.  A message has none, or those of a Pair: the memory of the streams,
// and then the memory of the end.
using PassedFds = std::array<os::Fd, 2>;

// Receives one message and its descriptors.  Returns the number of bytes; 0 at the end of the
// connection; a negative number for an error.
long receive(int fd, std::span<std::byte> out, PassedFds& passed_fds, int flags) {
  iovec vector{.iov_base = out.data(), .iov_len = out.size()};
  std::array<int, std::tuple_size_v<PassedFds>> numbers{};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(numbers))> control{};
  msghdr header{};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  passed_fds = PassedFds();
  const long bytes = repeat_call(SYS_recvmsg, fd, &header, flags | MSG_CMSG_CLOEXEC);
  if (bytes <= 0) return bytes;
  const cmsghdr* c = CMSG_FIRSTHDR(&header);
  if (c == nullptr || c->cmsg_type != SCM_RIGHTS) return bytes;
  // If this process can have only one more descriptor, the kernel passes only one.
  const std::size_t count =
      std::min((c->cmsg_len - CMSG_LEN(0)) / sizeof(int), std::tuple_size_v<PassedFds>);
  memcpy(numbers.data(), CMSG_DATA(c), count * sizeof(int));
  for (std::size_t i = 0; i < count; ++i) passed_fds[i] = os::Fd(numbers[i]);
  return bytes;
}

// Returns true if the service runs as this process's user, or as root.  Only such a service gets
// the process's data.
bool is_trusted(int fd) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  return system_call(SYS_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 &&
         (peer.uid == 0 || peer.uid == ::geteuid());
}

std::array<char, broker::kNameBytes> program_name() {
  return broker::text_field<broker::kNameBytes>(program_invocation_short_name);
}

enum class ConnectResult : std::uint8_t {
  kNoService,  // no service listens, or it refuses this program
  kNoAnswer,   // a service listens, but does not answer
  kConnected,
};

// Makes the mailbox, sends Hello, and waits for Welcome.
ConnectResult handshake(int fd) {
  auto memory = os::create_shared_memory("verbena-mailbox", broker::MailboxMemory::kBytes);
  if (!memory) return ConnectResult::kNoService;
  const broker::Hello hello{.build = broker::text_field<broker::kBuildBytes>(verbena_build_id()),
                            .pid = static_cast<std::uint32_t>(::getpid()),
                            .program = program_name()};
  if (!send(fd, hello, memory->fd.get())) return ConnectResult::kNoAnswer;
  std::array<std::byte, broker::kMessageBytesMax> buffer;
  PassedFds none;
  const long bytes = receive(fd, buffer, none, 0);
  if (bytes <= 0) return bytes < 0 ? ConnectResult::kNoAnswer : ConnectResult::kNoService;
  const auto welcome =
      broker::decode<broker::Welcome>(std::span(buffer).first(static_cast<std::size_t>(bytes)));
  if (!welcome || welcome->refused != 0) return ConnectResult::kNoService;
  link.received_count = 0;
  return map_mailbox(memory->fd.get()) ? ConnectResult::kConnected : ConnectResult::kNoService;
}

// Connects to the service of this name, if it listens.  The link then owns the descriptor.
ConnectResult connect_to(const Name& name) {
  long fd = system_call(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return ConnectResult::kNoService;
  fd = own_descriptors::move_away(static_cast<int>(fd));
  // A suspended service (SIGSTOP) must not block the program.
  const timeval timeout{.tv_sec = 1, .tv_usec = 0};
  system_call(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  system_call(SYS_setsockopt, fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  const long connected = repeat_call(SYS_connect, fd, &name.address, name.bytes);
  // EAGAIN means that the service has not accepted connections for a long time, so its queue is
  // full.
  ConnectResult result =
      connected != 0 && errno == EAGAIN ? ConnectResult::kNoAnswer : ConnectResult::kNoService;
  if (connected == 0 && is_trusted(static_cast<int>(fd))) result = handshake(static_cast<int>(fd));
  if (result != ConnectResult::kConnected) {
    close_descriptor(static_cast<int>(fd));
    return result;
  }
  disconnect();
  link.fd_cookie = cookie_of(static_cast<int>(fd));
  link.fd.store(static_cast<int>(fd));
  link.number.fetch_add(1);
  link.may_change_to_root.store(name == link.own_service &&
                                !(link.own_service == link.root_service));
  return ConnectResult::kConnected;
}

// Records the end of a try to reach a service, and sets the time until the next try.
void record_try(bool got_no_answer) {
  link.last_try = os::now();
  link.retry_every = got_no_answer ? std::min(2 * link.retry_every, kRetryEveryMax) : kRetryEvery;
}

// Connects to root's service, which serves the programs of all users.  If this fails, connects to
// the user's own service.  Returns the result for the service that was tried last.
ConnectResult connect_to_service() {
  const ConnectResult root_result = connect_to(link.root_service);
  const bool own_is_root = link.own_service == link.root_service;
  const ConnectResult result = root_result == ConnectResult::kConnected || own_is_root
                                   ? root_result
                                   : connect_to(link.own_service);
  record_try(result != ConnectResult::kConnected &&
             (root_result == ConnectResult::kNoAnswer || result == ConnectResult::kNoAnswer));
  return result;
}

// Changes from the user's own service to root's service, if root's service runs now.
void change_to_root() {
  if (os::now() - link.last_try < link.retry_every) return;
  record_try(connect_to(link.root_service) == ConnectResult::kNoAnswer);
}

// Returns true if the last try to reach a service was long enough ago.  Then also records the
// beginning of a new try.
bool begin_try_if_due() {
  if (link.is_disabled.load()) return false;
  const Time now = os::now();
  if (link.last_try != Time{} && now - link.last_try < link.retry_every) return false;
  link.last_try = now;
  return true;
}

// Returns true if there is a connection.  If there is none, tries to make one.
bool ensure_connected() {
  return connection() >= 0 ||
         (begin_try_if_due() && connect_to_service() == ConnectResult::kConnected);
}

// Returns the path of verbena-sockets, which is in the directory of this library's file.
std::string service_path() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&service_path), &info) == 0) return {};
  const std::unique_ptr<char, void (*)(void*)> library(::realpath(info.dli_fname, nullptr), ::free);
  if (!library) return {};
  std::string path = library.get();
  path.replace(path.rfind('/') + 1, std::string::npos, "verbena-sockets");
  return path;
}

std::optional<broker::Connection> connection_of(int fd) {
  sockaddr_storage local{};
  sockaddr_storage peer{};
  socklen_t bytes = sizeof(local);
  if (system_call(SYS_getsockname, fd, &local, &bytes) != 0) return std::nullopt;
  bytes = sizeof(peer);
  if (system_call(SYS_getpeername, fd, &peer, &bytes) != 0) return std::nullopt;
  const auto local_name = name_from(local);
  const auto peer_name = name_from(peer);
  if (!local_name || !peer_name) return std::nullopt;
  return broker::Connection{.local = *local_name, .peer = *peer_name};
}

void handle_message(std::span<const std::byte> message, const PassedFds& fds) {
  const auto pair = broker::decode<broker::Pair>(message);
  if (!pair || !fds[1]) return;
  // The program may have closed the socket since the report.
  const SocketUse socket = SocketTable::find_number(pair->number);
  if (!socket || socket->cookie != pair->cookie) return;
  change_over::map_memory(*socket,
                          {.streams = fds[0].get(), .end = fds[1].get(), .side = pair->side});
}

// Reports the socket to the service.  Returns false if the report cannot be sent, or if the socket
// is not connected.  `continues` is true if another process has begun the stream.
bool report(int channel, int fd, Socket& socket, bool continues) {
  const auto names = connection_of(fd);
  if (!names) return false;  // connect() is still in progress
  socket.cookie = cookie_of(fd);
  const broker::Report report{.number = socket.number(),
                              .cookie = socket.cookie,
                              .connection = *names,
                              .continues = continues ? 1U : 0U};
  if (!send(channel, report)) {
    if (errno != EAGAIN) disconnect();  // EAGAIN: the service is busy, and a later call tries again
    return false;
  }
  socket.service_number.store(link.number.load());
  return true;
}

}  // namespace

std::optional<broker::SocketName> name_from(const sockaddr_storage& from) {
  broker::SocketName name;
  if (from.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(from);
    name.address[10] = name.address[11] = 0xff;
    memcpy(name.address.data() + 12, &v4.sin_addr, sizeof(v4.sin_addr));
    name.port = ntohs(v4.sin_port);
  } else if (from.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(from);
    memcpy(name.address.data(), &v6.sin6_addr, sizeof(v6.sin6_addr));
    name.port = ntohs(v6.sin6_port);
  } else {
    return std::nullopt;
  }
  return name;
}

void prepare() {
  link.own_service.set(os::socket_service_name());
  link.root_service.set(os::root_socket_service_name());
  static Starter process_starter{.path = service_path(), .uid = ::geteuid()};
  starter = &process_starter;
}

void start() {
  const bool has_link = link.fd.load(std::memory_order_relaxed) >= 0;
  if (has_link && !link.may_change_to_root.load(std::memory_order_relaxed)) return;
  const LinkReservation reservation;
  if (!reservation) return;
  if (connection() >= 0) return link.may_change_to_root.load() ? change_to_root() : void();
  if (!begin_try_if_due() || starter == nullptr ||
      connect_to_service() != ConnectResult::kNoService)
    return;
  if (::geteuid() != starter->uid) return;
  std::string problem;
  auto daemon =
      os::start_daemon({.path = starter->path,
                        .args = {"verbena-sockets", "--ready-fd", std::to_string(os::kReadyFd)},
                        .deadline = os::now() + kStartTimeout},
                       problem);
  if (!daemon) return;
  if (starter->daemon.reaper_pidfd) (void)os::collect_reaper(starter->daemon);
  starter->daemon = std::move(*daemon);
  (void)connect_to(link.own_service);
}

void offer(int fd, Socket& socket) {
  const LinkReservation reservation;
  if (!reservation || !ensure_connected()) return;
  const int channel = connection();
  if (channel < 0 || !report(channel, fd, socket, false)) return;
  auto expected = Socket::State::kNew;
  socket.state.compare_exchange_strong(expected, Socket::State::kOffered);
}

void receive_answers(bool checks_service) {
  if (link.fd.load(std::memory_order_relaxed) < 0) return;
  if (!checks_service && messages_sent() == link.received_count.load(std::memory_order_relaxed))
    return;
  const LinkReservation reservation;
  const int fd = reservation ? connection() : -1;
  if (fd < 0) return;
  for (;;) {
    std::array<std::byte, broker::kMessageBytesMax> buffer;
    PassedFds fds;
    const long bytes = receive(fd, buffer, fds, MSG_DONTWAIT);
    if (bytes == 0 || (bytes < 0 && errno != EAGAIN)) return disconnect();
    if (bytes < 0) return;
    ++link.received_count;
    handle_message(std::span(buffer).first(static_cast<std::size_t>(bytes)), fds);
  }
}

std::optional<Memory> request_memory(int fd, Socket& socket) {
  const LinkReservation reservation(kAnswerTimeout);
  if (!reservation || !ensure_connected()) return std::nullopt;
  const int channel = connection();
  if (channel < 0 || !report(channel, fd, socket, true)) return std::nullopt;
  const Time until = os::now() + kAnswerTimeout;
  while (os::now() < until) {
    std::array<std::byte, broker::kMessageBytesMax> buffer;
    PassedFds fds;
    const long bytes = receive(channel, buffer, fds, 0);
    if (bytes <= 0) break;
    ++link.received_count;
    const auto message = std::span(buffer).first(static_cast<std::size_t>(bytes));
    const auto unknown = broker::decode<broker::Unknown>(message);
    if (unknown && unknown->number == socket.number() && unknown->cookie == socket.cookie) {
      return std::nullopt;
    }
    const auto pair = broker::decode<broker::Pair>(message);
    if (fds[1] && pair && pair->number == socket.number() && pair->cookie == socket.cookie) {
      return Memory{std::move(fds[0]), std::move(fds[1]), pair->side};
    }
    handle_message(message, fds);
  }
  disconnect();
  return std::nullopt;
}

void wait(Duration time) {
  const auto nanoseconds = std::chrono::nanoseconds(time).count();
  const timespec limit{.tv_sec = nanoseconds / 1'000'000'000,
                       .tv_nsec = nanoseconds % 1'000'000'000};
  pollfd one{.fd = link.fd.load(), .events = POLLIN, .revents = 0};
  next().ppoll(&one, 1, &limit, nullptr);  // a negative descriptor has no events
}

void forget(Socket& socket, stream::Reason reason) {
  if (socket.service_number.load() != link.number.load()) return;
  {
    const LinkReservation reservation;
    const int fd = reservation ? connection() : -1;
    if (reservation && fd < 0) return;
    const broker::Forget message{.reason = static_cast<std::uint32_t>(reason),
                                 .cookie = socket.cookie};
    if (reservation && send(fd, message)) return;
  }
  queue_forget(socket.cookie);
  const LinkReservation retry;  // the destructor sends the message, unless another thread does
}

void disable() {
  link.is_disabled.store(true);
  const LinkReservation reservation;
  if (reservation) disconnect();
}

void after_fork_in_child() {
  link.busy.store(false);
  pending_forgets.count.store(0);
  for (auto& element : pending_forgets.cookies) element.store(0);
  disconnect();
  map_mailbox(-1);
  link.last_try = Time{};
  link.retry_every = kRetryEvery;
}

bool is_offered(const Socket& socket) {
  return link.fd.load(std::memory_order_relaxed) >= 0 &&
         socket.service_number.load(std::memory_order_relaxed) == link.number.load();
}

bool owns(int fd) { return fd >= 0 && fd == link.fd.load(std::memory_order_relaxed); }

}  // namespace verbena::preload::service_link
