#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "sa/client.h"
#include "sa/manual_sa_test.h"
#include "sa/model_sa_test.h"
#include "sim/faults.h"
#include "sim/world.h"

// Connects clients and managers of one subnet in virtual time.
namespace verbena::sa {

class Net {
 public:
  struct Host {
    std::unique_ptr<Client> client{};
    PortState port{};
    Time timer = kNever;
    std::vector<Event> events{};
  };

  Net(std::uint64_t seed, unsigned hosts, const Client::Config& config,
      const sim::Faults& faults = {})
      : random_(seed), wire_(random_.fork(), faults) {
    for (unsigned i = 0; i < 2; ++i) {
      managers_.push_back(std::make_unique<ModelSa>(
          world, subnet, Lid{static_cast<std::uint16_t>(1 + i)}, random_.fork()));
      managers_.back()->pump = [this] { pump(); };
    }
    for (unsigned i = 0; i < hosts; ++i) {
      Host host{.client = Client::create({}, config, random_.fork(), world.now())};
      host.port = {.active = true,
                   .lid = {static_cast<std::uint16_t>(100 + i)},
                   .sm_lid = {1},
                   .gids = {gid(i)},
                   .pkeys = {{0xffff}}};
      subnet[gid(i)] = host.port.lid;
      hosts_.push_back(std::move(host));
    }
    for (unsigned i = 0; i < hosts; ++i) report_port_state(i);
  }
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;

  sim::World world{};
  Subnet subnet{};

  static Gid gid(unsigned host) { return test_gid(1000 + host); }
  Host& host(unsigned i) { return hosts_.at(i); }
  Client& client(unsigned i) { return *hosts_.at(i).client; }
  unsigned hosts() const { return static_cast<unsigned>(hosts_.size()); }
  ModelSa& manager(unsigned i) { return *managers_.at(i); }
  ModelSa& master() { return *managers_.at(master_); }
  void set_faults(const sim::Faults& faults) { wire_.set_faults(faults); }
  Random& random() { return random_; }

  // Reports the state of a port to its client.
  void report_port_state(unsigned i) {
    client(i).set_port(hosts_[i].port, world.now());
    pump();
  }
  void set_port_active(unsigned i, bool active) {
    Host& host_state = hosts_.at(i);
    if (host_state.port.active == active) return;
    host_state.port.active = active;
    if (active) {
      subnet[gid(i)] = host_state.port.lid;
    } else {
      subnet.erase(gid(i));
      master().forget_port(gid(i), host_state.port.lid);
    }
    record_lid(i);
    report_port_state(i);
    report(active ? wire::TrapNumber::kGidInService : wire::TrapNumber::kGidOutOfService, gid(i));
  }
  void change_lid(unsigned i, Lid lid) {
    set_port_active(i, false);
    hosts_.at(i).port.lid = lid;
    set_port_active(i, true);
  }
  void report(wire::TrapNumber trap, const Gid& gid) {
    master().report(trap, gid);
    pump();
  }
  // Makes a manager take over.  If `master` is the current manager, it restarts.
  void change_master(unsigned master) {
    manager(master_).die();
    master_ = master;
    manager(master).start();
    for (unsigned i = 0; i < hosts(); ++i) {
      hosts_[i].port.sm_lid = manager(master).lid();
      if (hosts_[i].port.active) report_port_state(i);
      client(i).reregister(world.now());
    }
    pump();
  }

  // Describes a time in which a port had a LID.
  struct LidPeriod {
    Time since{};
    Lid lid{};  // 0: the port was down
  };
  // Returns true if the port had the LID at some time after `since`.
  bool had_lid_since(unsigned i, Lid lid, Time since) {
    const auto& periods = lid_periods_[i];
    if (periods.empty()) return lid == hosts_.at(i).port.lid;
    for (std::size_t at = 0; at < periods.size(); ++at) {
      const Time end = at + 1 < periods.size() ? periods[at + 1].since : kNever;
      if (periods[at].lid == lid && end >= since) return true;
    }
    const Lid first_lid{static_cast<std::uint16_t>(100 + i)};
    return lid == first_lid && periods.front().since >= since;
  }

  // Delivers packets and events, and sets timers.
  void pump() {
    for (std::size_t i = 0; i < managers_.size(); ++i) {
      ModelSa& manager = *managers_[i];
      while (const auto packet = manager.next_packet()) transmit(*packet, true);
      const Time due = manager.deadline();
      if (due == kNever || due >= manager_timers_[i]) continue;
      manager_timers_[i] = due;
      world.at(due, [this, i] {
        manager_timers_[i] = kNever;
        managers_[i]->on_timer();
        pump();
      });
    }
    for (unsigned i = 0; i < hosts(); ++i) {
      Host& host_state = hosts_[i];
      while (const auto packet = host_state.client->next_packet()) transmit(*packet, false);
      while (auto event = host_state.client->next_event())
        host_state.events.push_back(*std::move(event));
      const Time due = host_state.client->deadline();
      if (due == kNever || due >= host_state.timer) continue;
      host_state.timer = due;
      world.at(due, [this, i] {
        hosts_[i].timer = kNever;
        client(i).on_timer(world.now());
        pump();
      });
    }
  }
  void run_for(Duration duration) {
    pump();
    world.run_until(world.now() + duration);
  }

 private:
  void record_lid(unsigned i) {
    lid_periods_[i].push_back(
        {world.now(), hosts_.at(i).port.active ? hosts_.at(i).port.lid : Lid{}});
  }
  void transmit(const mad::SendMad& packet, bool may_duplicate) {
    auto arrivals = wire_.next().arrivals;
    // An InfiniBand network duplicates no packets, but a manager may send an answer twice.  So only
    // packets of managers are duplicated.
    if (!may_duplicate && arrivals.size() > 1) arrivals.resize(1);
    for (const Duration delay : arrivals) {
      world.after(delay, [this, packet] { arrive(packet); });
    }
  }
  void arrive(const mad::SendMad& packet) {
    const Lid destination = packet.to.path.destination_lid;
    for (auto& manager : managers_) {
      if (manager->lid() == destination) manager->receive(packet);
    }
    for (Host& host_state : hosts_) {
      if (host_state.port.lid != destination || !host_state.port.active) continue;
      mad::Address from = packet.to;
      from.path = packet.to.path.reversed();
      host_state.client->receive(
          {.destination_qpn = wire::kGsiQpn, .from = from, .mad = packet.mad}, world.now());
    }
    pump();
  }

  Random random_;
  sim::FaultyWire wire_;
  std::vector<std::unique_ptr<ModelSa>> managers_{};
  std::array<Time, 2> manager_timers_{kNever, kNever};
  unsigned master_ = 0;
  std::vector<Host> hosts_{};
  std::map<unsigned, std::vector<LidPeriod>> lid_periods_{};
};

}  // namespace verbena::sa
