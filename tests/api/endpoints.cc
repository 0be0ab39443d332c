// Uses the InfiniBand CM with the C++ API, between two hosts:
//   endpoints serve SERVICE              the private data of a request chooses the answer
//   endpoints ask GID SERVICE WORD [OWN OTHER]    OWN and OTHER are the ends of an alternate path
//   endpoints meet OWN PEER SERVICE      connects peer to peer
//   endpoints tell SERVICE               answers for a datagram service
//   endpoints learn GID SERVICE WORD     looks up the queue pair of a datagram service
//
// Prints a line for each event, and reads commands from its input:
//   rounds N                sends and receives N messages
//   cross                   does that until the queue pair has migrated
//   offer OWN OTHER WORD    offers a path
//   migrate                 migrates to it
//   bye WORD                ends
#include <arpa/inet.h>
#include <verbena/verbena.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

using namespace verbena;
using Type = Endpoint::EventType;

namespace {

constexpr std::size_t kBytes = 64;
constexpr int kTimeoutMs = 5000;
constexpr std::uint64_t kFamily = ~std::uint64_t{0xff};  // a server has 256 services
enum Which : std::uint64_t { kSent, kReceived };

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}
std::vector<std::byte> data_of(const std::string& text) {
  const auto bytes = bytes_of(text);
  return {bytes.begin(), bytes.end()};
}
// Returns the text in quotes, without the zeros that messages are padded with.
std::string quoted(std::span<const std::byte> bytes) {
  std::string text = "'";
  for (const std::byte byte : bytes) {
    if (byte == std::byte{0}) break;
    text += static_cast<char>(byte);
  }
  return text + "'";
}
Gid gid_of(const std::string& name) { return value_of(Address::find(name, 0)).gid(); }
std::string name_of(const Gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  return inet_ntop(AF_INET6, gid.data(), text.data(), text.size());
}
std::uint64_t service_of(const std::string& text) { return std::stoull(text, nullptr, 0); }
std::string hex(std::uint64_t number) {
  std::ostringstream out;
  out << "0x" << std::hex << number;
  return out.str();
}

// ---- input, read in the same poll() as the loop

class Orders {
 public:
  bool open() const { return open_; }
  void read() {
    std::array<char, 256> room{};
    const ssize_t count = ::read(STDIN_FILENO, room.data(), room.size());
    if (count <= 0) {
      open_ = false;
      return;
    }
    for (const char letter : std::span(room).first(static_cast<std::size_t>(count))) {
      if (letter == '\n') {
        lines.push(std::exchange(line_, {}));
      } else {
        line_ += letter;
      }
    }
  }
  detail::Mailbox<std::string> lines{};

 private:
  bool open_ = true;
  std::string line_{};
};

void run(Loop& loop, Orders& orders, Task<> task) {
  task.start();
  while (!task.done()) {
    if (loop.run_ready()) continue;
    std::array<pollfd, 2> waits{
        {{.fd = loop.fd(), .events = POLLIN, .revents = 0},
         {.fd = orders.open() ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0}}};
    ::poll(waits.data(), waits.size(), -1);
    if (waits[1].revents != 0) orders.read();
  }
  task.take();
}

// ---- a queue pair that receives a message and sends it back

struct Host {
  Loop& loop;
  Device device;
  ProtectionDomain pd;
};

struct Player {
  std::vector<std::byte> bytes;
  MemoryRegion memory;
  CompletionQueue cq;
  QueuePair qp;
  bool migrated = false;

  void receive() const {
    const std::array in{memory.segment(0, kBytes)};
    value_of(qp.post_receive(kReceived, in));
  }
  void send() const {
    const std::array out{memory.segment(kBytes, kBytes)};
    value_of(qp.post({.id = kSent, .segments = out}));
  }
};

Task<std::unique_ptr<Player>> player(const Host& host) {
  std::vector<std::byte> bytes(2 * kBytes);
  MemoryRegion memory = value_of(co_await host.pd.register_memory(bytes, Access::kLocalWrite));
  CompletionQueue cq = value_of(co_await host.device.create_cq(16));
  QueuePair qp = value_of(co_await QueuePair::create(host.pd, cq, cq));
  co_return std::make_unique<Player>(std::move(bytes), std::move(memory), std::move(cq),
                                     std::move(qp));
}

// Waits for completions.  Returns false if the connection is over.
Task<bool> completed(Player& player, int count) {
  std::array<Completion, 1> room{};
  for (; count > 0; --count) {
    const std::span<Completion> done = co_await player.cq.next(room);
    if (done[0].status != 0) co_return false;
  }
  co_return true;
}

Task<> echo(Player& player) {
  for (;;) {
    const bool asked = co_await completed(player, 1);
    if (!asked) co_return;
    player.receive();
    player.send();
    const bool sent = co_await completed(player, 1);
    if (!sent) co_return;
  }
}

Task<> round(Player& player) {
  player.send();
  const bool answered = co_await completed(player, 2);
  if (!answered) throw std::runtime_error("the connection is over");
  player.receive();
}

Task<> rounds(Player& player, int count) {
  for (int i = 0; i < count; ++i) co_await round(player);
  say("rounds " + std::to_string(count));
}

Task<> cross(Player& player) {
  co_await round(player);
  say("crossing");
  while (!player.migrated) co_await round(player);
  co_await round(player);
  say("crossed");
}

Task<> watch_paths(Player& player) {
  for (;;) {
    const QueuePair::Event event = co_await player.qp.event();
    if (event == QueuePair::Event::kMigrated) {
      player.migrated = true;
      say("migrated");
    }
    if (event == QueuePair::Event::kMigrationError) say("migration error");
  }
}

// ---- both sides

// Prints the endpoint's events until it is over.
Task<> watch(Endpoint& endpoint) {
  for (;;) {
    Endpoint::Event event = co_await endpoint.event();
    switch (event.type) {
      case Type::kEstablished: say("established " + quoted(event.private_data())); break;
      case Type::kPathAnswered:
        say("answered " + std::to_string(event.status()) + " " + quoted(event.additional_info()));
        break;
      case Type::kPathUnanswered: say("unanswered"); break;
      case Type::kPathOffered: {
        const AlternatePath path = event.alternate_path().value();
        const std::string word = quoted(event.private_data());
        say("offered " + name_of(path.source) + " " + name_of(path.destination) + " " + word);
        const bool welcome = word != "'no'";
        const std::string why = welcome ? "" : "no need";
        value_of(co_await endpoint.answer_path(
            welcome ? PathStatus::kAccepted : PathStatus::kRejected, {}, bytes_of(why)));
        break;
      }
      case Type::kDisconnected:
        say("disconnected " + std::to_string(event.status()) + " " + quoted(event.private_data()));
        co_return;
      default:
        say("event " + std::to_string(event.raw.type) + " " + std::to_string(event.status()));
        co_return;
    }
  }
}

// Prints the events in a task of its own, and then notifies `over`.
using Over = detail::Mailbox<bool>;
Task<> watch_beside(Endpoint& endpoint, Over& over) {
  co_await watch(endpoint);
  over.push(true);
}

Task<> obey(Orders& orders, Endpoint& endpoint, Player& player) {
  for (;;) {
    const std::string line = co_await detail::Mailbox<std::string>::Next(orders.lines);
    std::istringstream words(line);
    std::string order, own, other, word;
    words >> order;
    if (order == "rounds") {
      int count = 0;
      words >> count;
      co_await rounds(player, count);
    } else if (order == "cross") {
      co_await cross(player);
    } else if (order == "offer") {
      words >> own >> other >> word;
      AlternatePath path;
      path.source = gid_of(own);
      path.destination = gid_of(other);
      const auto offered = co_await endpoint.offer_path(path, bytes_of(word));
      say(offered ? "offering" : "no offer: " + std::string(offered.error().text));
    } else if (order == "migrate") {
      vb_qp_attr attributes{};
      value_of(co_await player.qp.modify(attributes, 1 << 18));  // IBV_QP_PATH_MIG_STATE: MIGRATED
      say("migrating");
    } else if (order == "bye") {
      words >> word;
      value_of(co_await endpoint.disconnect(bytes_of(word)));
      co_return;
    } else {
      throw std::runtime_error("no such order: " + line);
    }
  }
}

// ---- the three programs

// Answers one request, and then serves its connection.
Task<> answer(Host& host, Endpoint endpoint, std::string word, bool has_alternate) {
  if (word == "'refuse'") {
    const Gid instead = gid_of("10.99.99.99");
    value_of(co_await endpoint.reject(RejectReason::kPrimaryGidRejected, bytes_of("not here"),
                                      std::as_bytes(std::span(instead))));
    co_return;
  }
  const std::unique_ptr<Player> own = co_await player(host);
  value_of(co_await endpoint.set_queue_pair(own->qp));
  own->receive();
  Endpoint::Parameters parameters;
  parameters.private_data = data_of("welcome");
  parameters.alternate_accepted = has_alternate && word != "'single'";
  value_of(co_await endpoint.accept(parameters));
  Task<> echoes = echo(*own);
  echoes.start();
  Task<> paths = watch_paths(*own);
  paths.start();
  co_await watch(endpoint);
}

Task<> serve(Host& host, std::uint64_t service) {
  Endpoint listener = value_of(co_await Endpoint::create(host.loop));
  value_of(co_await listener.bind(service));
  ServiceFilter filter;
  filter.mask = kFamily;
  value_of(co_await listener.listen(16, filter));
  Endpoint second = value_of(co_await Endpoint::create(host.loop));
  value_of(co_await second.bind(service + 1));
  const auto taken = co_await second.listen();
  if (taken || taken.error().code != std::errc::address_in_use) {
    throw std::runtime_error("two listen for one service");
  }
  say("listening");
  for (;;) {
    Endpoint::Event event = co_await listener.event();
    std::optional<Endpoint> asked = event.take_endpoint();
    if (!asked) continue;
    const std::string word = quoted(event.private_data());
    say("request " + hex(event.service()) + " " + word);
    host.loop.spawn(answer(host, std::move(*asked), word, event.alternate_path().has_value()));
  }
}

Task<> resolved(Endpoint& endpoint, std::uint64_t service, Gid to, Gid source) {
  value_of(co_await endpoint.resolve(service, to, kTimeoutMs, source));
  const Endpoint::Event address = co_await endpoint.event();
  if (address.type != Type::kAddressResolved) throw std::runtime_error("no such address");
  value_of(co_await endpoint.resolve_route(kTimeoutMs));
  const Endpoint::Event route = co_await endpoint.event();
  if (route.type != Type::kRouteResolved) throw std::runtime_error("no route");
}

Task<> ask(Host& host, Orders& orders, std::vector<std::string> words) {
  const std::unique_ptr<Player> own = co_await player(host);
  Endpoint endpoint = value_of(co_await Endpoint::create(host.loop));
  co_await resolved(endpoint, service_of(words[2]), gid_of(words[1]), Gid{});
  value_of(co_await endpoint.set_queue_pair(own->qp));
  own->receive();
  Endpoint::Parameters parameters;
  parameters.private_data = data_of(words[3]);
  if (words.size() > 5) {
    parameters.alternate.emplace();
    parameters.alternate->source = gid_of(words[4]);
    parameters.alternate->destination = gid_of(words[5]);
    parameters.retry_count = 1;  // so that the first path fails soon
  }
  value_of(co_await endpoint.connect(parameters));
  const Endpoint::Event event = co_await endpoint.event();
  if (event.type == Type::kRejected) {
    Gid instead{};
    std::copy_n(event.raw.additional_info, instead.size(), instead.begin());
    say("rejected " + std::to_string(event.status()) + " " + quoted(event.private_data()) + " " +
        name_of(instead));
    co_return;
  }
  if (event.type != Type::kConnectResponse) {
    throw std::runtime_error("connect: event " + std::to_string(event.raw.type) + ", status " +
                             std::to_string(event.status()));
  }
  say("accepted " + quoted(event.private_data()) + (event.alternate_accepted() ? " both" : ""));
  value_of(co_await endpoint.establish(bytes_of("ready")));
  Task<> paths = watch_paths(*own);
  paths.start();
  Over over;
  host.loop.spawn(watch_beside(endpoint, over));
  co_await obey(orders, endpoint, *own);
  co_await Over::Next(over);
}

Task<> meet(Host& host, Orders& orders, std::vector<std::string> words) {
  const std::unique_ptr<Player> own = co_await player(host);
  Endpoint endpoint = value_of(co_await Endpoint::create(host.loop));
  co_await resolved(endpoint, service_of(words[3]), gid_of(words[2]), gid_of(words[1]));
  value_of(co_await endpoint.set_queue_pair(own->qp));
  own->receive();
  Endpoint::Parameters parameters;
  parameters.private_data = data_of(words[1]);
  parameters.peer_to_peer = true;
  value_of(co_await endpoint.connect(parameters));
  say("connecting");
  Endpoint::Event event = co_await endpoint.event();
  const std::string peer = quoted(event.private_data());
  const bool passive = event.type == Type::kConnectRequest;
  if (passive) {
    if (event.take_endpoint()) throw std::runtime_error("a new endpoint");
    value_of(co_await endpoint.accept(parameters));
    const Endpoint::Event established = co_await endpoint.event();
    if (established.type != Type::kEstablished) throw std::runtime_error("not established");
  } else if (event.type == Type::kConnectResponse) {
    value_of(co_await endpoint.establish());
  } else {
    throw std::runtime_error("event " + std::to_string(event.raw.type));
  }
  say(std::string(passive ? "passive, met " : "active, met ") + peer);
  Task<> echoes = echo(*own);
  if (passive) {
    echoes.start();
  } else {
    co_await rounds(*own, 10);
  }
  Over over;
  host.loop.spawn(watch_beside(endpoint, over));
  if (!passive) co_await obey(orders, endpoint, *own);
  co_await Over::Next(over);
}

Task<> tell(Host& host, std::uint64_t service) {
  Endpoint listener = value_of(co_await Endpoint::create(host.loop, Endpoint::Kind::kDatagrams));
  value_of(co_await listener.bind(service));
  ServiceFilter lopsided;
  lopsided.data_mask = data_of("x");
  const auto refused = co_await listener.listen(16, lopsided);
  if (refused || refused.error().code != std::errc::invalid_argument) {
    throw std::runtime_error("a mask without data");
  }
  value_of(co_await listener.listen());
  CompletionQueue cq = value_of(co_await host.device.create_cq(4));
  QueuePairOptions options;
  options.transport = Transport::kUd;
  QueuePair qp = value_of(co_await QueuePair::create(host.pd, cq, cq, options));
  say("listening");
  for (;;) {
    Endpoint::Event event = co_await listener.event();
    std::optional<Endpoint> asked = event.take_endpoint();
    if (!asked) continue;
    const std::string word = quoted(event.private_data());
    say("request " + hex(event.service()) + " " + word + " for " + hex(qp.number()));
    if (word == "'refuse'") {
      value_of(co_await asked->reject(RejectReason::kConsumer));
      continue;
    }
    Endpoint::Parameters parameters;
    parameters.private_data = data_of("welcome");
    parameters.queue_pair = qp.number();
    value_of(co_await asked->accept(parameters));
  }
}

Task<> learn(Host& host, std::vector<std::string> words) {
  Endpoint endpoint = value_of(co_await Endpoint::create(host.loop, Endpoint::Kind::kDatagrams));
  co_await resolved(endpoint, service_of(words[2]), gid_of(words[1]), Gid{});
  Endpoint::Parameters parameters;
  parameters.private_data = data_of(words[3]);
  value_of(co_await endpoint.connect(parameters));
  const Endpoint::Event event = co_await endpoint.event();
  if (event.type == Type::kEstablished) {
    say("told " + hex(event.queue_pair()) + " " + hex(event.qkey()) + " " +
        quoted(event.private_data()));
  } else {
    say("event " + std::to_string(event.raw.type) + " " + std::to_string(event.status()));
  }
}

Task<> play(Loop& loop, Orders& orders, std::vector<std::string> words) {
  Device device = value_of(co_await Device::open(loop));
  ProtectionDomain pd = value_of(co_await device.create_pd());
  Host host{loop, std::move(device), std::move(pd)};
  if (words[0] == "serve") co_await serve(host, service_of(words[1]));
  if (words[0] == "ask") co_await ask(host, orders, words);
  if (words[0] == "meet") co_await meet(host, orders, words);
  if (words[0] == "tell") co_await tell(host, service_of(words[1]));
  if (words[0] == "learn") co_await learn(host, words);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const bool right = (words.size() == 2 && (words[0] == "serve" || words[0] == "tell")) ||
                     ((words.size() == 4 || words.size() == 6) && words[0] == "ask") ||
                     (words.size() == 4 && (words[0] == "meet" || words[0] == "learn"));
  if (!right) {
    std::fprintf(stderr,
                 "usage: endpoints serve SERVICE | ask GID SERVICE WORD [OWN OTHER] | "
                 "meet OWN PEER SERVICE | tell SERVICE | learn GID SERVICE WORD\n");
    return 2;
  }
  try {
    const auto loop = value_of(Loop::create());
    Orders orders;
    run(*loop, orders, play(*loop, orders, words));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "endpoints: %s\n", error.what());
    return 1;
  }
}
