// Measures the code that runs for each packet and request, without sockets, threads or other
// processes.
#include <benchmark/benchmark.h>
#include <malloc.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <span>
#include <variant>
#include <vector>

#include "hca/test_pair.h"
#include "link/framing.h"
#include "sa/job_manager_test.h"
#include "sa/path_cache.h"
#include "wire/icrc.h"

namespace verbena {
namespace {

using hca::testing::Pair;

std::size_t bytes_of(const benchmark::State& state) {
  return static_cast<std::size_t>(state.range(0));
}

void count_bytes(benchmark::State& state) {
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

// Measures a copy of memory, to compare the time with that of a checksum.
void copy(benchmark::State& state) {
  const std::vector<std::byte> from(bytes_of(state), std::byte{0x5a});
  std::vector<std::byte> to(from.size());
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
  }
  count_bytes(state);
}

link::Address address() {
  return {.source = wire::ipv4_gid(0x7f000001),
          .destination = wire::ipv4_gid(0x7f000001),
          .source_port = 0xc001};
}

void seal(benchmark::State& state) {
  std::vector<std::byte> datagram(bytes_of(state) + 28, std::byte{0x5a});
  for (auto _ : state) {
    link::seal(address(), datagram, 0);
    benchmark::ClobberMemory();
  }
  count_bytes(state);
}

void open(benchmark::State& state) {
  std::vector<std::byte> datagram(bytes_of(state) + 28, std::byte{0x5a});
  link::seal(address(), datagram, 3);  // 3: the index of the datagram in a batch
  for (auto _ : state) {
    auto arrival = link::open(address(), datagram);
    if (!arrival) state.SkipWithError("a good packet is refused");
    benchmark::DoNotOptimize(arrival);
  }
  count_bytes(state);
}

// Measures a system call, to compare the time with that of posting and polling.
void system_call(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(syscall(SYS_getppid));
}

void empty_poll(benchmark::State& state) {
  Pair pair;
  hca::WorkCompletion wc;
  for (auto _ : state) benchmark::DoNotOptimize(pair.a.engine.poll_cq(pair.a.cq, {&wc, 1}));
}

void deliver(hca::testing::Host& from, hca::testing::Host& to, link::Burst& burst, Time now) {
  from.engine.transmit(burst, now);
  for (const auto& packet : burst.packets()) {
    to.engine.receive({packet.address, burst.transport(packet)}, now);
  }
  burst.clear();
}

// Measures one message without the ICRC: two posts, the work of both engines, the acknowledgement
// and two completions.
void message(benchmark::State& state) {
  Pair pair({.mtu = hca::Mtu::k4096});
  link::Burst burst;
  hca::WorkCompletion wc[2];
  const Time now{std::chrono::seconds(1)};
  for (auto _ : state) {
    (void)pair.receive(1, 0, bytes_of(state)).has_value();
    (void)pair.send(2, 0, bytes_of(state)).has_value();
    deliver(pair.a, pair.b, burst, now);
    deliver(pair.b, pair.a, burst, now);
    if (pair.a.engine.poll_cq(pair.a.cq, wc) != 1u || pair.b.engine.poll_cq(pair.b.cq, wc) != 1u) {
      state.SkipWithError("a message without its completions");
    }
  }
  count_bytes(state);
}

// Represents a port whose path cache has the paths to `destinations` hosts.
struct KnownPaths {
  explicit KnownPaths(unsigned destinations) {
    const Time now{};
    cache.set_port(port, sa::PortChange::between({}, port), now);
    queries.set_port({}, port, now);
    for (unsigned i = 0; i < destinations; ++i) learn(to(i));
  }

  static sa::PathQuery to(unsigned destination) {
    return {.destination = sa::job_gid(destination + 1), .source = sa::job_gid(0)};
  }
  // Sends the query, and adds the path of a simulated reply to the cache.
  void learn(const sa::PathQuery& query) {
    const Time now{};
    (void)cache.find(query, 0, std::chrono::seconds(10), now);
    const auto request = mads.next_packet();
    mad::Mad answer = request->mad;
    auto header =
        wire::decode_exact<wire::SaHeader>(std::span(answer).first<wire::kSaHeaderBytes>());
    header.mad.response = true;
    wire::encode_to(answer, header);
    const auto record = std::span(answer).subspan(wire::kSaHeaderBytes);
    wire::encode_to(record, wire::PathRecord{.destination_gid = query.destination,
                                             .source_gid = query.source,
                                             .destination_lid = {7},
                                             .source_lid = {5},
                                             .reversible = true});
    mads.receive({.destination_qpn = wire::kGsiQpn, .from = request->to, .mad = answer}, now);
    while (const auto message = mads.next_message()) queries.receive(*message, now);
    while (const auto end = queries.next_result()) cache.receive(*end, now);
    while (cache.next_event()) {
    }
  }

  sa::PortState port{.active = true,
                     .lid = {5},
                     .sm_lid = {1},
                     .gids = {sa::job_gid(0)},
                     .pkeys = {wire::kDefaultPkey}};
  mad::ManagementPort mads{};
  mad::AgentNumber agent{*mads.add_agent({.mgmt_class = 3, .class_version = 2, .rmpp_version = 1})};
  sa::Queries queries{mads, agent, Random(1)};
  sa::PathCache cache{{}, queries, Random(2)};
};

// Finds the paths in turn.  A loop over one path would be too fast, because the path would remain
// in the processor's cache.
void path_hit(benchmark::State& state) {
  const auto destinations = static_cast<unsigned>(state.range(0));
  KnownPaths known(destinations);
  unsigned next = 0;
  for (auto _ : state) {
    const auto found = known.cache.find(KnownPaths::to(next), 0, std::chrono::seconds(10), Time{});
    if (!found || !std::holds_alternative<sa::KnownPaths>(*found)) {
      state.SkipWithError("a path is not known");
    }
    next = (next + 1) % destinations;
  }
}

// Measures the memory of the cached paths, in a single iteration.
void path_memory(benchmark::State& state) {
  const auto destinations = static_cast<unsigned>(state.range(0));
  for (auto _ : state) {
    const std::size_t before = mallinfo2().uordblks;
    const KnownPaths known(destinations);
    benchmark::DoNotOptimize(known.cache.size());
    state.counters["bytes"] = static_cast<double>(mallinfo2().uordblks - before);
  }
}

BENCHMARK(copy)->Arg(64)->Arg(1024)->Arg(4096);
BENCHMARK(seal)->Arg(64)->Arg(1024)->Arg(4096);
BENCHMARK(open)->Arg(64)->Arg(1024)->Arg(4096);
BENCHMARK(system_call);
BENCHMARK(empty_poll);
BENCHMARK(message)->Arg(64)->Arg(4096);
BENCHMARK(path_hit)->Arg(64)->Arg(4096);
BENCHMARK(path_memory)->Arg(4096)->Iterations(1);

}  // namespace
}  // namespace verbena

BENCHMARK_MAIN();
