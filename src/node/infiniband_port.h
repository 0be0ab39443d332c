#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "base/counter_names.h"
#include "base/error.h"
#include "base/random.h"
#include "base/time.h"
#include "ipoib/neighbours.h"
#include "link/burst.h"
#include "link/framing.h"
#include "node/port_table.h"
#include "rdmacm/types.h"
#include "sa/client.h"

namespace verbena::node {

// Implements the services of one InfiniBand port of a node.  It asks the SA, and acts as an IPoIB
// interface, so that the RDMA CM finds hosts by their IP addresses.
//
//   find_route(IP)  -->  Neighbours: ARP, or neighbour discovery  -->  GID
//   find_route(GID) ----------------------------------------------->  PathCache  -->  RouteFound
//
// The interface belongs to the partition of the P_Key that connection_pkey() chooses.  It exists
// only for address resolution: it carries no IP packets.
//
// Pure, like its parts.  After each call, the owner calls poll() and transmit() until they return
// nothing more, and then deadline() for the time of the next on_timer().
class InfinibandPort {
 public:
  // The queue pair of the IPoIB interface has this number.  Programs never have QP numbers of the
  // first range.
  static constexpr Qpn kIpoibQpn{2};
  static constexpr Duration kRouteTimeout = std::chrono::seconds(60);
  static constexpr std::size_t kRoutesMax = 65536;  // pending calls of find_route()
  // A port with several LIDs (LMC > 0) asks the SA for this number of paths, so that the route can
  // have an alternate path.
  static constexpr std::uint8_t kPathsPerRoute = 2;
  static constexpr std::size_t kFramesMax = 1024;  // frames that wait for transmit()
  static constexpr std::size_t kJoinsMax = 65536;  // joined groups and pending joins
  // A failed join of the broadcast group is retried after a backoff, which doubles up to the
  // maximum.
  static constexpr Duration kJoinBackoffMin = std::chrono::seconds(1);
  static constexpr Duration kJoinBackoffMax = std::chrono::seconds(16);
  static constexpr Duration kGroupTimeout = std::chrono::seconds(10);  // see join()

  InfinibandPort(PortId port, const sa::Client::Config& config, Random random);

  // Sets the state of the port.
  void set_state(const PortState& state, Time now);
  // Sets the addresses that the host has at the port.
  void set_addresses(std::vector<ipoib::OwnAddress> addresses, Time now);

  // ---- routes
  // Returns the address of this port from which an IP address can be reached; nothing if there is
  // none, or if the port is down.  For a multicast address, this is the port's first address of the
  // same family.  For a loopback address, it is the loopback address itself.
  std::optional<Gid> source_for(const Gid& ip) const;
  // Returns the port's first GID, if the port is active.
  std::optional<Gid> gid() const {
    if (state_.down_reason || state_.gids.empty()) return std::nullopt;
    return state_.gids.front();
  }
  // Returns the P_Key of the interface's partition.
  Pkey pkey() const { return pkey_; }
  struct PendingRoute {
    std::uint64_t token = 0;
    Gid destination{};
    bool by_gid = false;  // the destination is a GID, not an IP address
    Gid source{};         // the IP address, or the GID if by_gid, at which the route begins
  };
  // Finds a route.  A RouteFound follows.
  void find_route(const PendingRoute& request, Time now);

  struct FlushCounts {
    std::uint64_t paths = 0;
    std::uint64_t addresses = 0;
  };
  // Removes all cached paths and addresses, so that the next route queries them again.  Returns how
  // many were removed.
  FlushCounts flush(Time now);

  // ---- multicast groups of programs
  struct GroupRequest {
    std::uint64_t token = 0;
    std::uint16_t port_space = 0;  // selects the kind of MGID and the Q_Key
    Pkey pkey{};                   // a P_Key of the interface's partition; others are refused
    Gid group{};                   // an IP address; for zeros or 0.0.0.0 the SA chooses an MGID
    bool is_mgid = false;          // `group` is an MGID
    std::uint8_t join_state = 0;   // bits of MCMemberRecord
  };
  // Joins a group at the SA.  GroupJoined follows.  After a success, GroupLost may follow once.  As
  // on Linux, the partition's broadcast group provides the parameters that a program cannot give.
  // Therefore a join waits up to kGroupTimeout until the port is a member of the broadcast group.
  // REQUIRES: tokens increase from call to call.
  void join(const GroupRequest& request, Time now);
  // Leaves a group, or ends a pending join.  No output about the token follows.
  void leave(std::uint64_t token, Time now);

  // ---- packets and time
  // Takes a MAD of the SA class that has arrived at this port.
  void receive_mad(const mad::Address& from, std::span<const std::byte> mad, Time now);
  // Takes a packet for the interface's queue pair, or for one of its groups.
  void receive(const link::Arrival& arrival, Time now);
  // Returns true if the interface wants the packets for this group.
  bool is_member(const Gid& mgid) const {
    return broadcast_group_ && broadcast_group_->mgid == mgid;
  }
  void on_timer(Time now);
  Time deadline() const;
  // Appends packets of the interface to `burst`.  Returns true if more remain.
  bool transmit(link::Burst& burst);

  struct RouteFound {
    std::uint64_t token = 0;
    Result<rdmacm::Route> route{};
  };
  // Asks the owner to pass packets for the group to receive() if is_member() is true now, and to
  // stop passing them otherwise.
  struct GroupChanged {
    Gid mgid{};
  };
  struct GroupJoined {
    std::uint64_t token = 0;
    Result<wire::McMemberRecord> group{};
  };
  // Reports that a membership has ended, because the group's parameters have changed, or because
  // the SA refuses to renew the membership.
  struct GroupLost {
    std::uint64_t token = 0;
  };
  using Output = std::variant<mad::SendMad, RouteFound, GroupChanged, GroupJoined, GroupLost,
                              sa::ServiceEvent>;
  std::optional<Output> poll();

  // Returns the SA client.  REQUIRES: the caller calls run() after calls that change the client.
  sa::Client& client() { return *client_; }
  void run(Time now);
  const sa::Client& client() const { return *client_; }
  const ipoib::Neighbours& neighbours() const { return neighbours_; }
  struct Counters {
    std::uint64_t frames_sent = 0;
    std::uint64_t frames_dropped = 0;  // because of kFramesMax, or because no path is known
    std::uint64_t limit_routes = 0;
    std::uint64_t limit_joins = 0;
  };
  const Counters& counters() const { return counters_; }

 private:
  struct Route {
    PendingRoute request{};
    std::optional<sa::PathTicket> ticket{};  // empty: the neighbour is being resolved
    Time until{};
  };
  struct Frame {
    link::Address address{};
    Qpn qpn{};
    std::vector<std::byte> bytes{};
  };
  struct WaitingJoin {
    GroupRequest request{};
    Time until{};
  };
  struct Group {
    sa::MemberId member{};
    bool joined = false;
  };

  void carry_out(const ipoib::SendFrame& frame, Time now);
  void carry_out(const ipoib::Resolved& resolved, Time now);
  void on(const sa::PathEvent& event);
  void on(const sa::MemberEvent& event, Time now);
  void on(const sa::NoticeEvent& event);
  void find_path(Route& route, const Gid& destination, Time now);
  struct PathsOfRoute {
    wire::PathRecord path{};
    std::optional<wire::PathRecord> alternate{};
  };
  void end_route(std::uint64_t token, const Result<PathsOfRoute>& paths);
  rdmacm::Route route_of(const PendingRoute& request, const wire::PathRecord& path) const;
  rdmacm::Route loopback_route(const PendingRoute& request) const;
  void join_broadcast_group(Time now);
  void leave_broadcast_group(Time now);
  void on_broadcast_group(const sa::MemberEvent& event, Time now);
  void join_at_sa(const GroupRequest& request, Time now);
  void fail_join(std::uint64_t token, const Error& error);
  void expire_joins(Time now);
  ipoib::Interface interface() const;
  std::optional<link::Address> address_to(const ipoib::SendFrame& frame, Time now);
  Gid first_gid() const { return state_.gids.empty() ? Gid{} : state_.gids.front(); }
  bool is_own(const Gid& gid) const;

  PortId port_;
  PortState state_{.down_reason = "its state is not known yet"};
  Pkey pkey_{};
  std::vector<ipoib::OwnAddress> addresses_{};
  std::unique_ptr<sa::Client> client_;
  ipoib::Neighbours neighbours_;
  std::map<std::uint64_t, Route> routes_{};         // by token
  std::optional<sa::MemberId> broadcast_member_{};  // the join or membership of the broadcast group
  std::optional<wire::McMemberRecord> broadcast_group_{};  // the broadcast group, once it is joined
  Time join_retry_at_ = kNever;
  Duration join_backoff_ = kJoinBackoffMin;
  // Joins that wait for the broadcast group, by token.  The first join has waited longest.
  std::map<std::uint64_t, WaitingJoin> waiting_joins_{};
  std::map<std::uint64_t, Group> groups_{};  // joins that were passed to the SA client, by token
  std::map<sa::MemberId, std::uint64_t> token_of_member_{};
  std::deque<Frame> frames_{};
  std::deque<Output> outputs_{};
  Counters counters_{};
  std::uint32_t psn_ = 0;
};

inline constexpr auto kInfinibandCounterNames =
    std::to_array<MemberName<InfinibandPort::Counters>>({
        {&InfinibandPort::Counters::frames_sent, "ipoib_frames_sent"},
        {&InfinibandPort::Counters::frames_dropped, "ipoib_frames_dropped"},
        {&InfinibandPort::Counters::limit_routes, "limit_routes"},
        {&InfinibandPort::Counters::limit_joins, "limit_subnet_joins"},
    });
static_assert(names_every_counter(kInfinibandCounterNames));

}  // namespace verbena::node
