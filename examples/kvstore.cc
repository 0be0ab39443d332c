// Runs a key-value store.  Clients read the table with RDMA READ, so the server has no code for
// lookups.
//     kvstore serve PORT KEY=VALUE...         kvstore get SERVER PORT KEY...
#include <verbena/verbena.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

using namespace verbena;

namespace {

// Holds one slot of the table.  The server increments `last_version`, writes the slot, and then
// sets `first_version` to the same number.  A READ copies the bytes in order, from `first_version`
// to `last_version`.  So if the server writes the slot during the READ, the two numbers differ, and
// the client repeats the READ.
struct Slot {
  std::uint64_t first_version = 0;
  std::array<char, 48> key{};
  std::array<char, 128> value{};
  std::uint64_t last_version = 0;
};
constexpr std::size_t kSlots = 1024;

std::size_t first_slot_of(std::string_view key) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash % kSlots;
}

void store_pair(std::vector<Slot>& table, std::string_view key, std::string_view value) {
  if (key.empty() || key.size() >= sizeof(Slot::key) || value.size() >= sizeof(Slot::value)) {
    throw std::runtime_error("a key has 1 to 47 bytes, a value up to 127");
  }
  for (std::size_t i = 0; i < kSlots; ++i) {
    Slot& slot = table[(first_slot_of(key) + i) % kSlots];
    if (slot.key[0] != '\0' && key != slot.key.data()) continue;
    std::atomic_ref(slot.last_version).fetch_add(1, std::memory_order_acq_rel);
    key.copy(slot.key.data(), key.size());
    slot.value = {};
    value.copy(slot.value.data(), value.size());
    std::atomic_ref(slot.first_version).store(slot.last_version, std::memory_order_release);
    return;
  }
  throw std::runtime_error("the table is full");
}

// Serves one client until it disconnects.
Task<> serve_one(const ProtectionDomain& pd, const CompletionQueue& cq,
                 Listener::IncomingRequest request, ConnectOptions options) {
  auto peer = co_await Listener::accept(pd, cq, std::move(request), std::move(options));
  if (!peer) {
    std::fprintf(stderr, "kvstore: %s\n", peer.error().text.c_str());
    co_return;
  }
  co_await disconnected(peer->id);
}

Task<> serve(Loop& loop, std::uint16_t port, std::vector<std::string> pairs) {
  std::vector<Slot> table(kSlots);
  for (const std::string& pair : pairs) {
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos) throw std::runtime_error("'" + pair + "' has no '='");
    store_pair(table, std::string_view(pair).substr(0, equals),
               std::string_view(pair).substr(equals + 1));
  }
  const Device device = value_of(co_await Device::open(loop));
  const ProtectionDomain pd = value_of(co_await device.create_pd());
  const CompletionQueue cq = value_of(co_await device.create_cq(16));
  const MemoryRegion region = value_of(
      co_await pd.register_memory(std::as_writable_bytes(std::span(table)), Access::kRemoteRead));
  const auto address = std::bit_cast<std::array<std::byte, sizeof(RemoteMemory)>>(region.remote());
  Listener listener = value_of(co_await Listener::create(loop, value_of(Address::find("", port))));
  std::printf("serving %zu pairs on port %u\n", pairs.size(), port);
  std::fflush(stdout);
  ConnectOptions options;
  options.private_data.assign(address.begin(), address.end());
  for (;;) {
    Listener::IncomingRequest request = co_await listener.next();
    loop.spawn(serve_one(pd, cq, std::move(request), options));
  }
}

Task<> get(Loop& loop, std::string server, std::uint16_t port, std::vector<std::string> keys) {
  const Device device = value_of(co_await Device::open(loop));
  const ProtectionDomain pd = value_of(co_await device.create_pd());
  CompletionQueue cq = value_of(co_await device.create_cq(4));
  Slot slot;
  const MemoryRegion region = value_of(co_await pd.register_memory(
      std::as_writable_bytes(std::span(&slot, 1)), Access::kLocalWrite));
  Connection peer = value_of(co_await connect(pd, cq, value_of(Address::find(server, port))));
  RemoteMemory remote;
  if (peer.private_data.size() < sizeof remote) {
    throw std::runtime_error("the server is not a kvstore");
  }
  std::memcpy(&remote, peer.private_data.data(), sizeof remote);

  for (const std::string& key : keys) {
    for (std::size_t i = 0;;) {
      if (i == kSlots) throw std::runtime_error("no such key: " + key);
      const std::size_t at = (first_slot_of(key) + i) % kSlots;
      value_of(peer.qp.post({.opcode = Opcode::kRead,
                             .segments = region,
                             .remote = remote,
                             .remote_offset = at * sizeof(Slot)}));
      std::array<Completion, 1> done{};
      co_await cq.next(done);
      if (done[0].status != 0) {
        throw std::runtime_error(std::string("READ: ") + status_text(done[0]));
      }
      if (slot.first_version != slot.last_version) continue;  // the server is writing the slot
      if (slot.key[0] == '\0') throw std::runtime_error("no such key: " + key);
      if (key == slot.key.data()) {
        std::printf("%s=%s\n", key.c_str(), slot.value.data());
        break;
      }
      ++i;
    }
  }
  value_of(co_await peer.id.disconnect());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
    const auto port = [&](std::size_t i) {
      return static_cast<std::uint16_t>(std::stoi(words[i]));
    };
    const auto loop = value_of(Loop::create());
    if (words.size() >= 2 && words[0] == "serve") {
      loop->run(serve(*loop, port(1), {words.begin() + 2, words.end()}));
    } else if (words.size() >= 4 && words[0] == "get") {
      loop->run(get(*loop, words[1], port(2), {words.begin() + 3, words.end()}));
    } else {
      std::fprintf(stderr,
                   "usage: kvstore serve PORT KEY=VALUE... | kvstore get SERVER PORT KEY...\n");
      return 2;
    }
    return 0;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "kvstore: %s\n", problem.what());
    return 1;
  }
}
