#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/counter_names.h"
#include "base/random.h"
#include "base/time.h"
#include "sa/queries.h"
#include "sa/types.h"
#include "wire/mad.h"

namespace verbena::sa {

struct CapabilityCounters {
  std::uint64_t asked = 0;
  std::uint64_t answered = 0;
  std::uint64_t failed = 0;
  friend bool operator==(const CapabilityCounters&, const CapabilityCounters&) = default;
};

// Stores the capabilities of the SA, from its ClassPortInfo (vol1 13.4.8.1, 15.1).  Asks the SA
// when the port becomes able to send, and again after a change of the manager or a
// reregistration.
class Capabilities {
 public:
  // The shortest pause after a failed query.  Jitter is added.
  static constexpr Duration kRetryPause = std::chrono::seconds(15);

  Capabilities(Queries& queries, Random random) : queries_(queries), random_(random) {}

  // Returns the ClassPortInfo.  There is no value until this manager has answered, and after a
  // reregistration until it has answered again.
  const std::optional<wire::ClassPortInfo>& info() const { return info_; }
  // Returns true if the SA supports send-only full members, or no value until the SA has answered.
  std::optional<bool> has_send_only_full_members() const;

  // Asks the SA, unless a query is pending.  This function does not remove an old answer, which
  // stays valid until the new answer comes.
  void ask(Time now);

  void set_port(const PortState& state, const PortChange& change, Time now);
  void reregister(Time now);
  void receive(const QueryResult& result, Time now);
  void on_timer(Time now);
  Time deadline() const { return retry_at_; }

  const CapabilityCounters& counters() const { return counters_; }

 private:
  void retry_later(Time now);

  Queries& queries_;
  Random random_;
  bool port_is_ready_ = false;
  std::optional<QueryId> query_{};
  bool may_be_stale_ = false;  // the answer to the pending query may be out of date
  std::optional<wire::ClassPortInfo> info_{};
  Time retry_at_ = kNever;  // when to ask again after a failed query
  CapabilityCounters counters_{};
};

inline constexpr auto kCapabilityCounterNames = std::to_array<MemberName<CapabilityCounters>>({
    {&CapabilityCounters::asked, "sa_class_port_info_asked"},
    {&CapabilityCounters::answered, "sa_class_port_info_answered"},
    {&CapabilityCounters::failed, "sa_class_port_info_failed"},
});
static_assert(names_every_counter(kCapabilityCounterNames));

}  // namespace verbena::sa
