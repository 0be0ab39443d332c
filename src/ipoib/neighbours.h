#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/strong.h"
#include "base/time.h"
#include "ipoib/counters.h"
#include "ipoib/interface.h"
#include "ipoib/outbox.h"
#include "ipoib/table.h"
#include "ipoib/types.h"
#include "link/address.h"
#include "wire/ipoib.h"

namespace verbena::ipoib {

// Finds the GID and the QPN of the hosts on the link of one IPoIB interface, by ARP for IPv4 (RFC
// 826) and by neighbour discovery for IPv6 (RFC 4861), in the form of RFC 4391.  The class also
// answers requests for the interface's own addresses.
//
//                 resolve()               an answer
//   (no entry) --------------> INCOMPLETE ----------> REACHABLE
//        ^                       |     ^               |     ^
//        | nobody answers        |     | used after    |     | an answer
//        |<----------------------'     | kAgeMax       v     |
//        |                             '----------- STALE    |
//        | no answer to kTries                         |     |
//        '------------------------ PROBE <-------------'     |
//                                    | use: sends a request  |
//                                    '-----------------------'
//
// Calls of resolve() that wait for the same address are the waiters of its entry, and share its
// requests.  Each waiter waits for kAnswerTimeout, and requests are repeated as long as a waiter
// waits.  A stale entry remains in use while a probe (a request) confirms it, so callers do not
// wait.  The first probe goes to the neighbour, but repeats go to the group, because the neighbour
// may have moved.  If no probe is answered, the entry is removed.
//
// The interface sends nothing before set_joined(), because all frames need the Q_Key of the
// broadcast group.  Before the join, requests wait, but not longer than kGroupTimeout.
//
// Only resolve() creates entries.  Messages of other hosts can change entries but not create them,
// so that nobody can fill the table.  The sender in a frame must be the sender of its packet.
//
// Invariants:
//  * Each call of resolve() that returns nothing leads to one Resolved, unless cancel() ends it.
//  * Between calls, an entry has waiters if and only if it has no link address.
class Neighbours {
 public:
  explicit Neighbours(Interface interface, const Config& config = {});

  // ---- Consumer

  // Returns the neighbour's link address if it is known.  Otherwise returns nothing, and a Resolved
  // with this cookie follows.  Addresses of the interface itself are always known.
  // Errors:
  //  * kInvalidArgument: no host can have this address.
  //  * kAddressNotFound: the address is not on the link.
  //  * kNoResources: a limit of Config is reached.
  Result<std::optional<LinkAddress>> resolve(const Gid& ip, std::uint64_t cookie, Time now);
  // Ends a call of resolve().  Returns false if no such call waits.  Its Resolved may already be in
  // the queue of poll().
  bool cancel(const Gid& ip, std::uint64_t cookie);

  // Removes the entries with this GID, because its port has left the subnet.  Returns the number of
  // removed entries.
  std::size_t forget(const Gid& gid);
  // Removes all entries with a link address.  The owner calls this when the port goes down, and
  // when its LID or the subnet manager changes.  Waiters continue to wait.
  void flush();

  // ---- Interface

  // Changes the interface.  If only IP addresses change, entries on the link remain.  Any other
  // change removes all link addresses, and the interface must join its broadcast group again.
  // Waiters continue to wait if their address is still on the link.
  void set_interface(Interface interface, Time now);
  // Sets whether the interface is a member of its broadcast group.  At the first join, the
  // interface announces its addresses.
  void set_joined(bool joined, Time now);

  // ---- Wire and time

  // Receives the payload of a packet for the interface's queue pair or one of its groups.  `from`
  // and `source_qpn` name the sender of the packet.
  void receive(const link::Address& from, Qpn source_qpn, std::span<const std::byte> frame,
               Time now);
  void on_timer(Time now);
  Time deadline() const { return table_.deadline(); }
  std::optional<Output> poll() { return outbox_.poll(); }

  // ---- Queries
  const Interface& interface() const { return interface_; }
  bool is_joined() const { return is_joined_; }
  std::size_t size() const { return table_.size(); }
  const Counters& counters() const { return counters_; }
  // Lists the entries in the order of their IP addresses.
  std::vector<Row> rows(Time now) const;

 private:
  // Holds the claims of a received frame about its sender.
  struct Claims {
    Gid ip{};
    LinkAddress link_address{};
    bool is_answer = false;    // the frame claims to answer a request of this interface
    bool may_override = true;  // the frame may replace a known link address
  };
  struct Packet {
    const link::Address& from;
    Qpn source_qpn;
  };

  Time waiter_deadline(Time called_at) const;
  void schedule(Entry& entry);
  void send_request(Entry& entry, bool to_group, Time now);
  void announce();
  void finish(Entry& entry, std::size_t waiter_count, const Result<LinkAddress>& result);
  void fail_expired(Entry& entry, Time now);
  void send(SendFrame frame, std::uint64_t& counter);

  // receive.cc implements the functions below.  If a frame is ignored, handle(), check_sender(),
  // learn() and replace_address() return the reason.
  std::optional<Ignored> handle(const Packet& packet, const wire::IpoibArp& arp, Time now);
  std::optional<Ignored> handle(const Packet& packet, const wire::NeighbourSolicitation& message,
                                Time now);
  std::optional<Ignored> handle(const Packet& packet, const wire::NeighbourAdvertisement& message,
                                Time now);
  std::optional<Ignored> check_sender(const Packet& packet, const LinkAddress& claimed) const;
  std::optional<Ignored> learn(const Claims& claims, Time now);
  std::optional<Ignored> replace_address(Entry& entry, const Claims& claims, Time now);
  void answer(const Packet& packet, const LinkAddress& receiver,
              const wire::ResolutionFrame& message);

  Interface interface_;
  const Config config_;
  Table table_;
  Counters counters_;
  Outbox outbox_;
  std::size_t waiters_ = 0;  // the number of waiters of all entries
  bool is_joined_ = false;
  bool has_announced_ = false;
  Time joined_at_{};
};

}  // namespace verbena::ipoib
