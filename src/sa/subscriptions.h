#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/counter_names.h"
#include "base/error.h"
#include "base/random.h"
#include "base/strong.h"
#include "base/time.h"
#include "mad/management_port.h"
#include "sa/queries.h"
#include "sa/types.h"
#include "wire/sa.h"

namespace verbena::sa {

using SubscriptionId = Strong<struct SubscriptionIdTag, std::uint64_t>;

struct NoticeEvent {
  SubscriptionId subscription{};
  std::uint64_t cookie = 0;
  wire::SaNotice notice{};
};

struct SubscriptionCounters {
  std::uint64_t reports = 0;
  std::uint64_t repeated = 0;  // reports that the SA sent again because it missed the answer
  std::uint64_t malformed = 0;
  std::uint64_t registered = 0;
  std::uint64_t refused = 0;
  std::uint64_t limit_subscribers = 0;
  std::uint64_t limit_events = 0;  // notices dropped because kEventsMax notices were waiting
  friend bool operator==(const SubscriptionCounters&, const SubscriptionCounters&) = default;
};

// Subscribes the port to the notices that its users want, and answers the reports of the SA (vol1
// 13.4.8.3, 13.4.11).  All users that want the same trap share one subscription at the SA.
//
// Each user gets each notice once, in the order in which the reports come.  If kEventsMax notices
// wait for next_event(), further notices are dropped.
class Subscriptions {
 public:
  static constexpr std::size_t kSubscribersMax = 4096;
  static constexpr std::size_t kEventsMax = 65536;
  static constexpr std::size_t kReportsRemembered = 1024;
  static constexpr Duration kRetryPause = std::chrono::seconds(15);  // after the SA has refused
  static constexpr std::uint32_t kUnsubscribeTries = 4;

  // REQUIRES: `agent` receives reports.
  Subscriptions(Queries& queries, mad::ManagementPort& mads, mad::AgentNumber agent, Random random)
      : queries_(queries), mads_(mads), agent_(agent), random_(random) {}

  // next_event() returns the notices of the trap.  Fails with kNoResources if there are
  // kSubscribersMax subscriptions.
  Result<SubscriptionId> subscribe(wire::TrapNumber trap, std::uint64_t cookie, Time now) {
    return add(trap, {.cookie = cookie}, now);
  }
  // Subscribes for the caller of receive_report(), which returns the notices.  next_event() does
  // not return them.
  Result<SubscriptionId> subscribe_silently(wire::TrapNumber trap, Time now) {
    return add(trap, {.is_silent = true}, now);
  }
  // Returns false if there is no such subscription.
  bool unsubscribe(SubscriptionId id, Time now);
  std::optional<NoticeEvent> next_event();

  // Returns true if the SA has confirmed that it reports the trap.
  bool is_registered(wire::TrapNumber trap) const;

  void set_port(const PortState& state, const PortChange& change, Time now);
  void reregister(Time now) { register_again(true, now); }

  // Takes a report, and answers it unless it is malformed.  Returns the notice, unless the report
  // is a repeat or malformed.
  std::optional<wire::SaNotice> receive_report(const mad::ManagementPort::Message& message,
                                               Time now);
  void receive(const QueryResult& result, Time now);
  void on_timer(Time now);
  Time deadline() const { return timers_.empty() ? kNever : timers_.begin()->first; }

  const SubscriptionCounters& counters() const { return counters_; }

 private:
  struct Subscriber {
    wire::TrapNumber trap{};
    std::uint64_t cookie = 0;
    bool is_silent = false;
  };
  enum class Request : std::uint8_t { kNone, kSubscribe, kUnsubscribe };
  struct Trap {
    std::set<SubscriptionId> subscribers{};
    bool is_registered = false;
    bool may_be_at_sa = false;  // the SA may have the subscription
    bool may_be_lost = false;   // the SA may have lost the effect of the request
    Request request = Request::kNone;
    Time not_before{};  // the earliest time of the next request
  };
  using Traps = std::map<wire::TrapNumber, Trap>;

  Result<SubscriptionId> add(wire::TrapNumber trap, Subscriber subscriber, Time now);
  void send_next_request(Traps::iterator found, Time now);
  void ask(Traps::iterator found, bool subscribe, Time now);
  void set_timer(Traps::iterator found, Time until);
  void register_again(bool requests_may_be_lost, Time now);
  // Remembers a report.  Returns true if the report is a repeat of one that is remembered already.
  bool remember_report(const mad::ManagementPort::Message& message, const wire::MadHeader& header);

  Queries& queries_;
  mad::ManagementPort& mads_;
  mad::AgentNumber agent_;
  Random random_;
  PortState port_{};
  Traps traps_{};
  std::map<SubscriptionId, Subscriber> subscribers_{};
  std::map<QueryId, wire::TrapNumber> by_query_{};
  std::set<std::pair<Time, wire::TrapNumber>> timers_{};
  using ReportKey = std::pair<Lid, std::uint64_t>;  // the sender, and the transaction ID
  std::set<ReportKey> recent_reports_{};
  std::deque<ReportKey> recent_reports_order_{};
  std::uint64_t last_id_ = 0;
  std::deque<NoticeEvent> events_{};
  SubscriptionCounters counters_{};
};

inline constexpr auto kSubscriptionCounterNames = std::to_array<MemberName<SubscriptionCounters>>({
    {&SubscriptionCounters::reports, "sa_reports"},
    {&SubscriptionCounters::repeated, "sa_reports_repeated"},
    {&SubscriptionCounters::malformed, "sa_reports_malformed"},
    {&SubscriptionCounters::registered, "sa_subscriptions_registered"},
    {&SubscriptionCounters::refused, "sa_subscriptions_refused"},
    {&SubscriptionCounters::limit_subscribers, "limit_sa_subscribers"},
    {&SubscriptionCounters::limit_events, "limit_sa_notices"},
});
static_assert(names_every_counter(kSubscriptionCounterNames));

}  // namespace verbena::sa
