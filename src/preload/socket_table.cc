#include "preload/socket_table.h"

#include <sys/mman.h>

#include "os/clock.h"
#include "preload/change_over.h"

namespace verbena::preload {
namespace {

constexpr unsigned kIndexBits = 16;
static_assert(kSocketsMax == std::size_t{1} << kIndexBits);

// A socket that was never used is all zeros.  SocketTable::add() resets the members that an earlier
// use may have changed.
constinit ZeroedArray<Socket, kSocketsMax> pool{};
// The head of the list of free sockets.  The upper half is a tag that changes with each removal,
// and the lower half is the index + 1 of the first free socket.
constinit std::atomic<std::uint64_t> free_head{0};
constinit std::atomic<std::uint32_t> next_unused_index{0};  // sockets from here on were never used

std::uint32_t index_of(const Socket& socket) {
  return static_cast<std::uint32_t>(&socket - pool.data());
}

}  // namespace

constinit ZeroedArray<std::atomic<Socket*>, kDescriptorsMax> SocketTable::slots_{};
constinit std::atomic<int> SocketTable::highest_{-1};

std::uint32_t Socket::number() const {
  return std::uint32_t{generation.load()} << kIndexBits | index_of(*this);
}

SocketUse SocketTable::find_number(std::uint32_t number) {
  Socket& socket = pool[number & (kSocketsMax - 1)];
  if (!try_use(socket)) return {};
  SocketUse use(&socket);
  if (socket.number() != number) return {};
  return use;
}

// Stores the socket as that of the descriptor.  The caller has counted a reference for the slot.
void SocketTable::set_slot(int fd, Socket& socket) {
  int highest = highest_.load(std::memory_order_relaxed);
  while (highest < fd && !highest_.compare_exchange_weak(highest, fd)) {
  }
  // The slot has an old socket if a call that this library does not wrap has closed the descriptor.
  Socket* stale = slots_[static_cast<std::size_t>(fd)].exchange(&socket, std::memory_order_acq_rel);
  if (stale != nullptr) SocketUse{stale};
}

// Returns a free socket; nullptr if there is none.
Socket* SocketTable::allocate() {
  std::uint64_t head = free_head.load(std::memory_order_acquire);
  while (const auto index = static_cast<std::uint32_t>(head)) {
    const std::uint32_t after = pool[index - 1].next_free_.load(std::memory_order_relaxed);
    const std::uint64_t next = ((head >> 32) + 1) << 32 | after;
    if (free_head.compare_exchange_weak(head, next, std::memory_order_acquire)) {
      return &pool[index - 1];
    }
  }
  const std::uint32_t index = next_unused_index.fetch_add(1, std::memory_order_relaxed);
  if (index < kSocketsMax) return &pool[index];
  next_unused_index.store(kSocketsMax, std::memory_order_relaxed);
  return nullptr;
}

Socket* SocketTable::add(int fd) {
  if (fd < 0 || fd >= kDescriptorsMax) return nullptr;
  Socket* socket = allocate();
  if (socket == nullptr) return nullptr;
  socket->state.store(Socket::State::kNew, std::memory_order_relaxed);
  socket->calls_on_tcp.store(0, std::memory_order_relaxed);
  socket->calls.store(0, std::memory_order_relaxed);
  socket->generation.fetch_add(1, std::memory_order_relaxed);
  socket->cookie = 0;
  socket->tracked_since = os::now();
  socket->own_counts.processes.store(1, std::memory_order_relaxed);
  socket->own_counts.stays_on_tcp.store(false, std::memory_order_relaxed);
  socket->own_counts.sent.store(0, std::memory_order_relaxed);
  socket->own_counts.received.store(0, std::memory_order_relaxed);
  socket->counts.store(&socket->own_counts, std::memory_order_relaxed);
  socket->has_memory.store(false, std::memory_order_relaxed);
  socket->nonblocking.store(false, std::memory_order_relaxed);
  socket->is_shared.store(false, std::memory_order_relaxed);
  socket->must_use_ring.store(false, std::memory_order_relaxed);
  socket->is_passed_to_spawned.store(false, std::memory_order_relaxed);
  socket->stdin_actions.store(nullptr, std::memory_order_relaxed);
  socket->pending_error.store(0, std::memory_order_relaxed);
  socket->is_read_shut_down.store(false, std::memory_order_relaxed);
  socket->has_withdrawn_for_ever.store(false, std::memory_order_relaxed);
  socket->is_closed.store(false, std::memory_order_relaxed);
  socket->peer_checked_at.store(0, std::memory_order_relaxed);
  socket->lock_is_stuck.store(false, std::memory_order_relaxed);
  socket->sleepers = 0;
  socket->references.store(1, std::memory_order_release);
  set_slot(fd, *socket);
  return socket;
}

void SocketTable::add_copy(Socket& original, int copy) {
  if (copy < 0 || copy >= kDescriptorsMax) {
    return original.keep_on_tcp();
  }
  original.references.fetch_add(1, std::memory_order_relaxed);
  set_slot(copy, original);
}

SocketUse SocketTable::remove(int fd) {
  if (!has(fd)) return {};
  return SocketUse(
      slots_[static_cast<std::size_t>(fd)].exchange(nullptr, std::memory_order_acq_rel));
}

void SocketTable::release(Socket& socket) {
  // If close() was not called yet, a descriptor was closed during a call of another thread, or by a
  // call that this library does not wrap.  Another file may have the descriptor's number now.
  constexpr int kNoDescriptor = -1;
  if (!socket.is_closed.load()) change_over::close(kNoDescriptor, socket);
  if (socket.has_memory.exchange(false)) {
    ::munmap(socket.memory.data(), socket.memory.size());
    ::munmap(socket.end, stream::kEndBytes);
  }
  std::uint64_t head = free_head.load(std::memory_order_relaxed);
  std::uint64_t next = 0;
  do {
    socket.next_free_.store(static_cast<std::uint32_t>(head), std::memory_order_relaxed);
    next = (head >> 32) << 32 | (index_of(socket) + 1);
  } while (!free_head.compare_exchange_weak(head, next, std::memory_order_release));
}

void SocketTable::after_fork_in_child() {
  const auto socket_of = [](int fd) -> Socket& {
    return *slots_[static_cast<std::size_t>(fd)].load(std::memory_order_relaxed);
  };
  for_each_descriptor(0, kDescriptorsMax - 1, [&](int fd) { socket_of(fd).references.store(0); });
  for_each_descriptor(0, kDescriptorsMax - 1,
                      [&](int fd) { socket_of(fd).references.fetch_add(1); });
}

}  // namespace verbena::preload
