// Sends a message back and forth between two programs.  The client prints the time of a round:
//     pingpong PORT                     the server, which answers 1000 messages
//     pingpong PORT SERVER [ROUNDS]     the client
#include <verbena/verbena.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

using namespace verbena;

namespace {

constexpr std::size_t kBytes = 64;
enum RequestId : std::uint64_t { kSent, kReceived };

// Waits for `count` completions.  A failed request ends the program.
Task<> await_completions(CompletionQueue& cq, int count) {
  std::array<Completion, 4> batch{};
  while (count > 0) {
    const std::size_t wanted = std::min(batch.size(), static_cast<std::size_t>(count));
    for (const Completion& done : co_await cq.next(std::span(batch).first(wanted))) {
      if (done.status != 0) {
        throw std::runtime_error(std::string("a request failed: ") + status_text(done));
      }
      --count;
    }
  }
}

Task<> play(Loop& loop, std::uint16_t port, std::string server, int rounds) {
  const Device device = value_of(co_await Device::open(loop));
  const ProtectionDomain pd = value_of(co_await device.create_pd());
  CompletionQueue cq = value_of(co_await device.create_cq(16));
  std::vector<std::byte> memory(2 * kBytes);
  const MemoryRegion region = value_of(co_await pd.register_memory(memory, Access::kLocalWrite));
  const Segment out = region.segment(0, kBytes), in = region.segment(kBytes, kBytes);
  const Address address = value_of(Address::find(server, port));
  ConnectOptions options;
  options.prepare = [&in](QueuePair& qp) { value_of(qp.post_receive(kReceived, in)); };

  if (server.empty()) {
    Listener listener = value_of(co_await Listener::create(loop, address));
    std::printf("listening on port %u\n", port);
    std::fflush(stdout);
    Listener::IncomingRequest request = co_await listener.next();
    Connection peer = value_of(co_await Listener::accept(pd, cq, std::move(request), options));
    for (int i = 0; i < rounds; ++i) {
      co_await await_completions(cq, 1);
      // Post the next receive before the answer, because the peer may send its next message as soon
      // as it has the answer.
      value_of(peer.qp.post_receive(kReceived, in));
      value_of(peer.qp.post({.id = kSent, .segments = out}));
      co_await await_completions(cq, 1);
    }
    co_await disconnected(peer.id);
    std::printf("answered %d messages\n", rounds);
    co_return;
  }

  Connection peer = value_of(co_await connect(pd, cq, address, options));
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < rounds; ++i) {
    value_of(peer.qp.post({.id = kSent, .segments = out}));
    co_await await_completions(cq, 2);
    value_of(peer.qp.post_receive(kReceived, in));
  }
  const std::chrono::duration<double, std::micro> duration =
      std::chrono::steady_clock::now() - start;
  std::printf("%d rounds of %zu bytes, %.1f us each\n", rounds, kBytes, duration.count() / rounds);
  value_of(co_await peer.id.disconnect());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: pingpong PORT [SERVER [ROUNDS]]\n");
    return 2;
  }
  try {
    const auto port = static_cast<std::uint16_t>(std::atoi(argv[1]));
    const auto loop = value_of(Loop::create());
    loop->run(play(*loop, port, argc > 2 ? argv[2] : "", argc > 3 ? std::atoi(argv[3]) : 1000));
    return 0;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "pingpong: %s\n", problem.what());
    return 1;
  }
}
