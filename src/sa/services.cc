#include "sa/services.h"

#include <algorithm>

#include "sa/components.h"

namespace verbena::sa {

using wire::ServiceRecord;
using ServiceMask = ServiceRecord::Mask;

std::array<std::byte, 64> ServiceQuery::name_of(std::string_view text) {
  std::array<std::byte, 64> name{};
  const auto bytes = std::as_bytes(std::span(text));
  std::copy_n(bytes.begin(), std::min(bytes.size(), name.size()), name.begin());
  return name;
}

Result<ServiceTicket> Services::add(const ServiceRecord& record, std::uint64_t cookie, Time now) {
  if (record.lease_seconds == 0) return fail(Errc::kInvalidArgument, "the lease of a service is 0");
  if (entries_.size() >= kServicesMax) {
    ++counters_.limit_services;
    return fail(Errc::kNoResources, "too many services of the port");
  }
  const ServiceTicket ticket{++last_ticket_};
  const auto added = entries_.emplace(ticket, Entry{.record = record, .cookie = cookie}).first;
  send_next_request(added, now);
  return ticket;
}

Result<ServiceTicket> Services::find(const ServiceQuery& query, std::uint64_t cookie,
                                     Duration give_up_after, Time now) {
  if (entries_.size() >= kServicesMax) {
    ++counters_.limit_services;
    return fail(Errc::kNoResources, "too many services of the port");
  }
  ServiceRecord record;
  std::uint64_t mask = 0;
  set_component(record.name, query.name, ServiceMask::kName, mask);
  set_component(record.service_id, query.service_id, ServiceMask::kServiceId, mask);
  set_component(record.service_gid, query.gid, ServiceMask::kServiceGid, mask);
  set_component(record.service_pkey, query.pkey, ServiceMask::kPkey, mask);
  Query request =
      Query::of(wire::Method::kGetTable, wire::SaAttribute::kServiceRecord, mask, record);
  request.give_up_after = give_up_after;
  const auto query_id = VB_TRY(queries_.ask(request, QueryOwner::kServices, 0, now));
  ++counters_.asked;
  const ServiceTicket ticket{++last_ticket_};
  entries_.emplace(
      ticket,
      Entry{.cookie = cookie, .is_search = true, .request = Request::kFind, .query = query_id});
  by_query_.emplace(query_id, ticket);
  return ticket;
}

bool Services::remove(ServiceTicket ticket, Time now) {
  const auto dropped =
      std::erase_if(events_, [&](const ServiceEvent& event) { return event.ticket == ticket; });
  const auto found = entries_.find(ticket);
  if (found == entries_.end() || found->second.is_removed) return dropped != 0;
  if (found->second.is_search) {
    by_query_.erase(found->second.query);
    queries_.cancel(found->second.query, now);
    entries_.erase(found);
    return true;
  }
  ++counters_.removed;
  found->second.is_removed = true;
  set_timer(found, kNever);
  send_next_request(found, now);
  return true;
}

std::optional<ServiceEvent> Services::next_event() {
  if (events_.empty()) return std::nullopt;
  ServiceEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

ServiceRecord Services::record_of(const Entry& entry) const {
  ServiceRecord record = entry.record;
  if (record.service_gid == Gid{} && !port_.gids.empty()) record.service_gid = port_.gids.front();
  return record;
}

// Sends the next request of a registration if one is needed.  Erases a registration that has ended.
void Services::send_next_request(Entries::iterator found, Time now) {
  Entry& entry = found->second;
  if (entry.is_search || entry.request != Request::kNone) return;
  if (!entry.is_removed) {
    if (now < entry.due) return set_timer(found, entry.due);
    if (!entry.was_registered || !entry.is_registered || entry.due != Time{}) {
      // Without a manager, a first registration waits in `queries_`, and fails at the deadline of
      // its query.
      if (entry.was_registered && !port_.is_ready()) return;
      const auto mask = ServiceMask::kServiceId | ServiceMask::kServiceGid | ServiceMask::kPkey |
                        ServiceMask::kLease | ServiceMask::kKey | ServiceMask::kName |
                        ServiceMask::kData;
      entry.may_be_at_sa = true;
      ask(found, Request::kSet,
          Query::of(wire::Method::kSet, wire::SaAttribute::kServiceRecord, mask, record_of(entry)),
          now);
    }
    return;
  }
  if (entry.may_be_at_sa) {
    Query query = Query::of(
        wire::Method::kDelete, wire::SaAttribute::kServiceRecord,
        ServiceMask::kServiceId | ServiceMask::kServiceGid | ServiceMask::kPkey | ServiceMask::kKey,
        record_of(entry));
    query.tries_max = kRemoveTries;
    query.give_up_after = std::chrono::minutes(1);
    return ask(found, Request::kDelete, query, now);
  }
  set_timer(found, kNever);
  entries_.erase(found);
}

void Services::ask(Entries::iterator found, Request request, const Query& query, Time now) {
  const auto query_id = queries_.ask(query, QueryOwner::kServices, 0, now);
  if (!query_id) return set_timer(found, now + kRefusalPause);
  set_timer(found, kNever);
  found->second.request = request;
  found->second.query = *query_id;
  found->second.may_be_lost = false;
  by_query_.emplace(*query_id, found->first);
}

void Services::set_timer(Entries::iterator found, Time until) {
  timers_.erase({found->second.due, found->first});
  found->second.due = until == kNever ? Time{} : until;
  if (until != kNever) timers_.emplace(until, found->first);
}

void Services::receive(const QueryResult& result, Time now) {
  const auto pending = by_query_.find(result.id);
  if (pending == by_query_.end()) return;
  const auto found = entries_.find(pending->second);
  by_query_.erase(pending);
  switch (std::exchange(found->second.request, Request::kNone)) {
    case Request::kFind: return receive_found(found, result);
    case Request::kSet: return receive_set(found, result, now);
    case Request::kDelete:
      found->second.may_be_at_sa = false;  // if the SA still has the service, its lease will end
      return send_next_request(found, now);
    case Request::kNone: return;
  }
}

void Services::receive_found(Entries::iterator found, const QueryResult& result) {
  ServiceEvent event{.ticket = found->first, .cookie = found->second.cookie};
  Result<std::vector<ServiceRecord>> records = std::unexpected(result.error());
  if (result.outcome == QueryResult::Outcome::kAnswered) {
    records = result.records<ServiceRecord>(kRecordsMax);
  } else if (result.sa_status() == wire::SaStatus::kNoRecords) {
    records = std::vector<ServiceRecord>{};
  }
  event.what = records ? ServiceEvent::What::kFound : ServiceEvent::What::kFailed;
  if (records) {
    event.records = *std::move(records);
  } else {
    event.error = records.error();
  }
  events_.push_back(std::move(event));
  entries_.erase(found);
}

void Services::fail_entry(Entries::iterator found, const Error& error) {
  ++counters_.failed;
  events_.push_back({.ticket = found->first,
                     .cookie = found->second.cookie,
                     .what = ServiceEvent::What::kFailed,
                     .error = error});
  found->second.is_removed = true;
}

void Services::receive_set(Entries::iterator found, const QueryResult& result, Time now) {
  Entry& entry = found->second;
  if (entry.is_removed) return send_next_request(found, now);
  if (result.outcome == QueryResult::Outcome::kAnswered) {
    entry.refusals = 0;
    entry.is_registered = !entry.may_be_lost;
    ++(entry.was_registered ? counters_.renewed : counters_.registered);
    if (!std::exchange(entry.was_registered, true)) {
      events_.push_back({.ticket = found->first,
                         .cookie = entry.cookie,
                         .what = ServiceEvent::What::kRegistered});
    }
    if (entry.is_registered && entry.record.lease_seconds != ServiceRecord::kLeaseForever) {
      // Renews after 3/8 to 4/8 of the lease, which leaves time for repeats.
      const Duration eighth = Duration(std::chrono::seconds(entry.record.lease_seconds)) / 8;
      const auto jitter = random_.below(static_cast<std::uint64_t>(eighth.count()));
      set_timer(found, now + eighth * 3 + Duration(static_cast<std::int64_t>(jitter)));
    }
    return send_next_request(found, now);
  }
  const bool is_refused = result.outcome == QueryResult::Outcome::kRefused;
  if (!entry.was_registered || (is_refused && ++entry.refusals >= kRefusalsMax)) {
    if (is_refused) entry.may_be_at_sa = entry.was_registered;
    fail_entry(found, result.error());
    return send_next_request(found, now);
  }
  entry.is_registered = false;
  if (is_refused) set_timer(found, now + kRefusalPause);
  send_next_request(found, now);
}

void Services::register_again(bool requests_may_be_lost, Time now) {
  for (auto found = entries_.begin(); found != entries_.end();) {
    const auto current = found++;
    Entry& entry = current->second;
    entry.is_registered = false;
    entry.may_be_lost = requests_may_be_lost;
    if (entry.request == Request::kNone) set_timer(current, kNever);
    send_next_request(current, now);
  }
}

void Services::set_port(const PortState& state, const PortChange& change, Time now) {
  port_ = state;
  if (change.became_ready || change.lid_changed || change.manager_changed || change.gids_changed) {
    register_again(change.gids_changed, now);
  }
}

void Services::on_timer(Time now) {
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const ServiceTicket ticket = timers_.begin()->second;
    timers_.erase(timers_.begin());
    send_next_request(entries_.find(ticket), now);
  }
}

}  // namespace verbena::sa
