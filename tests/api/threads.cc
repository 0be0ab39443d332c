// Tests the C++ API with a Pool of threads.  Thread 0 listens and gives the requests to all threads
// in turn, which accept and use the connections.  Events must arrive in the thread that owns their
// object.  Prints "all good"; a failure ends the test with one line.
#include <verbena/verbena.h>

#include <array>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace verbena;

namespace {

constexpr std::size_t kThreads = 4;
constexpr int kConnections = 40;
constexpr int kRounds = 50;
constexpr std::size_t kBytes = 64;
constexpr std::uint16_t kPort = 7650;

void check(bool condition, const std::source_location& location = std::source_location::current()) {
  if (!condition)
    throw std::runtime_error("the check in line " + std::to_string(location.line()) + " failed");
}

// Holds the objects that all tasks of a thread use.
struct ThreadState {
  std::thread::id id{};
  std::optional<Device> device{};
  std::optional<ProtectionDomain> pd{};

  // Checks that the caller runs in this thread.
  void check_current() const { check(std::this_thread::get_id() == id); }
};

struct State {
  Pool* pool = nullptr;
  std::array<ThreadState, kThreads> threads{};
};

Task<> open_device(Loop& loop, ThreadState& thread) {
  thread.id = std::this_thread::get_id();
  thread.device.emplace(value_of(co_await Device::open(loop)));
  thread.pd.emplace(value_of(co_await thread.device->create_pd()));
  thread.check_current();
}

Task<> close_device(ThreadState& thread) {
  thread.pd.reset();
  thread.device.reset();
  co_return;
}

Task<> await_completions(const ThreadState& thread, CompletionQueue& cq, int count) {
  std::array<Completion, 1> completions{};
  for (; count > 0; --count) {
    const std::span<Completion> done = co_await cq.next(completions);
    check(done[0].status == 0);
    thread.check_current();
  }
}

// Exchanges messages with the other side of the connection.  The active side sends first.
Task<> exchange_messages(const ThreadState& thread, CompletionQueue& cq, QueuePair& qp,
                         SharedReceiveQueue& receives, const MemoryRegion& memory, bool is_active) {
  const std::array in{memory.segment(0, kBytes)};
  const std::array out{memory.segment(kBytes, kBytes)};
  for (int round = 0; round < kRounds; ++round) {
    if (is_active) value_of(qp.post({.segments = out}));
    co_await await_completions(thread, cq, is_active ? 2 : 1);
    value_of(receives.post_receive(1, in));
    if (is_active) continue;
    value_of(qp.post({.segments = out}));
    co_await await_completions(thread, cq, 1);
  }
}

// Creates a shared receive queue with one receive.  When a message uses that receive, the limit
// raises an event.
Task<SharedReceiveQueue> create_srq_with_one_receive(const ThreadState& thread,
                                                     const MemoryRegion& memory) {
  SharedReceiveQueue srq = value_of(co_await SharedReceiveQueue::create(*thread.pd, 4));
  const std::array in{memory.segment(0, kBytes)};
  value_of(srq.post_receive(1, in));
  value_of(co_await srq.set_limit(1));
  co_return srq;
}
Task<> await_limit_event(const ThreadState& thread, SharedReceiveQueue& receives) {
  const SharedReceiveQueue::Event event = co_await receives.event();
  check(event == SharedReceiveQueue::Event::kLimitReached);
  thread.check_current();
}

Task<> await_disconnect(const ThreadState& thread, ConnectionId& id) {
  for (;;) {
    const auto event = co_await id.event();
    thread.check_current();
    if (event.type == static_cast<std::uint32_t>(CmEventType::kDisconnected)) co_return;
  }
}

Task<> accept_and_exchange(const ThreadState& thread, Listener::IncomingRequest request) {
  CompletionQueue cq = value_of(co_await thread.device->create_cq(8));
  std::vector<std::byte> bytes(2 * kBytes);
  const MemoryRegion memory =
      value_of(co_await thread.pd->register_memory(bytes, Access::kLocalWrite));
  SharedReceiveQueue receives = co_await create_srq_with_one_receive(thread, memory);
  ConnectOptions options;
  options.queue_pair.receives = &receives;
  Connection peer =
      value_of(co_await Listener::accept(*thread.pd, cq, std::move(request), options));
  thread.check_current();
  co_await exchange_messages(thread, cq, peer.qp, receives, memory, false);
  co_await await_limit_event(thread, receives);
  co_await await_disconnect(thread, peer.id);
}

Task<> connect_and_exchange(const ThreadState& thread, Address to) {
  CompletionQueue cq = value_of(co_await thread.device->create_cq(8));
  std::vector<std::byte> bytes(2 * kBytes);
  const MemoryRegion memory =
      value_of(co_await thread.pd->register_memory(bytes, Access::kLocalWrite));
  SharedReceiveQueue receives = co_await create_srq_with_one_receive(thread, memory);
  ConnectOptions options;
  options.queue_pair.receives = &receives;
  Connection peer = value_of(co_await connect(*thread.pd, cq, to, options));
  co_await exchange_messages(thread, cq, peer.qp, receives, memory, true);
  co_await await_limit_event(thread, receives);
  value_of(co_await peer.id.disconnect());
  co_await await_disconnect(thread, peer.id);
}

Task<> listen(State& state, Loop& loop, Address address) {
  Listener listener = value_of(co_await Listener::create(loop, address));
  for (int i = 0; i < kConnections; ++i) {
    if (i == 0) {  // the clients start only now, because the listener must exist
      for (int connection = 0; connection < kConnections; ++connection) {
        const std::size_t number = static_cast<std::size_t>(connection) % kThreads;
        state.pool->spawn_on(number, [&state, number, address](Loop&) {
          return connect_and_exchange(state.threads[number], address);
        });
      }
    }
    auto request = std::make_shared<Listener::IncomingRequest>(co_await listener.next());
    state.threads[0].check_current();
    const std::size_t number = static_cast<std::size_t>(i + 1) % kThreads;
    value_of(request->id.move_to(state.pool->loop(number)));
    state.pool->spawn_on(number, [&state, number, request](Loop&) {
      return accept_and_exchange(state.threads[number], std::move(*request));
    });
  }
}

Task<> throw_error() {
  throw std::runtime_error("thrown");
  co_return;
}

void run_all() {
  State state;  // outlives the tasks, even after an error
  const auto pool = value_of(Pool::create(kThreads));
  state.pool = pool.get();
  check(pool->size() == kThreads);
  // Each of these pools is destroyed at once.
  for (int i = 0; i < 100; ++i) check(value_of(Pool::create())->size() >= 1);
  for (std::size_t i = 0; i < kThreads; ++i) {
    pool->spawn_on(i, [&state, i](Loop& loop) { return open_device(loop, state.threads[i]); });
  }
  pool->wait();
  const Address address = value_of(Address::find("127.0.0.1", kPort));
  pool->spawn_on(0, [&state, address](Loop& loop) { return listen(state, loop, address); });
  pool->wait();

  pool->spawn([](Loop&) { return throw_error(); });
  std::string caught;
  try {
    pool->wait();
  } catch (const std::runtime_error& error) {
    caught = error.what();
  }
  check(caught == "thrown");
  for (ThreadState& thread : state.threads) {
    const auto number = static_cast<std::size_t>(&thread - state.threads.data());
    pool->spawn_on(number, [&thread](Loop&) { return close_device(thread); });
  }
  pool->wait();
}

}  // namespace

int main() {
  try {
    run_all();
    std::puts("all good");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "threads: %s\n", error.what());
    return 1;
  }
}
