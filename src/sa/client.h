#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>

#include "base/random.h"
#include "base/time.h"
#include "mad/management_port.h"
#include "sa/capabilities.h"
#include "sa/memberships.h"
#include "sa/path_cache.h"
#include "sa/queries.h"
#include "sa/services.h"
#include "sa/subscriptions.h"
#include "sa/types.h"

namespace verbena::sa {

// Carries the client's answers and notices to its users.
using Event = std::variant<PathEvent, MemberEvent, NoticeEvent, ServiceEvent>;

// Talks to the subnet administration (SA) for all users of one port.  It finds paths, keeps
// memberships of multicast groups, subscribes to notices and registers services.
//
//   users --> paths() memberships() subscriptions() services() --> [Queries] --> MADs of QP1
//
// After each call the owner takes next_packet() and next_event() until both are empty, and asks for
// deadline() again.  The client does no I/O.  Only one thread may use it.
class Client {
 public:
  struct Config {
    PathCache::Config paths{};
    // True: the client subscribes to reports of changes of paths and groups.
    bool notices = true;
    friend bool operator==(const Config&, const Config&) = default;
  };

  // `port` names the port in the addresses of MADs.  The client sends nothing before set_port().
  static std::unique_ptr<Client> create(PortId port, const Config& config, Random random, Time now);
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  PathCache& paths() { return paths_; }
  const PathCache& paths() const { return paths_; }
  Memberships& memberships() { return memberships_; }
  const Memberships& memberships() const { return memberships_; }
  Subscriptions& subscriptions() { return subscriptions_; }
  const Subscriptions& subscriptions() const { return subscriptions_; }
  Services& services() { return services_; }
  const Services& services() const { return services_; }
  const Capabilities& capabilities() const { return capabilities_; }
  const Queries& queries() const { return queries_; }
  const mad::ManagementPort& mads() const { return mads_; }

  // Sets the state of the port.  Forgets answers of the SA that depend on the old state, or asks
  // for them again.
  void set_port(const PortState& state, Time now);
  // Handles the SM's request to register again (vol1 14.4.11).
  void reregister(Time now);

  // Returns true if the MAD is a response to one of this client's requests, or a report.  Programs
  // that share QP1 with the client may want the same report.
  bool wants(const wire::MadHeader& header) const;
  void receive(const mad::ManagementPort::Arrival& arrival, Time now);
  void on_timer(Time now);
  Time deadline() const;
  std::optional<mad::SendMad> next_packet() { return mads_.next_packet(); }
  std::optional<Event> next_event();

 private:
  Client(PortId port, const Config& config, Random& random, Time now);

  void pump(Time now);
  void handle_notice(const wire::SaNotice& notice, Time now);
  void receive_capabilities(const QueryResult& result, Time now);
  void dispatch(const QueryResult& result, Time now);

  PortId port_;
  PortState state_{};
  mad::ManagementPort mads_;
  mad::AgentNumber agent_;
  Queries queries_;
  PathCache paths_;
  Memberships memberships_;
  Subscriptions subscriptions_;
  Services services_;
  Capabilities capabilities_;
};

}  // namespace verbena::sa
