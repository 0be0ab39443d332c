#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/counter_names.h"
#include "base/error.h"
#include "base/random.h"
#include "base/strong.h"
#include "base/time.h"
#include "sa/queries.h"
#include "sa/types.h"
#include "wire/sa.h"

namespace verbena::sa {

// Identifies a registration or a query of services.  No number is used twice.
using ServiceTicket = Strong<struct ServiceTicketTag, std::uint64_t>;

// Asks for service records.  An empty field accepts any value.
struct ServiceQuery {
  std::optional<std::array<std::byte, 64>> name{};
  std::optional<ServiceId> service_id{};
  std::optional<Gid> gid{};
  std::optional<Pkey> pkey{};

  // Returns the bytes of a name, padded with zeros.  Cuts off bytes after the 64th.
  static std::array<std::byte, 64> name_of(std::string_view text);
};

struct ServiceEvent {
  enum class What : std::uint8_t {
    kRegistered,
    kFailed,  // the registration has ended or was refused, or the query has failed
    kFound,
  };
  ServiceTicket ticket{};
  std::uint64_t cookie = 0;
  What what{};
  std::vector<wire::ServiceRecord> records{};  // only with kFound; may be empty
  std::optional<Error> error{};                // only with kFailed
};

struct ServiceCounters {
  std::uint64_t registered = 0;
  std::uint64_t renewed = 0;
  std::uint64_t failed = 0;
  std::uint64_t removed = 0;
  std::uint64_t asked = 0;
  std::uint64_t limit_services = 0;
  friend bool operator==(const ServiceCounters&, const ServiceCounters&) = default;
};

// Registers services with the SA, and finds registered services (vol1 15.2.5.14).  Renews each
// registration before its lease ends.  Registers a service again when the SA may have forgotten it.
class Services {
 public:
  static constexpr std::size_t kServicesMax = 4096;  // limits registrations and queries together
  static constexpr std::size_t kRecordsMax = 65536;  // in one answer
  static constexpr std::uint32_t kRemoveTries = 6;
  static constexpr unsigned kRefusalsMax = 6;  // of a renewal, before the registration fails
  static constexpr Duration kRefusalPause = std::chrono::seconds(2);  // before the next try

  Services(Queries& queries, Random random) : queries_(queries), random_(random) {}

  // Registers a service.  A GID of 0 stands for the port's first GID.  kRegistered or kFailed
  // follows.  Fails with kInvalidArgument: the lease is 0; kNoResources: kServicesMax.
  Result<ServiceTicket> add(const wire::ServiceRecord& record, std::uint64_t cookie, Time now);
  // Asks the SA for services.  kFound or kFailed follows.  Fails with kNoResources.
  Result<ServiceTicket> find(const ServiceQuery& query, std::uint64_t cookie,
                             Duration give_up_after, Time now);
  // Ends a registration, or cancels a query.  Returns false if it has ended before, and
  // next_event() has returned its last event.
  bool remove(ServiceTicket ticket, Time now);
  std::optional<ServiceEvent> next_event();

  void set_port(const PortState& state, const PortChange& change, Time now);
  void reregister(Time now) { register_again(true, now); }

  void receive(const QueryResult& result, Time now);
  void on_timer(Time now);
  Time deadline() const { return timers_.empty() ? kNever : timers_.begin()->first; }

  std::size_t size() const { return entries_.size(); }
  const ServiceCounters& counters() const { return counters_; }

 private:
  enum class Request : std::uint8_t { kNone, kFind, kSet, kDelete };
  struct Entry {
    wire::ServiceRecord record{};
    std::uint64_t cookie = 0;
    bool is_search = false;
    bool is_registered = false;   // the SA has the service now
    bool was_registered = false;  // kRegistered was reported
    bool may_be_at_sa = false;    // the SA may have the service, so it must be deleted there
    bool is_removed = false;   // the user has removed the service, or the registration has failed
    bool may_be_lost = false;  // the SA may have lost the effect of the request
    Request request = Request::kNone;
    QueryId query{};
    unsigned refusals = 0;
    Time due{};  // when to renew or to try again; 0: no time is set
  };
  using Entries = std::map<ServiceTicket, Entry>;

  void send_next_request(Entries::iterator found, Time now);
  void ask(Entries::iterator found, Request request, const Query& query, Time now);
  void set_timer(Entries::iterator found, Time until);
  void receive_set(Entries::iterator found, const QueryResult& result, Time now);
  void receive_found(Entries::iterator found, const QueryResult& result);
  void fail_entry(Entries::iterator found, const Error& error);
  void register_again(bool requests_may_be_lost, Time now);
  wire::ServiceRecord record_of(const Entry& entry) const;

  Queries& queries_;
  Random random_;
  PortState port_{};
  Entries entries_{};
  std::map<QueryId, ServiceTicket> by_query_{};
  std::set<std::pair<Time, ServiceTicket>> timers_{};
  std::uint64_t last_ticket_ = 0;
  std::deque<ServiceEvent> events_{};
  ServiceCounters counters_{};
};

inline constexpr auto kServiceCounterNames = std::to_array<MemberName<ServiceCounters>>({
    {&ServiceCounters::registered, "sa_services_registered"},
    {&ServiceCounters::renewed, "sa_services_renewed"},
    {&ServiceCounters::failed, "sa_services_failed"},
    {&ServiceCounters::removed, "sa_services_removed"},
    {&ServiceCounters::asked, "sa_services_asked"},
    {&ServiceCounters::limit_services, "limit_sa_services"},
});
static_assert(names_every_counter(kServiceCounterNames));

}  // namespace verbena::sa
