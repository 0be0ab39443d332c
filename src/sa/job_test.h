#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "sa/client.h"
#include "sa/job_manager_test.h"
#include "sim/world.h"

namespace verbena::sa {

// Starts a job in virtual time: each process of each host connects to all other hosts.
//
//   process 0 --.
//   process 1 ---+-- find_for_connection() -- sa::Client -.
//   ...       --'                                          +--> queue --> one request at a time
//                            requests of all other hosts -'
//
// All ports come up when the job starts, so no path is known before.  Only the queries for paths
// are simulated, not the connections that follow.
class Job {
 public:
  struct Plan {
    PathCache::Mode mode = PathCache::Mode::kGet;
    unsigned processes = 1;                           // processes of each host
    unsigned window = 16;                             // queries of a process that may be pending
    Duration one_way = std::chrono::microseconds(5);  // from a host to the manager, or back
    Duration route_timeout = std::chrono::seconds(60);
    bool notices = true;
    JobManager::Config manager{};
    std::uint64_t seed = 1;
  };
  struct Result {
    std::uint64_t routes = 0;  // routes that were found
    std::uint64_t failed = 0;
    std::uint64_t queries = 0;        // queries for paths, without repeats
    std::uint64_t subscriptions = 0;  // queries that are not for paths, without repeats
    std::uint64_t sent = 0;           // requests, including subscriptions and repeats
    std::uint64_t repeated = 0;
    Duration took{};  // from the start until the last route was found
  };

  explicit Job(const Plan& plan)
      : plan_(plan), random_(plan.seed), manager_(world_, plan.manager, random_.fork()) {
    manager_.pump = [this] { pump_manager(); };
    hosts_.resize(plan.manager.hosts);
    for (Host& host : hosts_) {
      host.client = Client::create({}, {.paths = {.mode = plan.mode}, .notices = plan.notices},
                                   random_.fork(), world_.now());
      host.processes.resize(plan.processes);
    }
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Result run() {
    Result result;
    for (unsigned i = 0; i < hosts_.size(); ++i) {
      Client& client = *hosts_[i].client;
      client.set_port({.active = true,
                       .lid = job_lid(i),
                       .sm_lid = kJobManagerLid,
                       .gids = {job_gid(i)},
                       .pkeys = {wire::kDefaultPkey}},
                      world_.now());
      result.subscriptions += client.queries().counters().asked;
    }
    for (unsigned i = 0; i < hosts_.size(); ++i) {
      for (unsigned process = 0; process < plan_.processes; ++process) connect(i, process);
      pump(i);
    }
    const std::uint64_t expected =
        std::uint64_t{hosts_.size()} * (hosts_.size() - 1) * plan_.processes;
    while (routes_ + failed_ < expected && world_.step()) {
    }
    result.routes = routes_;
    result.failed = failed_;
    result.took = last_route_at_ - Time{};
    for (const Host& host : hosts_) {
      const Queries::Counters& counters = host.client->queries().counters();
      result.queries += counters.asked;
      result.sent += counters.sent;
      result.repeated += counters.repeated;
    }
    result.queries -= result.subscriptions;
    return result;
  }

  const JobManager& manager() const { return manager_; }
  const Client& client(unsigned host) const { return *hosts_.at(host).client; }

 private:
  struct Process {
    unsigned next_distance = 1;  // the distance to the next host that it connects to
    unsigned pending = 0;
  };
  struct Host {
    std::unique_ptr<Client> client{};
    std::vector<Process> processes{};
    Time timer = kNever;
  };

  // Begins as many connections of a process as its window allows.
  void connect(unsigned from, unsigned process) {
    Process& state = hosts_[from].processes[process];
    while (state.next_distance < hosts_.size() && state.pending < plan_.window) {
      const unsigned to = (from + state.next_distance++) % static_cast<unsigned>(hosts_.size());
      const auto found = hosts_[from].client->paths().find_for_connection(
          {.destination = job_gid(to), .source = job_gid(from), .pkey = wire::kDefaultPkey},
          process, plan_.route_timeout, world_.now());
      if (!found) {
        count_route(failed_);
      } else if (std::holds_alternative<KnownPaths>(*found)) {
        count_route(std::get<KnownPaths>(*found).path.destination_lid == job_lid(to) ? routes_
                                                                                     : failed_);
      } else {
        ++state.pending;
      }
    }
  }
  void count_route(std::uint64_t& counter) {
    ++counter;
    last_route_at_ = world_.now();
  }
  void handle_event(unsigned host, const Event& event) {
    const auto* path = std::get_if<PathEvent>(&event);
    if (path == nullptr) return;
    count_route(path->error ? failed_ : routes_);
    const auto process = static_cast<unsigned>(path->cookie);
    --hosts_[host].processes[process].pending;
    connect(host, process);
  }

  // Delivers packets and events of a host, and sets its timer.
  void pump(unsigned i) {
    Client& client = *hosts_[i].client;
    while (const auto event = client.next_event()) handle_event(i, *event);
    while (const auto packet = client.next_packet()) {
      world_.after(plan_.one_way, [this, packet = *packet] {
        manager_.receive(packet);
        pump_manager();
      });
    }
    set_timer(hosts_[i].timer, client.deadline(), [this, i] {
      hosts_[i].client->on_timer(world_.now());
      pump(i);
    });
  }
  void pump_manager() {
    while (const auto packet = manager_.next_packet()) {
      world_.after(plan_.one_way, [this, packet = *packet] { arrive(packet); });
    }
    set_timer(manager_timer_, manager_.deadline(), [this] {
      manager_.on_timer();
      pump_manager();
    });
  }
  void arrive(const mad::SendMad& packet) {
    const auto host = static_cast<unsigned>(packet.to.path.destination_lid.value - kFirstJobLid);
    mad::Address from = packet.to;
    from.path = packet.to.path.reversed();
    hosts_.at(host).client->receive(
        {.destination_qpn = wire::kGsiQpn, .from = from, .mad = packet.mad}, world_.now());
    pump(host);
  }
  // Moves a timer to an earlier time.  The action of the later time will do nothing.
  void set_timer(Time& timer, Time due, auto action) {
    if (due >= timer) return;
    timer = due;
    world_.at(due, [&timer, due, action] {
      if (timer != due) return;
      timer = kNever;
      action();
    });
  }

  Plan plan_;
  Random random_;
  sim::World world_{};
  JobManager manager_;
  Time manager_timer_ = kNever;
  std::vector<Host> hosts_{};
  std::uint64_t routes_ = 0;
  std::uint64_t failed_ = 0;
  Time last_route_at_{};
};

}  // namespace verbena::sa
