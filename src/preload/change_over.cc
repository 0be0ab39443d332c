#include "preload/change_over.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "os/clock.h"
#include "os/shared_memory.h"
#include "os/system_call.h"
#include "preload/epolls.h"
#include "preload/leaving.h"
#include "preload/next.h"
#include "preload/service_link.h"
#include "preload/waits.h"

namespace verbena::preload::change_over {
namespace {

// This library offers a connection to the service when the connection has carried kOfferBytes, or
// when it is older than kOfferAfter and has had kOfferCalls calls.  For shorter connections an
// offer costs more than the ring saves.
constexpr std::uint64_t kOfferBytes = 4096;
constexpr Duration kOfferAfter = std::chrono::milliseconds(2);
constexpr std::uint32_t kOfferCalls = 3;
constinit Duration first_call_wait{};  // see set_first_call_wait()
// In one of this many calls, an offered connection checks that the service still runs.
constexpr std::uint32_t kCallsPerServiceCheck = 64;

bool is_worth_an_offer(Socket& socket, std::uint32_t calls) {
  const TcpCounts& counts = *socket.counts.load(std::memory_order_relaxed);
  if (counts.stays_on_tcp.load(std::memory_order_relaxed)) return false;
  if (counts.sent.load(std::memory_order_relaxed) +
          counts.received.load(std::memory_order_relaxed) >=
      kOfferBytes) {
    return true;
  }
  return calls >= kOfferCalls && os::now() - socket.tracked_since >= kOfferAfter;
}

// Returns true if the connection must stay on TCP because SO_RCVLOWAT is above 1: the kernel does
// not count bytes in the ring for this limit.  Returns false if the rules forbid TCP.
bool must_stay_for_low_water_mark(int fd, const Socket& socket) {
  int low = 0;
  socklen_t bytes = sizeof(low);
  return !socket.must_use_ring.load(std::memory_order_relaxed) &&
         next().getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, &bytes) == 0 && low > 1;
}

// Makes TCP send each byte at once, and begins to emulate the options TCP_NODELAY and TCP_CORK for
// the program.  With Nagle's algorithm or a corked socket, TCP could delay bytes while later bytes
// go by the ring.
void emulate_delay_options(int fd, Socket& socket) {
  for (const int option : {TCP_CORK, TCP_NODELAY}) {
    int value = 0;
    socklen_t bytes = sizeof(value);
    next().getsockopt(fd, IPPROTO_TCP, option, &value, &bytes);
    socket.emulated_option(IPPROTO_TCP, option)->store(value != 0);
    value = option == TCP_NODELAY ? 1 : 0;
    next().setsockopt(fd, IPPROTO_TCP, option, &value, sizeof(value));
  }
}

// Returns the state of the connection in the kernel, such as TCP_CLOSE.
int tcp_state_of(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof(info);
  if (next().getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return TCP_ESTABLISHED;
  return info.tcpi_state;
}

// Describes which directions this end has shut down.  Another process may have called shutdown().
struct ShutDown {
  bool is_sending_ended = false;
  bool is_receiving_ended = false;

  static ShutDown of(int fd) {
    // If the peer sends FIN after this ppoll(), the TCP state that is read next shows the FIN.
    pollfd one{.fd = fd, .events = POLLRDHUP, .revents = 0};
    const timespec no_time{};
    os::system_call(SYS_ppoll, &one, 1, &no_time, nullptr, 0);
    const int state = tcp_state_of(fd);
    const bool peer_sends =
        state == TCP_ESTABLISHED || state == TCP_FIN_WAIT1 || state == TCP_FIN_WAIT2;
    return {.is_sending_ended = state != TCP_ESTABLISHED && state != TCP_CLOSE_WAIT,
            .is_receiving_ended = peer_sends && (one.revents & POLLRDHUP) != 0};
  }
};

// Returns the counts of the connection if no other call and no other process uses it by TCP.
// Otherwise returns nullptr.  A call may move the counts, so this function checks for calls first.
const TcpCounts* counts_if_alone(const Socket& socket) {
  if (socket.calls_on_tcp.load() != 0) return nullptr;
  const TcpCounts* counts = socket.counts.load();
  return !counts->stays_on_tcp.load() && counts->processes.load() == 1 ? counts : nullptr;
}

// Changes a connection from TCP to the stream, if no other call and no other process uses it by TCP
// at this moment.
void try_to_change_over(int fd, Socket& socket) {
  using State = Socket::State;
  if (counts_if_alone(socket) == nullptr) return;
  auto state = State::kOffered;
  if (!socket.state.compare_exchange_strong(state, State::kChangingOver)) return;
  // A fork in another thread moves no counted bytes to other TcpCounts while the state is
  // kChangingOver.
  const TcpCounts* counts = counts_if_alone(socket);
  if (counts == nullptr) return socket.state.store(State::kOffered);
  stream::Sender sender = socket.sender();
  stream::Receiver receiver = socket.receiver();
  // If the program before exec() has used this memory already, or if the connection was reset, the
  // connection stays on TCP.
  if (!sender.has_started() && !receiver.has_started() && tcp_state_of(fd) != TCP_CLOSE) {
    emulate_delay_options(fd, socket);
    sender.start(counts->sent.load());
    waits::start_receiver(socket, [&](std::uint32_t sleepers) {
      receiver.start(counts->received.load(), sleepers);
      socket.holders().store(1);
      socket.state.store(State::kOnStream, std::memory_order_seq_cst);
    });
    // This thread sets the state first, and then checks for a shutdown().  A thread that calls
    // shutdown() reads the state afterwards.  So at least one of the two threads ends the
    // direction.
    const ShutDown shut_down = ShutDown::of(fd);
    if (shut_down.is_sending_ended) leaving::end_outgoing(fd, socket);
    if (shut_down.is_receiving_ended || socket.is_read_shut_down.load())
      leaving::end_incoming(socket);
  } else {
    socket.state.store(State::kTcpOnly);
  }
}

// Checks for the service's answer to an offer.  If there is one, changes the connection over.  If
// the service has ended, a later call offers the connection again.
void check_for_answer(int fd, Socket& socket, bool checks_service) {
  service_link::receive_answers(checks_service);
  if (socket.has_memory.load(std::memory_order_acquire)) {
    try_to_change_over(fd, socket);
  } else if (!service_link::is_offered(socket)) {
    auto offered = Socket::State::kOffered;
    socket.state.compare_exchange_strong(offered, Socket::State::kNew);
  }
}

// Does the next steps of a connection's change to the stream.  In the first call, waits for the
// service's answer.
void advance_with_wait(int fd, Socket& socket, bool is_first_call) {
  constexpr Duration kCheckInterval = std::chrono::milliseconds(1);
  const int error = errno;
  if (socket.state.load() == Socket::State::kNew && must_stay_for_low_water_mark(fd, socket)) {
    socket.keep_on_tcp();
  }
  if (!socket.counts.load()->stays_on_tcp.load()) {
    const Time until = os::now() + (is_first_call ? first_call_wait : Duration{});
    for (;;) {
      advance_at_once(fd, socket);
      if (socket.state.load() != Socket::State::kOffered || os::now() >= until) break;
      service_link::wait(kCheckInterval);
    }
  }
  errno = error;
}

// Does the next step of a connection's change from TCP to the stream, if it can be done now.
void advance(int fd, Socket& socket) {
  const std::uint32_t calls = socket.calls.fetch_add(1, std::memory_order_relaxed) + 1;
  if (has_first_call_wait()) return advance_with_wait(fd, socket, calls == 1);
  switch (socket.state.load(std::memory_order_relaxed)) {
    case Socket::State::kNew:
      if (!is_worth_an_offer(socket, calls)) return;
      if (!must_stay_for_low_water_mark(fd, socket)) return service_link::offer(fd, socket);
      return socket.keep_on_tcp();
    case Socket::State::kOffered:
      return check_for_answer(fd, socket, calls % kCallsPerServiceCheck == 0);
    default: return;
  }
}

}  // namespace

void set_first_call_wait(Duration wait) { first_call_wait = wait; }
bool has_first_call_wait() { return first_call_wait > Duration{}; }

void advance_at_once(int fd, Socket& socket) {
  switch (socket.state.load(std::memory_order_relaxed)) {
    case Socket::State::kNew: return service_link::offer(fd, socket);
    case Socket::State::kOffered: return check_for_answer(fd, socket, true);
    default: return;
  }
}

bool begin(int fd, Socket& socket) {
  using State = Socket::State;
  if (socket.state.load(std::memory_order_acquire) == State::kOnStream) return true;
  advance(fd, socket);
  for (;;) {
    // This thread first counts its call, and then reads the state.  The thread that changes the
    // connection over first writes the state, and then reads the count.  So either that thread sees
    // this call, or this thread sees the new state.
    socket.calls_on_tcp.fetch_add(1, std::memory_order_seq_cst);
    const State state = socket.state.load(std::memory_order_seq_cst);
    if (state != State::kChangingOver && state != State::kOnStream) return false;
    socket.calls_on_tcp.fetch_sub(1, std::memory_order_release);
    if (state == State::kOnStream) return true;
  }
}

ssize_t TcpCall::sent(ssize_t bytes) {
  if (bytes > 0) socket_.add_tcp_bytes(&TcpCounts::sent, static_cast<std::uint64_t>(bytes));
  return bytes;
}

ssize_t TcpCall::received(ssize_t bytes) {
  if (bytes > 0) socket_.add_tcp_bytes(&TcpCounts::received, static_cast<std::uint64_t>(bytes));
  return bytes;
}

namespace {

// Passes the mapped pages to the socket and to forked children.  SocketTable::release() unmaps
// them.
std::span<std::byte> keep(os::Mapping& mapping) {
  const std::span<std::byte> bytes = mapping.bytes();
  ::madvise(bytes.data(), bytes.size(), MADV_DOFORK);
  mapping.abandon();
  return bytes;
}

// Maps the memory for the socket.  Returns false if the memory does not fit a stream.
bool map_stream(Socket& socket, const StreamMemory& memory) {
  auto streams = os::map_shared(memory.streams, stream::memory_bytes(stream::kRingBytesMin),
                                stream::memory_bytes(stream::kRingBytesMax), true);
  auto end = os::map_shared(memory.end, stream::kEndBytes, stream::kEndBytes, true);
  if (memory.side > 1 || !streams || !end || !stream::direction_memory(streams->bytes(), 0)) {
    return false;
  }
  socket.memory = keep(*streams);
  socket.end = reinterpret_cast<stream::EndState*>(keep(*end).data());
  socket.side = memory.side;
  socket.has_memory.store(true);
  return true;
}

}  // namespace

void map_memory(Socket& socket, const StreamMemory& memory) {
  if (socket.has_memory.load() || socket.state.load() != Socket::State::kOffered) return;
  map_stream(socket, memory);
}

bool continue_stream(Socket& socket, const StreamMemory& memory) {
  if (!map_stream(socket, memory)) return false;
  if (!socket.sender().has_started() || !socket.receiver().has_started()) return false;
  socket.is_shared.store(true);
  socket.state.store(Socket::State::kOnStream);
  return true;
}

namespace {

// Releases this process's share of an end.  After the last share, the peer sends by TCP, so that
// the kernel answers.  If the ring has unread bytes, SO_LINGER makes the kernel's close() send RST,
// as it does for unread bytes of TCP.
void release_end(int fd, Socket& socket) {
  if (socket.holders().fetch_sub(1) != 1) return;
  stream::Sender sender = socket.sender();
  stream::Receiver receiver = socket.receiver();
  for (;;) {
    const auto status = receiver.ring_status();
    const auto withdrawn = receiver.withdraw(status.tail);
    if (withdrawn && !*withdrawn) continue;
    if (!withdrawn || status.bytes > 0) {
      const linger at_once{.l_onoff = 1, .l_linger = 0};
      next().setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    }
    break;
  }
  if (sender.wake_needed()) leaving::wake_peer(sender);
}

}  // namespace

linger leave_before_exec(int fd, Socket& socket) {
  linger before{};
  socklen_t bytes = sizeof(before);
  next().getsockopt(fd, SOL_SOCKET, SO_LINGER, &before, &bytes);
  release_end(fd, socket);
  return before;
}

void rejoin_after_failed_exec(int fd, Socket& socket, const linger& before) {
  next().setsockopt(fd, SOL_SOCKET, SO_LINGER, &before, sizeof(before));
  if (socket.holders().fetch_add(1) == 0) socket.receiver().promise();
}

void close(int fd, Socket& socket) {
  const int error = errno;
  if (socket.is_closed.exchange(true)) return;
  TcpCounts* counts = socket.counts.load();
  if (counts != &socket.own_counts) counts->processes.fetch_sub(1);
  const auto state = socket.state.load();
  if (state == Socket::State::kOnStream) release_end(fd, socket);
  if (state == Socket::State::kOffered || state == Socket::State::kOnStream) {
    service_link::forget(socket);
  }
  errno = error;
}

void after_disconnect(int fd) {
  const auto socket = SocketTable::remove(fd);
  if (!socket) return;
  // close() must not set SO_LINGER, which the next connection of the descriptor would inherit.
  constexpr int kNoDescriptor = -1;
  close(kNoDescriptor, *socket);
  socket->state.store(Socket::State::kTcpOnly);  // copies of the descriptor stay on TCP
}

void forget(int fd) {
  epolls::on_close(fd);
  const auto socket = SocketTable::remove(fd);
  if (!socket) return;
  // Other references belong to copies of the descriptor, or to calls of other threads.  The removal
  // of the last reference ends the use of the socket (SocketTable::release()).
  if (socket->references.load() == 1) close(fd, *socket);
}

}  // namespace verbena::preload::change_over
