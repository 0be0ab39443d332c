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

// A connection is offered to the service when it has carried kOfferBytes, or when it has lived for
// kOfferAfter and had kOfferCalls calls.  For shorter connections an offer costs more than the ring
// saves.
constexpr std::uint64_t kOfferBytes = 4096;
constexpr Duration kOfferAfter = std::chrono::milliseconds(2);
constexpr std::uint32_t kOfferCalls = 3;
// set_first_call_wait() sets this wait.
constinit Duration first_call_wait{};
// An offered connection checks once in this many calls whether the service still lives.
constexpr std::uint32_t kThoroughEvery = 64;

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

// Returns true if SO_RCVLOWAT is above 1.  The kernel counts only its own bytes for that limit, so
// the connection stays on TCP, unless it must use the ring.
bool has_low_water_mark(int fd, const Socket& socket) {
  int low = 0;
  socklen_t bytes = sizeof(low);
  return !socket.must_switch.load(std::memory_order_relaxed) &&
         next().getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, &bytes) == 0 && low > 1;
}

// Keeps TCP from holding bytes back, without a change that the program can see.  Nagle's algorithm
// would wait for acknowledgements of bytes that go by the ring now, and a corked socket would wait
// for further bytes, which also go by the ring.
void take_over_delay_options(int fd, Socket& socket) {
  for (const int option : {TCP_CORK, TCP_NODELAY}) {
    int value = 0;
    socklen_t bytes = sizeof(value);
    next().getsockopt(fd, IPPROTO_TCP, option, &value, &bytes);
    socket.shown_option(IPPROTO_TCP, option)->store(value != 0);
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

// Tells which directions have ended by shutdown(), perhaps by that of another process.
struct Ended {
  bool sending = false;
  bool receiving = false;

  static Ended of(int fd) {
    // An end that the peer sends after this look changes the state that is read next.
    pollfd one{.fd = fd, .events = POLLRDHUP, .revents = 0};
    const timespec no_time{};
    os::system_call(SYS_ppoll, &one, 1, &no_time, nullptr, 0);
    const int state = tcp_state_of(fd);
    const bool peer_sends =
        state == TCP_ESTABLISHED || state == TCP_FIN_WAIT1 || state == TCP_FIN_WAIT2;
    return {.sending = state != TCP_ESTABLISHED && state != TCP_CLOSE_WAIT,
            .receiving = peer_sends && (one.revents & POLLRDHUP) != 0};
  }
};

// Returns the counts of the connection if no other call and no other process uses it by TCP.  Else
// returns nullptr.  A call may move the counts, so this function looks for calls first.
const TcpCounts* counts_to_switch(const Socket& socket) {
  if (socket.calls_on_tcp.load() != 0) return nullptr;
  const TcpCounts* counts = socket.counts.load();
  return !counts->stays_on_tcp.load() && counts->processes.load() == 1 ? counts : nullptr;
}

// Changes a connection from TCP to the stream, if no other call and no other process uses it by TCP
// at this moment.
void try_to_switch(int fd, Socket& socket) {
  using State = Socket::State;
  if (counts_to_switch(socket) == nullptr) return;
  auto state = State::kOffered;
  if (!socket.state.compare_exchange_strong(state, State::kSwitching)) return;
  // A fork in another thread moves no counts while the state is kSwitching.
  const TcpCounts* counts = counts_to_switch(socket);
  if (counts == nullptr) return socket.state.store(State::kOffered);
  stream::Sender sender = socket.sender();
  stream::Receiver receiver = socket.receiver();
  // If the program before exec() has used this memory already, or if the connection was reset, it
  // stays on TCP.
  if (!sender.started() && !receiver.started() && tcp_state_of(fd) != TCP_CLOSE) {
    take_over_delay_options(fd, socket);
    sender.start(counts->sent.load());
    waits::start(socket, [&](std::uint32_t sleepers) {
      receiver.start(counts->received.load(), sleepers);
      socket.holders().store(1);
      socket.state.store(State::kSwitched, std::memory_order_seq_cst);
    });
    // Another thread that calls shutdown() looks at the state afterwards.  So at least one of the
    // two sees the other.
    const Ended ended = Ended::of(fd);
    if (ended.sending) leaving::end_outgoing(fd, socket);
    if (ended.receiving || socket.reads_no_more.load()) leaving::end_incoming(socket);
  } else {
    socket.state.store(State::kPlain);
  }
}

// Looks for the service's answer to an offer.
void look_for_answer(int fd, Socket& socket, bool thorough) {
  service_link::receive_answers(thorough);
  if (socket.has_memory.load(std::memory_order_acquire)) {
    try_to_switch(fd, socket);
  } else if (!service_link::has_offer(socket)) {
    auto offered = Socket::State::kOffered;
    socket.state.compare_exchange_strong(offered, Socket::State::kNew);
  }
}

// Offers the connection, and waits in its first call for the answer.
void advance_with_wait(int fd, Socket& socket, bool is_first_call) {
  constexpr Duration kLookInterval = std::chrono::milliseconds(1);
  const int error = errno;
  if (socket.state.load() == Socket::State::kNew && has_low_water_mark(fd, socket)) {
    socket.keep_on_tcp();
  }
  if (!socket.counts.load()->stays_on_tcp.load()) {
    const Time until = os::now() + (is_first_call ? first_call_wait : Duration{});
    for (;;) {
      advance_at_once(fd, socket);
      if (socket.state.load() != Socket::State::kOffered || os::now() >= until) break;
      service_link::wait(kLookInterval);
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
      if (!has_low_water_mark(fd, socket)) return service_link::offer(fd, socket);
      return socket.keep_on_tcp();
    case Socket::State::kOffered: return look_for_answer(fd, socket, calls % kThoroughEvery == 0);
    default: return;
  }
}

}  // namespace

void set_first_call_wait(Duration wait) { first_call_wait = wait; }
bool has_first_call_wait() { return first_call_wait > Duration{}; }

void advance_at_once(int fd, Socket& socket) {
  switch (socket.state.load(std::memory_order_relaxed)) {
    case Socket::State::kNew: return service_link::offer(fd, socket);
    case Socket::State::kOffered: return look_for_answer(fd, socket, true);
    default: return;
  }
}

bool begin(int fd, Socket& socket) {
  using State = Socket::State;
  if (socket.state.load(std::memory_order_acquire) == State::kSwitched) return true;
  advance(fd, socket);
  for (;;) {
    // Announce the call first, and read the state afterwards.  The thread that changes over writes
    // the state first, and reads the announced calls afterwards.  So at least one of the two sees
    // the other.
    socket.calls_on_tcp.fetch_add(1, std::memory_order_seq_cst);
    const State state = socket.state.load(std::memory_order_seq_cst);
    if (state != State::kSwitching && state != State::kSwitched) return false;
    socket.calls_on_tcp.fetch_sub(1, std::memory_order_release);
    if (state == State::kSwitched) return true;
  }
}

ssize_t TcpCall::sent(ssize_t bytes) {
  if (bytes > 0) socket_.count_by_tcp(&TcpCounts::sent, static_cast<std::uint64_t>(bytes));
  return bytes;
}

ssize_t TcpCall::received(ssize_t bytes) {
  if (bytes > 0) socket_.count_by_tcp(&TcpCounts::received, static_cast<std::uint64_t>(bytes));
  return bytes;
}

namespace {

// Maps the memory for the socket.  Returns false if the memory does not hold a stream.
bool map_stream(Socket& socket, int memory, std::uint32_t side) {
  auto mapping = os::map_shared(memory, stream::memory_bytes(stream::kRingBytesMin),
                                stream::memory_bytes(stream::kRingBytesMax), true);
  if (side > 1 || !mapping || !stream::place_of(mapping->bytes(), 0)) return false;
  // A forked child uses the stream, too.
  ::madvise(mapping->bytes().data(), mapping->bytes().size(), MADV_DOFORK);
  socket.memory = mapping->bytes();
  socket.side = side;
  mapping->abandon();  // SocketTable::release() unmaps the memory
  socket.has_memory.store(true);
  return true;
}

}  // namespace

void map_memory(Socket& socket, int memory, std::uint32_t side) {
  if (socket.has_memory.load() || socket.state.load() != Socket::State::kOffered) return;
  map_stream(socket, memory, side);
}

bool continue_stream(Socket& socket, int memory, std::uint32_t side) {
  if (!map_stream(socket, memory, side)) return false;
  if (!socket.sender().started() || !socket.receiver().started()) return false;
  socket.is_shared.store(true);
  socket.state.store(Socket::State::kSwitched);
  return true;
}

namespace {

// Gives up this process's share of an end.  If it is the last share, the peer sends by TCP from now
// on, so that the kernel answers.  If bytes lie unread, SO_LINGER makes the kernel's close() send
// RST, as it does for unread bytes of TCP.
void leave_end(int fd, Socket& socket) {
  if (socket.holders().fetch_sub(1) != 1) return;
  stream::Sender sender = socket.sender();
  stream::Receiver receiver = socket.receiver();
  for (;;) {
    const auto look = receiver.look();
    const auto withdrawn = receiver.withdraw(look.tail);
    if (withdrawn && !*withdrawn) continue;
    if (!withdrawn || look.bytes > 0) {
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
  leave_end(fd, socket);
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
  if (state == Socket::State::kSwitched) leave_end(fd, socket);
  if (state == Socket::State::kOffered || state == Socket::State::kSwitched) {
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
  socket->state.store(Socket::State::kPlain);  // copies of the descriptor stay on TCP
}

void forget(int fd) {
  epolls::on_close(fd);
  const auto socket = SocketTable::remove(fd);
  if (!socket) return;
  // Other references belong to copies of the descriptor, or to calls of other threads.  The last
  // one to go ends the use of the socket (SocketTable::release()).
  if (socket->references.load() == 1) close(fd, *socket);
}

}  // namespace verbena::preload::change_over
