#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <spawn.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "base/time.h"
#include "preload/zeroed_array.h"
#include "stream/receiver.h"
#include "stream/sender.h"

// Tracks the TCP connections of this process, and finds them by descriptor.
//
// A table has an entry for each descriptor, which points to one Socket for each open socket.  A
// descriptor and its copies by dup() share a Socket.  The table uses static memory and atomic
// operations, and neither allocates nor locks, because signal handlers and forked children use it
// at any moment.  fork() copies the whole table.
namespace verbena::preload {

// Descriptors from this number on are not tracked, so their connections stay on TCP.
inline constexpr int kDescriptorsMax = 1 << 20;
// Further connections of a process are not tracked.
inline constexpr std::size_t kSocketsMax = 65536;

// Counts the bytes that went by TCP before the change over.  After fork(), the processes that hold
// the socket share the counts, in memory that they inherit.
struct TcpCounts {
  std::atomic<std::uint32_t> processes{1};  // processes with this library that have the socket
  std::atomic<bool> stays_on_tcp{false};    // the connection must never change over
  std::atomic<std::uint64_t> sent{0};       // bytes sent by TCP
  std::atomic<std::uint64_t> received{0};   // bytes received by TCP
};

// Accesses the emulated value of a socket option: getsockopt() returns this value to the program,
// while the kernel's socket has another one.  All processes that have the socket share the value.
class EmulatedOption {
 public:
  EmulatedOption(std::uint32_t& options, std::uint32_t bit) : options_(options), bit_(bit) {}

  bool load() const { return (options_.load(std::memory_order_relaxed) & bit_) != 0; }
  void store(bool is_on) const { is_on ? options_.fetch_or(bit_) : options_.fetch_and(~bit_); }

 private:
  std::atomic_ref<std::uint32_t> options_;
  std::uint32_t bit_;
};

class Socket {
 public:
  enum class State : std::uint8_t {
    kNew,           // on TCP; this library will offer the connection to the service after some use
    kOffered,       // on TCP; this library has offered the connection to the service
    kChangingOver,  // one thread is changing the connection over from TCP to the stream
    kOnStream,      // changed over: the stream chooses TCP or the ring for each byte
    kTcpOnly,       // on TCP, and will never change over
  };

  std::atomic<State> state{State::kNew};
  std::atomic<std::uint32_t> references{0};  // descriptors, and calls in progress
  // Counts the calls by TCP that have not ended yet.  The socket does not change over while the
  // count is not 0.
  std::atomic<std::uint32_t> calls_on_tcp{0};
  std::atomic<std::uint32_t> calls{0};       // all calls so far, until the change over
  std::atomic<std::uint16_t> generation{0};  // incremented when another socket reuses the object
  std::atomic<std::uint32_t> last_visit{0};  // see for_each_socket() in processes.cc
  // The number of the connection to the service by which the socket was offered.
  std::atomic<std::uint32_t> service_number{0};
  std::uint64_t cookie = 0;  // SO_COOKIE, after the first report to the service
  Time tracked_since{};      // when this library began to track the socket
  TcpCounts own_counts{};
  std::atomic<TcpCounts*> counts{nullptr};

  // The stream's memory, after the service's answer.  Its address does not change while the socket
  // is tracked.
  std::span<std::byte> memory{};
  stream::EndState* end = nullptr;  // the memory that only the processes of this end have
  std::uint32_t side = 0;
  std::atomic<bool> has_memory{false};
  std::atomic<bool> nonblocking{false};  // the value of O_NONBLOCK that this process has set last
  std::atomic<bool> is_shared{false};    // shared with other processes, which may change O_NONBLOCK
  std::atomic<bool> must_use_ring{false};         // the rules forbid TCP; see required.h
  std::atomic<bool> is_passed_to_spawned{false};  // see inheritance::is_inherited()
  // These file actions copy the socket to the standard input of the program that posix_spawn()
  // starts with them.
  std::atomic<const posix_spawn_file_actions_t*> stdin_actions{nullptr};
  std::atomic<int> pending_error{0};  // an errno that the next call reports, see take_error()
  std::atomic<bool> is_read_shut_down{false};       // after shutdown(SHUT_RD)
  std::atomic<bool> has_withdrawn_for_ever{false};  // see leaving::receive_by_tcp()
  std::atomic<bool> is_closed{false};      // this process has released its share of the end
  std::atomic<bool> survives_exec{false};  // the next program inherits a descriptor of the socket
  std::atomic<bool> wait_lock{false};      // see waits::WaitLock
  // Counts the threads that may sleep in the kernel for the socket, until the change over.  After
  // that, stream::State counts them.  wait_lock guards this count.
  std::uint32_t sleepers = 0;
  // The time, in nanoseconds, when the sender last checked that the peer lives.
  std::atomic<std::int64_t> peer_checked_at{0};
  std::atomic<bool> lock_is_stuck{false};  // see EndLock

  stream::Sender sender() const { return stream::Sender(*stream::direction_memory(memory, side)); }
  stream::Receiver receiver() const {
    return stream::Receiver(*stream::direction_memory(memory, 1 - side));
  }
  // Counts the processes that have this end of the stream, and its descriptors in transit to other
  // processes.  The count still includes a killed process.
  std::atomic_ref<std::uint32_t> holders() const { return std::atomic_ref(end->holders); }
  // Returns true if the stream carries the connection's bytes.
  bool uses_stream() const { return state.load(std::memory_order_acquire) == State::kOnStream; }

  // Returns the emulated value of a socket option, or nothing if this library does not emulate the
  // option.
  std::optional<EmulatedOption> emulated_option(int level, int option) const {
    if (level != IPPROTO_TCP || (option != TCP_NODELAY && option != TCP_CORK)) return std::nullopt;
    return EmulatedOption(end->emulated_options, option == TCP_NODELAY ? 1 : 2);
  }

  // Adds bytes to a count of TCP bytes.  A fork in another thread may move the counts at the same
  // time.
  void add_tcp_bytes(std::atomic<std::uint64_t> TcpCounts::*which, std::uint64_t bytes) {
    TcpCounts* const before = counts.load();
    (before->*which).fetch_add(bytes);
    if (counts.load() != before) move_own_counts();
  }
  // Prevents the connection's change over to the stream.
  void keep_on_tcp() {
    TcpCounts* const before = counts.load();
    before->stays_on_tcp.store(true);
    if (TcpCounts* const now = counts.load(); now != before) now->stays_on_tcp.store(true);
  }
  // Adds own_counts to the counts that several processes share.  Call this after `counts` has
  // changed to shared counts.
  void move_own_counts() {
    TcpCounts& common_counts = *counts.load();
    if (&common_counts == &own_counts) return;
    common_counts.sent.fetch_add(own_counts.sent.exchange(0));
    common_counts.received.fetch_add(own_counts.received.exchange(0));
    if (own_counts.stays_on_tcp.load()) common_counts.stays_on_tcp.store(true);
  }

  // Returns the errno that the next call reports, once; 0 for none.
  int take_error() {
    return pending_error.load(std::memory_order_relaxed) == 0 ? 0 : pending_error.exchange(0);
  }

  // Returns a number that identifies this socket in messages to the service.  See
  // SocketTable::find_number().
  std::uint32_t number() const;

 private:
  friend class SocketTable;
  std::atomic<std::uint32_t> next_free_{0};  // index + 1 of the next free socket
};

// Keeps a Socket alive during a call, even if another thread closes the descriptor.
class SocketUse {
 public:
  SocketUse() = default;
  // Takes over a reference that the caller has counted in socket->references.
  explicit SocketUse(Socket* socket) : socket_(socket) {}
  SocketUse(SocketUse&& other) noexcept : socket_(std::exchange(other.socket_, nullptr)) {}
  SocketUse& operator=(SocketUse&&) = delete;
  ~SocketUse();

  explicit operator bool() const { return socket_ != nullptr; }
  Socket* operator->() const { return socket_; }
  Socket& operator*() const { return *socket_; }

 private:
  Socket* socket_ = nullptr;
};

class SocketTable {
 public:
  // Returns the tracked socket of a descriptor, if it has one.  For other descriptors the call
  // costs one load.
  static SocketUse find(int fd);
  static bool has(int fd) {
    return static_cast<unsigned>(fd) < static_cast<unsigned>(kDescriptorsMax) &&
           slots_[static_cast<std::size_t>(fd)].load(std::memory_order_relaxed) != nullptr;
  }

  // Returns the socket that has this Socket::number(), if it is still tracked.
  static SocketUse find_number(std::uint32_t number);

  // Begins to track a connection.  Returns nullptr if the table is full, or if the descriptor is
  // too high.
  static Socket* add(int fd);
  // Records that the descriptor `copy` refers to the same socket from now on.  If `copy` is too
  // high to be tracked, the connection does not change over any more.
  static void add_copy(Socket& original, int copy);
  // Stops tracking the descriptor, before the kernel closes it.  Returns the socket that it had.
  static SocketUse remove(int fd);

  // Calls visit(fd) for each tracked descriptor from `first` to `last`.  This function has no
  // reference to the socket during visit(), so visit() may remove the last reference.
  template <class Visit>
  static void for_each_descriptor(int first, int last, Visit visit) {
    last = std::min(last, highest_.load(std::memory_order_relaxed));
    for (int fd = std::max(first, 0); fd <= last; ++fd) {
      if (has(fd)) visit(fd);
    }
  }
  // Calls visit(fd, socket) for each tracked descriptor from `first` to `last`.
  template <class Visit>
  static void for_each(int first, int last, Visit visit) {
    for_each_descriptor(first, last, [&visit](int fd) {
      if (SocketUse socket = find(fd)) visit(fd, *socket);
    });
  }
  // Returns the highest descriptor that was ever tracked; -1 if there was none yet.
  static int highest_descriptor() { return highest_.load(std::memory_order_relaxed); }
  // Frees a socket after its last reference was removed.  SocketUse calls it.
  static void release(Socket& socket);
  // Removes the references of calls in the parent's other threads, which never end in the child.
  static void after_fork_in_child();

 private:
  static Socket* allocate();
  static bool try_use(Socket& socket);
  static void set_slot(int fd, Socket& socket);

  static ZeroedArray<std::atomic<Socket*>, kDescriptorsMax> slots_;
  static std::atomic<int> highest_;
};

// Takes a reference.  Returns false if the socket has none, because another thread has closed it.
inline bool SocketTable::try_use(Socket& socket) {
  std::uint32_t references = socket.references.load(std::memory_order_relaxed);
  do {
    if (references == 0) return false;
  } while (!socket.references.compare_exchange_weak(references, references + 1,
                                                    std::memory_order_acquire));
  return true;
}

inline SocketUse SocketTable::find(int fd) {
  if (static_cast<unsigned>(fd) >= static_cast<unsigned>(kDescriptorsMax)) return {};
  auto& slot = slots_[static_cast<std::size_t>(fd)];
  Socket* socket = slot.load(std::memory_order_acquire);
  if (socket == nullptr) [[likely]]
    return {};
  if (!try_use(*socket)) return {};
  SocketUse use(socket);
  if (slot.load(std::memory_order_relaxed) != socket) return {};
  return use;
}

inline SocketUse::~SocketUse() {
  if (socket_ != nullptr && socket_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    SocketTable::release(*socket_);
  }
}

}  // namespace verbena::preload
