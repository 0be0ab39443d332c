// Uses the InfiniBand CM with the C++ API, between two hosts:
//   endpoints serve SERVICE              accepts or rejects each request as its private data says
//   endpoints ask GID SERVICE WORD [OWN OTHER]
//                                        connects to `serve`, with WORD as private data; OWN and
//                                        OTHER are the GIDs at the ends of an alternate path
//   endpoints meet OWN PEER SERVICE      connects peer to peer
//   endpoints tell SERVICE               answers for a datagram service
//   endpoints learn GID SERVICE WORD     looks up the queue pair of a datagram service
//
// Prints a line for each event.  `ask`, and the active side of `meet`, read commands from their
// standard input:
//   rounds N                sends and receives N messages
//   cross                   sends and receives messages until the queue pair has migrated
//   offer OWN OTHER WORD    offers an alternate path
//   migrate                 migrates to the alternate path
//   bye WORD                disconnects and ends
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
constexpr std::uint64_t kServiceMask = ~std::uint64_t{0xff};  // a server has 256 services
enum RequestId : std::uint64_t { kSent, kReceived };

void print_line(const std::string& line) {
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

class CommandInput {
 public:
  bool is_open() const { return is_open_; }
  void read() {
    std::array<char, 256> buffer{};
    const ssize_t count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (count <= 0) {
      is_open_ = false;
      return;
    }
    for (const char letter : std::span(buffer).first(static_cast<std::size_t>(count))) {
      if (letter == '\n') {
        lines.push(std::exchange(line_, {}));
      } else {
        line_ += letter;
      }
    }
  }
  detail::Mailbox<std::string> lines{};

 private:
  bool is_open_ = true;
  std::string line_{};
};

void run(Loop& loop, CommandInput& input, Task<> task) {
  task.start();
  while (!task.done()) {
    if (loop.run_ready()) continue;
    std::array<pollfd, 2> fds{
        {{.fd = loop.fd(), .events = POLLIN, .revents = 0},
         {.fd = input.is_open() ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0}}};
    ::poll(fds.data(), fds.size(), -1);
    if (fds[1].revents != 0) input.read();
  }
  task.take();
}

// ---- a queue pair with one buffer to receive into and another one to send from

struct Host {
  Loop& loop;
  Device device;
  ProtectionDomain pd;
};

struct TestQp {
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

Task<std::unique_ptr<TestQp>> create_test_qp(const Host& host) {
  std::vector<std::byte> bytes(2 * kBytes);
  MemoryRegion memory = value_of(co_await host.pd.register_memory(bytes, Access::kLocalWrite));
  CompletionQueue cq = value_of(co_await host.device.create_cq(16));
  QueuePair qp = value_of(co_await QueuePair::create(host.pd, cq, cq));
  co_return std::make_unique<TestQp>(std::move(bytes), std::move(memory), std::move(cq),
                                     std::move(qp));
}

// Waits for completions.  Returns false if the connection has ended.
Task<bool> await_completions(TestQp& test_qp, int count) {
  std::array<Completion, 1> buffer{};
  for (; count > 0; --count) {
    const std::span<Completion> done = co_await test_qp.cq.next(buffer);
    if (done[0].status != 0) co_return false;
  }
  co_return true;
}

// Answers each message with another message until the connection has ended.  The contents of the
// messages do not matter.
Task<> echo(TestQp& test_qp) {
  for (;;) {
    const bool received = co_await await_completions(test_qp, 1);
    if (!received) co_return;
    test_qp.receive();
    test_qp.send();
    const bool sent = co_await await_completions(test_qp, 1);
    if (!sent) co_return;
  }
}

Task<> round(TestQp& test_qp) {
  test_qp.send();
  const bool succeeded = co_await await_completions(test_qp, 2);
  if (!succeeded) throw std::runtime_error("the connection has ended");
  test_qp.receive();
}

Task<> rounds(TestQp& test_qp, int count) {
  for (int i = 0; i < count; ++i) co_await round(test_qp);
  print_line("rounds " + std::to_string(count));
}

Task<> exchange_until_migrated(TestQp& test_qp) {
  co_await round(test_qp);
  print_line("crossing");
  while (!test_qp.migrated) co_await round(test_qp);
  co_await round(test_qp);
  print_line("crossed");
}

Task<> watch_paths(TestQp& test_qp) {
  for (;;) {
    const QueuePair::Event event = co_await test_qp.qp.event();
    if (event == QueuePair::Event::kMigrated) {
      test_qp.migrated = true;
      print_line("migrated");
    }
    if (event == QueuePair::Event::kMigrationError) print_line("migration error");
  }
}

// ---- both sides

// Prints the endpoint's events until the connection has ended.
Task<> watch(Endpoint& endpoint) {
  for (;;) {
    Endpoint::Event event = co_await endpoint.event();
    switch (event.type) {
      case Type::kEstablished: print_line("established " + quoted(event.private_data())); break;
      case Type::kPathAnswered:
        print_line("answered " + std::to_string(event.status()) + " " +
                   quoted(event.additional_info()));
        break;
      case Type::kPathUnanswered: print_line("unanswered"); break;
      case Type::kPathOffered: {
        const AlternatePath path = event.alternate_path().value();
        const std::string word = quoted(event.private_data());
        print_line("offered " + name_of(path.source) + " " + name_of(path.destination) + " " +
                   word);
        const bool accepts = word != "'no'";
        const std::string reason = accepts ? "" : "no need";
        value_of(co_await endpoint.answer_path(
            accepts ? PathStatus::kAccepted : PathStatus::kRejected, {}, bytes_of(reason)));
        break;
      }
      case Type::kDisconnected:
        print_line("disconnected " + std::to_string(event.status()) + " " +
                   quoted(event.private_data()));
        co_return;
      default:
        print_line("event " + std::to_string(event.raw.type) + " " +
                   std::to_string(event.status()));
        co_return;
    }
  }
}

using Ended = detail::Mailbox<bool>;
// Prints the endpoint's events until the connection has ended, and then notifies `ended`.
Task<> watch_and_notify(Endpoint& endpoint, Ended& ended) {
  co_await watch(endpoint);
  ended.push(true);
}

Task<> run_commands(CommandInput& input, Endpoint& endpoint, TestQp& test_qp) {
  for (;;) {
    const std::string line = co_await detail::Mailbox<std::string>::Next(input.lines);
    std::istringstream words(line);
    std::string command, own, other, word;
    words >> command;
    if (command == "rounds") {
      int count = 0;
      words >> count;
      co_await rounds(test_qp, count);
    } else if (command == "cross") {
      co_await exchange_until_migrated(test_qp);
    } else if (command == "offer") {
      words >> own >> other >> word;
      AlternatePath path;
      path.source = gid_of(own);
      path.destination = gid_of(other);
      const auto offered = co_await endpoint.offer_path(path, bytes_of(word));
      print_line(offered ? "offering" : "no offer: " + std::string(offered.error().text));
    } else if (command == "migrate") {
      vb_qp_attr attributes{};
      value_of(co_await test_qp.qp.modify(attributes, 1 << 18));  // IBV_QP_PATH_MIG_STATE: MIGRATED
      print_line("migrating");
    } else if (command == "bye") {
      words >> word;
      value_of(co_await endpoint.disconnect(bytes_of(word)));
      co_return;
    } else {
      throw std::runtime_error("no such command: " + line);
    }
  }
}

// ---- the programs

// Answers one request, and then serves its connection.
Task<> answer(Host& host, Endpoint endpoint, std::string word, bool has_alternate) {
  if (word == "'refuse'") {
    const Gid other_gid = gid_of("10.99.99.99");
    value_of(co_await endpoint.reject(RejectReason::kPrimaryGidRejected, bytes_of("not here"),
                                      std::as_bytes(std::span(other_gid))));
    co_return;
  }
  const std::unique_ptr<TestQp> test_qp = co_await create_test_qp(host);
  value_of(co_await endpoint.set_queue_pair(test_qp->qp));
  test_qp->receive();
  Endpoint::Parameters parameters;
  parameters.private_data = data_of("welcome");
  parameters.alternate_accepted = has_alternate && word != "'single'";
  value_of(co_await endpoint.accept(parameters));
  Task<> echoes = echo(*test_qp);
  echoes.start();
  Task<> paths = watch_paths(*test_qp);
  paths.start();
  co_await watch(endpoint);
}

Task<> serve(Host& host, std::uint64_t service) {
  Endpoint listener = value_of(co_await Endpoint::create(host.loop));
  value_of(co_await listener.bind(service));
  ServiceFilter filter;
  filter.mask = kServiceMask;
  value_of(co_await listener.listen(16, filter));
  Endpoint second = value_of(co_await Endpoint::create(host.loop));
  value_of(co_await second.bind(service + 1));
  const auto second_listen = co_await second.listen();
  if (second_listen || second_listen.error().code != std::errc::address_in_use) {
    throw std::runtime_error("two endpoints may listen on one service");
  }
  print_line("listening");
  for (;;) {
    Endpoint::Event event = co_await listener.event();
    std::optional<Endpoint> new_endpoint = event.take_endpoint();
    if (!new_endpoint) continue;
    const std::string word = quoted(event.private_data());
    print_line("request " + hex(event.service()) + " " + word);
    host.loop.spawn(
        answer(host, std::move(*new_endpoint), word, event.alternate_path().has_value()));
  }
}

Task<> resolve(Endpoint& endpoint, std::uint64_t service, Gid to, Gid source) {
  value_of(co_await endpoint.resolve(service, to, kTimeoutMs, source));
  const Endpoint::Event address = co_await endpoint.event();
  if (address.type != Type::kAddressResolved) throw std::runtime_error("no such address");
  value_of(co_await endpoint.resolve_route(kTimeoutMs));
  const Endpoint::Event route = co_await endpoint.event();
  if (route.type != Type::kRouteResolved) throw std::runtime_error("no route");
}

Task<> connect_to_server(Host& host, CommandInput& input, std::vector<std::string> words) {
  const std::unique_ptr<TestQp> test_qp = co_await create_test_qp(host);
  Endpoint endpoint = value_of(co_await Endpoint::create(host.loop));
  co_await resolve(endpoint, service_of(words[2]), gid_of(words[1]), Gid{});
  value_of(co_await endpoint.set_queue_pair(test_qp->qp));
  test_qp->receive();
  Endpoint::Parameters parameters;
  parameters.private_data = data_of(words[3]);
  if (words.size() > 5) {
    parameters.alternate.emplace();
    parameters.alternate->source = gid_of(words[4]);
    parameters.alternate->destination = gid_of(words[5]);
    parameters.retry_count = 1;  // so that the migration to the alternate path begins soon
  }
  value_of(co_await endpoint.connect(parameters));
  const Endpoint::Event event = co_await endpoint.event();
  if (event.type == Type::kRejected) {
    Gid other_gid{};
    std::copy_n(event.raw.additional_info, other_gid.size(), other_gid.begin());
    print_line("rejected " + std::to_string(event.status()) + " " + quoted(event.private_data()) +
               " " + name_of(other_gid));
    co_return;
  }
  if (event.type != Type::kConnectResponse) {
    throw std::runtime_error("connect: event " + std::to_string(event.raw.type) + ", status " +
                             std::to_string(event.status()));
  }
  print_line("accepted " + quoted(event.private_data()) +
             (event.alternate_accepted() ? " both" : ""));
  value_of(co_await endpoint.establish(bytes_of("ready")));
  Task<> paths = watch_paths(*test_qp);
  paths.start();
  Ended ended;
  host.loop.spawn(watch_and_notify(endpoint, ended));
  co_await run_commands(input, endpoint, *test_qp);
  co_await Ended::Next(ended);
}

Task<> connect_peer_to_peer(Host& host, CommandInput& input, std::vector<std::string> words) {
  const std::unique_ptr<TestQp> test_qp = co_await create_test_qp(host);
  Endpoint endpoint = value_of(co_await Endpoint::create(host.loop));
  co_await resolve(endpoint, service_of(words[3]), gid_of(words[2]), gid_of(words[1]));
  value_of(co_await endpoint.set_queue_pair(test_qp->qp));
  test_qp->receive();
  Endpoint::Parameters parameters;
  parameters.private_data = data_of(words[1]);
  parameters.peer_to_peer = true;
  value_of(co_await endpoint.connect(parameters));
  print_line("connecting");
  Endpoint::Event event = co_await endpoint.event();
  const std::string peer = quoted(event.private_data());
  const bool is_passive = event.type == Type::kConnectRequest;
  if (is_passive) {
    if (event.take_endpoint())
      throw std::runtime_error("the request of the peer has created an endpoint");
    value_of(co_await endpoint.accept(parameters));
    const Endpoint::Event established = co_await endpoint.event();
    if (established.type != Type::kEstablished) throw std::runtime_error("not established");
  } else if (event.type == Type::kConnectResponse) {
    value_of(co_await endpoint.establish());
  } else {
    throw std::runtime_error("event " + std::to_string(event.raw.type));
  }
  print_line(std::string(is_passive ? "passive, met " : "active, met ") + peer);
  Task<> echoes = echo(*test_qp);
  if (is_passive) {
    echoes.start();
  } else {
    co_await rounds(*test_qp, 10);
  }
  Ended ended;
  host.loop.spawn(watch_and_notify(endpoint, ended));
  if (!is_passive) co_await run_commands(input, endpoint, *test_qp);
  co_await Ended::Next(ended);
}

Task<> serve_datagrams(Host& host, std::uint64_t service) {
  Endpoint listener = value_of(co_await Endpoint::create(host.loop, Endpoint::Kind::kDatagrams));
  value_of(co_await listener.bind(service));
  ServiceFilter mask_without_data;
  mask_without_data.data_mask = data_of("x");
  const auto refused = co_await listener.listen(16, mask_without_data);
  if (refused || refused.error().code != std::errc::invalid_argument) {
    throw std::runtime_error("a mask without data is accepted");
  }
  value_of(co_await listener.listen());
  CompletionQueue cq = value_of(co_await host.device.create_cq(4));
  QueuePairOptions options;
  options.transport = Transport::kUd;
  QueuePair qp = value_of(co_await QueuePair::create(host.pd, cq, cq, options));
  print_line("listening");
  for (;;) {
    Endpoint::Event event = co_await listener.event();
    std::optional<Endpoint> new_endpoint = event.take_endpoint();
    if (!new_endpoint) continue;
    const std::string word = quoted(event.private_data());
    print_line("request " + hex(event.service()) + " " + word + " for " + hex(qp.number()));
    if (word == "'refuse'") {
      value_of(co_await new_endpoint->reject(RejectReason::kConsumer));
      continue;
    }
    Endpoint::Parameters parameters;
    parameters.private_data = data_of("welcome");
    parameters.queue_pair = qp.number();
    value_of(co_await new_endpoint->accept(parameters));
  }
}

Task<> resolve_datagram_service(Host& host, std::vector<std::string> words) {
  Endpoint endpoint = value_of(co_await Endpoint::create(host.loop, Endpoint::Kind::kDatagrams));
  co_await resolve(endpoint, service_of(words[2]), gid_of(words[1]), Gid{});
  Endpoint::Parameters parameters;
  parameters.private_data = data_of(words[3]);
  value_of(co_await endpoint.connect(parameters));
  const Endpoint::Event event = co_await endpoint.event();
  if (event.type == Type::kEstablished) {
    print_line("told " + hex(event.queue_pair()) + " " + hex(event.qkey()) + " " +
               quoted(event.private_data()));
  } else {
    print_line("event " + std::to_string(event.raw.type) + " " + std::to_string(event.status()));
  }
}

Task<> run_program(Loop& loop, CommandInput& input, std::vector<std::string> words) {
  Device device = value_of(co_await Device::open(loop));
  ProtectionDomain pd = value_of(co_await device.create_pd());
  Host host{loop, std::move(device), std::move(pd)};
  if (words[0] == "serve") co_await serve(host, service_of(words[1]));
  if (words[0] == "ask") co_await connect_to_server(host, input, words);
  if (words[0] == "meet") co_await connect_peer_to_peer(host, input, words);
  if (words[0] == "tell") co_await serve_datagrams(host, service_of(words[1]));
  if (words[0] == "learn") co_await resolve_datagram_service(host, words);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const bool is_valid = (words.size() == 2 && (words[0] == "serve" || words[0] == "tell")) ||
                        ((words.size() == 4 || words.size() == 6) && words[0] == "ask") ||
                        (words.size() == 4 && (words[0] == "meet" || words[0] == "learn"));
  if (!is_valid) {
    std::fprintf(stderr,
                 "usage: endpoints serve SERVICE | ask GID SERVICE WORD [OWN OTHER] | "
                 "meet OWN PEER SERVICE | tell SERVICE | learn GID SERVICE WORD\n");
    return 2;
  }
  try {
    const auto loop = value_of(Loop::create());
    CommandInput input;
    run(*loop, input, run_program(*loop, input, words));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "endpoints: %s\n", error.what());
    return 1;
  }
}
