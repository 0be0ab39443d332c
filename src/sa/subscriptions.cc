#include "sa/subscriptions.h"

#include <algorithm>

namespace verbena::sa {

using wire::InformInfo;
using wire::SaNotice;
using wire::TrapNumber;

namespace {

constexpr std::uint8_t kReportResponseTime = 18;  // timeout code of 1.07 s

}  // namespace

Result<SubscriptionId> Subscriptions::add(TrapNumber trap, Subscriber subscriber, Time now) {
  if (subscribers_.size() >= kSubscribersMax) {
    ++counters_.limit_subscribers;
    return fail(Errc::kNoResources, "too many subscriptions to notices");
  }
  const SubscriptionId id{++last_id_};
  subscriber.trap = trap;
  subscribers_.emplace(id, subscriber);
  const auto found = traps_.try_emplace(trap).first;
  found->second.subscribers.insert(id);
  send_next_request(found, now);
  return id;
}

bool Subscriptions::unsubscribe(SubscriptionId id, Time now) {
  const auto subscriber = subscribers_.find(id);
  if (subscriber == subscribers_.end()) return false;
  const auto found = traps_.find(subscriber->second.trap);
  found->second.subscribers.erase(id);
  subscribers_.erase(subscriber);
  std::erase_if(events_, [&](const NoticeEvent& event) { return event.subscription == id; });
  send_next_request(found, now);
  return true;
}

bool Subscriptions::is_registered(TrapNumber trap) const {
  const auto found = traps_.find(trap);
  return found != traps_.end() && found->second.is_registered;
}

std::optional<NoticeEvent> Subscriptions::next_event() {
  if (events_.empty()) return std::nullopt;
  NoticeEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

// Sends the next request for a trap if one is needed.  Erases a trap without subscribers.
void Subscriptions::send_next_request(Traps::iterator found, Time now) {
  Trap& trap = found->second;
  if (trap.request != Request::kNone) return;
  const bool is_wanted = !trap.subscribers.empty();
  if (is_wanted && !trap.is_registered) {
    if (now < trap.not_before) return set_timer(found, trap.not_before);
    if (port_.is_ready()) ask(found, true, now);
    return;
  }
  if (is_wanted) return;
  if (trap.may_be_at_sa) return ask(found, false, now);
  set_timer(found, kNever);
  traps_.erase(found);
}

void Subscriptions::set_timer(Traps::iterator found, Time until) {
  timers_.erase({found->second.not_before, found->first});
  found->second.not_before = until == kNever ? Time{} : until;
  if (until != kNever) timers_.emplace(until, found->first);
}

void Subscriptions::ask(Traps::iterator found, bool subscribe, Time now) {
  Trap& trap = found->second;
  const InformInfo inform{.lid_begin = InformInfo::kAnyLid,
                          .subscribe = subscribe,
                          .type = InformInfo::kAnyType,
                          .trap_number = static_cast<std::uint16_t>(found->first),
                          .qpn = wire::kGsiQpn,
                          .resp_time_value = kReportResponseTime,
                          .producer_type = InformInfo::kAnyProducer};
  Query query = Query::of(wire::Method::kSet, wire::SaAttribute::kInformInfo, 0, inform);
  if (!subscribe) query.tries_max = kUnsubscribeTries;
  const auto query_id = queries_.ask(query, QueryOwner::kSubscriptions, 0, now);
  if (!query_id) return set_timer(found, now + kRetryPause);
  set_timer(found, kNever);
  trap.request = subscribe ? Request::kSubscribe : Request::kUnsubscribe;
  if (subscribe) trap.may_be_at_sa = true;
  if (!subscribe) trap.is_registered = false;
  trap.may_be_lost = false;
  by_query_.emplace(*query_id, found->first);
}

void Subscriptions::receive(const QueryResult& result, Time now) {
  const auto pending = by_query_.find(result.id);
  if (pending == by_query_.end()) return;
  const auto found = traps_.find(pending->second);
  by_query_.erase(pending);
  Trap& trap = found->second;
  const Request request = std::exchange(trap.request, Request::kNone);
  if (request == Request::kUnsubscribe) {
    trap.may_be_at_sa = false;  // if the SA still has the subscription, reports are ignored
    return send_next_request(found, now);
  }
  if (result.outcome == QueryResult::Outcome::kAnswered) {
    trap.is_registered = !trap.may_be_lost;
    ++counters_.registered;
    return send_next_request(found, now);
  }
  if (result.outcome == QueryResult::Outcome::kRefused) {
    ++counters_.refused;
    trap.may_be_at_sa = false;
    const auto jitter = random_.below(static_cast<std::uint64_t>(kRetryPause.count()));
    set_timer(found, now + kRetryPause + Duration(static_cast<std::int64_t>(jitter)));
  }
  send_next_request(found, now);
}

void Subscriptions::register_again(bool requests_may_be_lost, Time now) {
  // A restarted manager may use the same transaction IDs for new reports.
  recent_reports_.clear();
  recent_reports_order_.clear();
  for (auto found = traps_.begin(); found != traps_.end();) {
    const auto current = found++;
    current->second.is_registered = false;
    current->second.may_be_lost = requests_may_be_lost;
    if (current->second.request == Request::kNone) set_timer(current, kNever);
    send_next_request(current, now);
  }
}

void Subscriptions::set_port(const PortState& state, const PortChange& change, Time now) {
  port_ = state;
  // The effect of a pending request is not lost if Queries sends the request again.
  if (change.resends_queries() || change.gids_changed)
    register_again(!change.resends_queries(), now);
}

// ---- reports ------------------------------------------------------------------------------------

bool Subscriptions::remember_report(const mad::ManagementPort::Message& message,
                                    const wire::MadHeader& header) {
  const ReportKey key{message.from.path.destination_lid, header.transaction_id};
  if (!recent_reports_.insert(key).second) return true;
  recent_reports_order_.push_back(key);
  if (recent_reports_order_.size() > kReportsRemembered) {
    recent_reports_.erase(recent_reports_order_.front());
    recent_reports_order_.pop_front();
  }
  return false;
}

std::optional<SaNotice> Subscriptions::receive_report(const mad::ManagementPort::Message& message,
                                                      Time now) {
  auto header =
      wire::decode_exact<wire::MadHeader>(std::span(message.mad).first<wire::kMadHeaderBytes>());
  if (header.method != wire::Method::kReport ||
      header.attribute_id != static_cast<std::uint16_t>(wire::SaAttribute::kNotice) ||
      message.mad.size() < wire::kSaHeaderBytes + wire::kSize<SaNotice>) {
    ++counters_.malformed;
    return std::nullopt;
  }
  ++counters_.reports;
  const auto notice = wire::decode_exact<SaNotice>(
      std::span(message.mad).subspan<wire::kSaHeaderBytes, wire::kSize<SaNotice>>());
  const bool is_repeat = remember_report(message, header);
  header.response = true;
  header.status = 0;
  std::vector<std::byte> response = message.mad;
  response.resize(std::min(response.size(), wire::kMadBytes));
  wire::encode_to(response, header);
  // If send() fails, the SA repeats the report.
  (void)mads_.send(agent_, {.to = message.from, .mad = std::move(response)}, now);
  if (is_repeat) {
    ++counters_.repeated;
    return std::nullopt;
  }
  const auto found = traps_.find(notice.notice.trap_number);
  if (found == traps_.end()) return notice;
  for (const SubscriptionId id : found->second.subscribers) {
    const Subscriber& subscriber = subscribers_.at(id);
    if (subscriber.is_silent) continue;
    if (events_.size() >= kEventsMax) {
      ++counters_.limit_events;
      continue;
    }
    events_.push_back({.subscription = id, .cookie = subscriber.cookie, .notice = notice});
  }
  return notice;
}

void Subscriptions::on_timer(Time now) {
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const TrapNumber trap = timers_.begin()->second;
    timers_.erase(timers_.begin());
    send_next_request(traps_.find(trap), now);
  }
}

}  // namespace verbena::sa
