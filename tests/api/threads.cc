// The C++ API in several threads (Pool): connections that one thread accepts and others go on with,
// and events that come to the thread of their object.  Says "all good"; what fails ends it with a
// line.
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

// What all tasks of a thread use.
struct Seat {
  std::thread::id thread{};
  std::optional<Device> device{};
  std::optional<ProtectionDomain> pd{};

  void is_here() const { check(std::this_thread::get_id() == thread); }
};

struct Hall {
  Pool* pool = nullptr;
  std::array<Seat, kThreads> seats{};
};

Task<> sit_down(Loop& loop, Seat& seat) {
  seat.thread = std::this_thread::get_id();
  seat.device.emplace(value_of(co_await Device::open(loop)));
  seat.pd.emplace(value_of(co_await seat.device->create_pd()));
  seat.is_here();
}

Task<> leave(Seat& seat) {
  seat.pd.reset();
  seat.device.reset();
  co_return;
}

Task<> completed(const Seat& seat, CompletionQueue& cq, int count) {
  std::array<Completion, 1> room{};
  for (; count > 0; --count) {
    const std::span<Completion> done = co_await cq.next(room);
    check(done[0].status == 0);
    seat.is_here();
  }
}

// Both sides: the active one begins.
Task<> talk(const Seat& seat, CompletionQueue& cq, QueuePair& qp, SharedReceiveQueue& receives,
            const MemoryRegion& memory, bool begins) {
  const std::array in{memory.piece(0, kBytes)};
  const std::array out{memory.piece(kBytes, kBytes)};
  for (int round = 0; round < kRounds; ++round) {
    if (begins) value_of(qp.post({.pieces = out}));
    co_await completed(seat, cq, begins ? 2 : 1);
    value_of(receives.post_receive(1, in));
    if (begins) continue;
    value_of(qp.post({.pieces = out}));
    co_await completed(seat, cq, 1);
  }
}

// With one receive, whose absence is an event.
Task<SharedReceiveQueue> one_receive(const Seat& seat, const MemoryRegion& memory) {
  SharedReceiveQueue made = value_of(co_await SharedReceiveQueue::create(*seat.pd, 4));
  const std::array in{memory.piece(0, kBytes)};
  value_of(made.post_receive(1, in));
  value_of(co_await made.set_limit(1));
  co_return made;
}
Task<> was_taken(const Seat& seat, SharedReceiveQueue& receives) {
  const SharedReceiveQueue::Event event = co_await receives.event();
  check(event == SharedReceiveQueue::Event::kLimitReached);
  seat.is_here();
}

Task<> until_over(const Seat& seat, ConnectionId& id) {
  for (;;) {
    const auto event = co_await id.event();
    seat.is_here();
    if (event.type == static_cast<std::uint32_t>(CmEventType::kDisconnected)) co_return;
  }
}

Task<> answer(const Seat& seat, Listener::Asked asked) {
  CompletionQueue cq = value_of(co_await seat.device->create_cq(8));
  std::vector<std::byte> bytes(2 * kBytes);
  const MemoryRegion memory =
      value_of(co_await seat.pd->register_memory(bytes, Access::kLocalWrite));
  SharedReceiveQueue receives = co_await one_receive(seat, memory);
  ConnectOptions options;
  options.queue_pair.receives = &receives;
  Connection peer = value_of(co_await Listener::accept(*seat.pd, cq, std::move(asked), options));
  seat.is_here();
  co_await talk(seat, cq, peer.qp, receives, memory, false);
  co_await was_taken(seat, receives);
  co_await until_over(seat, peer.id);
}

Task<> ask(const Seat& seat, Address to) {
  CompletionQueue cq = value_of(co_await seat.device->create_cq(8));
  std::vector<std::byte> bytes(2 * kBytes);
  const MemoryRegion memory =
      value_of(co_await seat.pd->register_memory(bytes, Access::kLocalWrite));
  SharedReceiveQueue receives = co_await one_receive(seat, memory);
  ConnectOptions options;
  options.queue_pair.receives = &receives;
  Connection peer = value_of(co_await connect(*seat.pd, cq, to, options));
  co_await talk(seat, cq, peer.qp, receives, memory, true);
  co_await was_taken(seat, receives);
  value_of(co_await peer.id.disconnect());
  co_await until_over(seat, peer.id);
}

Task<> listen(Hall& hall, Loop& loop, Address at) {
  Listener listener = value_of(co_await Listener::create(loop, at));
  for (int i = 0; i < kConnections; ++i) {
    if (i == 0) {  // now there is somebody to ask
      for (int asks = 0; asks < kConnections; ++asks) {
        const std::size_t number = static_cast<std::size_t>(asks) % kThreads;
        hall.pool->spawn_on(number,
                            [&hall, number, at](Loop&) { return ask(hall.seats[number], at); });
      }
    }
    auto asked = std::make_shared<Listener::Asked>(co_await listener.next());
    hall.seats[0].is_here();
    const std::size_t number = static_cast<std::size_t>(i + 1) % kThreads;
    value_of(asked->id.move_to(hall.pool->loop(number)));
    hall.pool->spawn_on(number, [&hall, number, asked](Loop&) {
      return answer(hall.seats[number], std::move(*asked));
    });
  }
}

Task<> throws() {
  throw std::runtime_error("thrown");
  co_return;
}

void all() {
  Hall hall;  // outlives the tasks, whatever happens
  const auto pool = value_of(Pool::create(kThreads));
  hall.pool = pool.get();
  check(pool->size() == kThreads);
  for (int i = 0; i < 100; ++i) check(value_of(Pool::create())->size() >= 1);  // and goes at once
  for (std::size_t i = 0; i < kThreads; ++i) {
    pool->spawn_on(i, [&hall, i](Loop& loop) { return sit_down(loop, hall.seats[i]); });
  }
  pool->wait();
  const Address at = value_of(Address::find("127.0.0.1", kPort));
  pool->spawn_on(0, [&hall, at](Loop& loop) { return listen(hall, loop, at); });
  pool->wait();

  pool->spawn([](Loop&) { return throws(); });
  std::string heard;
  try {
    pool->wait();
  } catch (const std::runtime_error& error) {
    heard = error.what();
  }
  check(heard == "thrown");
  for (Seat& seat : hall.seats) {
    const auto number = static_cast<std::size_t>(&seat - hall.seats.data());
    pool->spawn_on(number, [&seat](Loop&) { return leave(seat); });
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
