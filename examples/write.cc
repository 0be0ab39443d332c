// Writes into another program's memory:
//     write PORT                        waits until a client has written a text, and prints it
//     write PORT SERVER TEXT            writes TEXT into the memory of the program at SERVER
#include <verbena/verbena.h>

#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

using namespace verbena;

static Task<> run(Loop& loop, std::uint16_t port, std::string server, std::string text) {
  const Device device = value_of(co_await Device::open(loop));
  const ProtectionDomain pd = value_of(co_await device.create_pd());
  CompletionQueue cq = value_of(co_await device.create_cq(1));
  std::array<std::byte, 64> memory{};
  const Access access = Access::kLocalWrite | Access::kRemoteWrite;
  const MemoryRegion region = value_of(co_await pd.register_memory(memory, access));
  const Address address = value_of(Address::find(server, port));

  if (server.empty()) {  // send the address of `memory` to the peer, and wait until it disconnects
    const auto remote_memory =
        std::bit_cast<std::array<std::byte, sizeof(RemoteMemory)>>(region.remote());
    ConnectOptions options;
    options.private_data.assign(remote_memory.begin(), remote_memory.end());
    Listener listener = value_of(co_await Listener::create(loop, address));
    std::printf("listening on port %u\n", port);
    std::fflush(stdout);
    Listener::IncomingRequest request = co_await listener.next();
    Connection peer = value_of(co_await Listener::accept(pd, cq, std::move(request), options));
    co_await disconnected(peer.id);
    std::printf("%.64s\n", reinterpret_cast<const char*>(memory.data()));
    co_return;
  }

  Connection peer = value_of(co_await connect(pd, cq, address));
  RemoteMemory remote;
  if (peer.private_data.size() < sizeof remote)
    throw std::runtime_error("the peer offers no memory");
  std::memcpy(&remote, peer.private_data.data(), sizeof remote);
  text.copy(reinterpret_cast<char*>(memory.data()), memory.size());
  value_of(peer.qp.post({.opcode = Opcode::kWrite, .segments = region, .remote = remote}));
  std::array<Completion, 1> done{};
  co_await cq.next(done);
  if (done[0].status != 0) throw std::runtime_error(status_text(done[0]));
  value_of(co_await peer.id.disconnect());
}

int main(int argc, char** argv) {
  if (argc != 2 && argc != 4) return std::fputs("usage: write PORT [SERVER TEXT]\n", stderr), 2;
  try {
    const auto loop = value_of(Loop::create());
    const auto port = static_cast<std::uint16_t>(std::atoi(argv[1]));
    loop->run(run(*loop, port, argc > 2 ? argv[2] : "", argc > 2 ? argv[3] : ""));
    return 0;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "write: %s\n", problem.what());
    return 1;
  }
}
