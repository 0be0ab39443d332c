// Tests the C++ API in several threads (Pool): one thread accepts connections and others use them,
// and events come to the thread of their object.  Prints "all good"; a failure ends it with a line.
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

void check(bool good, const std::source_location& where = std::source_location::current()) {
  if (!good) throw std::runtime_error("line " + std::to_string(where.line()) + " does not hold");
}

// Holds the objects that all tasks of a thread use.
struct ThreadState {
  std::thread::id id{};
  std::optional<Device> device{};
  std::optional<ProtectionDomain> pd{};

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

Task<> completed(const ThreadState& thread, CompletionQueue& cq, int count) {
  std::array<Completion, 1> room{};
  for (; count > 0; --count) {
    const std::span<Completion> done = co_await cq.next(room);
    check(done[0].status == 0);
    thread.check_current();
  }
}

// Runs on both sides; the active side begins.
Task<> talk(const ThreadState& thread, CompletionQueue& cq, QueuePair& qp,
            SharedReceiveQueue& receives, const MemoryRegion& memory, bool begins) {
  const std::array in{memory.segment(0, kBytes)};
  const std::array out{memory.segment(kBytes, kBytes)};
  for (int round = 0; round < kRounds; ++round) {
    if (begins) value_of(qp.post({.segments = out}));
    co_await completed(thread, cq, begins ? 2 : 1);
    value_of(receives.post_receive(1, in));
    if (begins) continue;
    value_of(qp.post({.segments = out}));
    co_await completed(thread, cq, 1);
  }
}

// Creates a shared receive queue with one receive.  When that is used, the limit raises an event.
Task<SharedReceiveQueue> one_receive(const ThreadState& thread, const MemoryRegion& memory) {
  SharedReceiveQueue made = value_of(co_await SharedReceiveQueue::create(*thread.pd, 4));
  const std::array in{memory.segment(0, kBytes)};
  value_of(made.post_receive(1, in));
  value_of(co_await made.set_limit(1));
  co_return made;
}
Task<> was_taken(const ThreadState& thread, SharedReceiveQueue& receives) {
  const SharedReceiveQueue::Event event = co_await receives.event();
  check(event == SharedReceiveQueue::Event::kLimitReached);
  thread.check_current();
}

Task<> until_over(const ThreadState& thread, ConnectionId& id) {
  for (;;) {
    const auto event = co_await id.event();
    thread.check_current();
    if (event.type == static_cast<std::uint32_t>(CmEventType::kDisconnected)) co_return;
  }
}

Task<> answer(const ThreadState& thread, Listener::IncomingRequest request) {
  CompletionQueue cq = value_of(co_await thread.device->create_cq(8));
  std::vector<std::byte> bytes(2 * kBytes);
  const MemoryRegion memory =
      value_of(co_await thread.pd->register_memory(bytes, Access::kLocalWrite));
  SharedReceiveQueue receives = co_await one_receive(thread, memory);
  ConnectOptions options;
  options.queue_pair.receives = &receives;
  Connection peer =
      value_of(co_await Listener::accept(*thread.pd, cq, std::move(request), options));
  thread.check_current();
  co_await talk(thread, cq, peer.qp, receives, memory, false);
  co_await was_taken(thread, receives);
  co_await until_over(thread, peer.id);
}

Task<> ask(const ThreadState& thread, Address to) {
  CompletionQueue cq = value_of(co_await thread.device->create_cq(8));
  std::vector<std::byte> bytes(2 * kBytes);
  const MemoryRegion memory =
      value_of(co_await thread.pd->register_memory(bytes, Access::kLocalWrite));
  SharedReceiveQueue receives = co_await one_receive(thread, memory);
  ConnectOptions options;
  options.queue_pair.receives = &receives;
  Connection peer = value_of(co_await connect(*thread.pd, cq, to, options));
  co_await talk(thread, cq, peer.qp, receives, memory, true);
  co_await was_taken(thread, receives);
  value_of(co_await peer.id.disconnect());
  co_await until_over(thread, peer.id);
}

Task<> listen(State& state, Loop& loop, Address at) {
  Listener listener = value_of(co_await Listener::create(loop, at));
  for (int i = 0; i < kConnections; ++i) {
    if (i == 0) {  // the listener exists now
      for (int asks = 0; asks < kConnections; ++asks) {
        const std::size_t number = static_cast<std::size_t>(asks) % kThreads;
        state.pool->spawn_on(
            number, [&state, number, at](Loop&) { return ask(state.threads[number], at); });
      }
    }
    auto request = std::make_shared<Listener::IncomingRequest>(co_await listener.next());
    state.threads[0].check_current();
    const std::size_t number = static_cast<std::size_t>(i + 1) % kThreads;
    value_of(request->id.move_to(state.pool->loop(number)));
    state.pool->spawn_on(number, [&state, number, request](Loop&) {
      return answer(state.threads[number], std::move(*request));
    });
  }
}

Task<> throws() {
  throw std::runtime_error("thrown");
  co_return;
}

void all() {
  State state;  // outlives the tasks, even after an error
  const auto pool = value_of(Pool::create(kThreads));
  state.pool = pool.get();
  check(pool->size() == kThreads);
  for (int i = 0; i < 100; ++i) check(value_of(Pool::create())->size() >= 1);  // destroyed at once
  for (std::size_t i = 0; i < kThreads; ++i) {
    pool->spawn_on(i, [&state, i](Loop& loop) { return open_device(loop, state.threads[i]); });
  }
  pool->wait();
  const Address at = value_of(Address::find("127.0.0.1", kPort));
  pool->spawn_on(0, [&state, at](Loop& loop) { return listen(state, loop, at); });
  pool->wait();

  pool->spawn([](Loop&) { return throws(); });
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
    all();
    std::puts("all good");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "threads: %s\n", error.what());
    return 1;
  }
}
