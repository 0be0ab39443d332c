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
// 826) and by neighbour discovery for IPv6 (RFC 4861), in the form of RFC 4391.  It also answers
// for the interface's own addresses.
//
//                 resolve()               an answer
//   (no entry) --------------> INCOMPLETE ----------> REACHABLE
//        ^                       |     ^               |     ^
//        | nobody answers        |     | used after    |     | an answer
//        |<----------------------'     | kAgeMax       v     |
//        |                             '----------- STALE    |
//        | no answer to kTries                         |     |
//        '------------------------ PROBE <-------------'     |
//                                    |   used: asks again    |
//                                    '-----------------------'
//
// All callers that ask for one address (askers) share its requests.  Each asker waits for
// kAnswerTimeout, so the requests go on as long as an asker waits.  A stale entry is used while it
// is confirmed, so its users do not wait.  The first such request goes to the neighbour alone, the
// others to the group, because the neighbour may have moved.  Entries without an answer are
// forgotten.
//
// The interface sends nothing before set_joined(): the broadcast group's Q_Key is that of all
// frames.  Until then requests wait, but no longer than kGroupTimeout.
//
// Only requests of this host create entries.  Unsolicited messages can change entries, but create
// none, so that nobody can fill the table.  A frame's sender must be the sender of the packet.
//
// Invariants:
//  * Each call of resolve() that has to ask leads to one Resolved, unless cancel() ends it.
//  * Between two calls, an entry has askers exactly if it has no link address.
class Neighbours {
 public:
  explicit Neighbours(Interface interface, const Config& config = {});

  // ---- Consumer

  // Returns the neighbour's link address if it is known, or nothing: a Resolved with this cookie
  // follows.  An address of the interface itself has the interface's link address.  Errors:
  //  * kInvalidArgument: not the address of one host.
  //  * kAddressNotFound: not on the link.
  //  * kNoResources: a limit of Config.
  Result<std::optional<LinkAddress>> resolve(const Gid& ip, std::uint64_t cookie, Time now);
  // Ends a call of resolve().  Returns false if no such call waits; its Resolved may be queued
  // already.
  bool cancel(const Gid& ip, std::uint64_t cookie);

  // Forgets entries with this GID, because its port has left the subnet.  Returns their number.
  std::size_t forget(const Gid& gid);
  // Forgets all entries: at port down, and at changes of the LID or of the subnet manager.  Askers
  // continue to wait.
  void forget_all();

  // ---- Interface

  // Changes the interface.  A change of anything but IP addresses forgets all entries, and leaves
  // the broadcast group.  Askers continue to wait, if their address is still on the link.
  void set_interface(Interface interface, Time now);
  // Tells whether the interface is a member of its broadcast group.  At the first join it announces
  // its addresses.
  void set_joined(bool joined, Time now);

  // ---- Wire and time

  // Takes the payload of a packet from this queue pair to the interface's queue pair, or to one of
  // its groups.
  void receive(const link::Address& from, Qpn source_qpn, std::span<const std::byte> frame,
               Time now);
  void on_timer(Time now);
  Time deadline() const { return table_.deadline(); }
  std::optional<Output> poll() { return outbox_.poll(); }

  // ---- Queries
  const Interface& interface() const { return interface_; }
  bool is_joined() const { return joined_; }
  std::size_t size() const { return table_.size(); }
  const Counters& counters() const { return counters_; }
  // Lists the entries in the order of their addresses.
  std::vector<Row> rows(Time now) const;

 private:
  // Holds the claims of a received frame about its sender.
  struct News {
    Gid ip{};
    LinkAddress link_address{};
    bool is_answer = false;    // the frame claims to answer a request of ours
    bool may_override = true;  // may replace a known link address
  };
  struct Packet {
    const link::Address& from;
    Qpn source_qpn;
  };

  Time asker_deadline(Time asked) const;
  void schedule(Entry& entry);
  void ask(Entry& entry, bool by_group, Time now);
  void announce();
  void finish(Entry& entry, std::size_t askers, const Result<LinkAddress>& result);
  void fail_expired(Entry& entry, Time now);
  void send(SendFrame frame, std::uint64_t& counter);

  // The next functions are in receive.cc.
  std::optional<Ignored> take(const Packet& packet, const wire::IpoibArp& arp, Time now);
  std::optional<Ignored> take(const Packet& packet, const wire::NeighbourSolicitation& message,
                              Time now);
  std::optional<Ignored> take(const Packet& packet, const wire::NeighbourAdvertisement& message,
                              Time now);
  std::optional<Ignored> check_sender(const Packet& packet, const LinkAddress& claimed) const;
  std::optional<Ignored> learn(const News& news, Time now);
  std::optional<Ignored> learn_other_address(Entry& entry, const News& news, Time now);
  void answer(const Packet& packet, const LinkAddress& to, const wire::ResolutionFrame& message);

  Interface interface_;
  const Config config_;
  Table table_;
  Counters counters_;
  Outbox outbox_;
  std::size_t askers_ = 0;  // in the table
  bool joined_ = false;
  bool announced_ = false;
  Time joined_at_{};
};

}  // namespace verbena::ipoib
