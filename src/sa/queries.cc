#include "sa/queries.h"

#include <algorithm>

#include "wire/bth.h"

namespace verbena::sa {

using wire::MgmtClass;
using wire::SaHeader;

namespace {

SaHeader sa_header_of(std::span<const std::byte> mad) {
  return wire::decode_exact<SaHeader>(mad.first<wire::kSaHeaderBytes>());
}

// Returns true if the header belongs to a response to the query.  A redirection contains a
// ClassPortInfo, and may have the attribute ID of ClassPortInfo.
bool is_response_to(const SaHeader& header, const Query& query) {
  // GetResp answers both Get and Set.
  const auto method = query.method == wire::Method::kSet ? wire::Method::kGet : query.method;
  const auto attribute = static_cast<std::uint16_t>(query.attribute);
  const bool redirected = (header.mad.status & wire::mad_status::kRedirect) != 0;
  return header.mad.method == method &&
         (header.mad.attribute_id == attribute ||
          (redirected && header.mad.attribute_id == wire::kAttributeClassPortInfo));
}

// Returns true if the status says that the node does not know the class or the method (vol1
// 13.4.7).  A node without an SA answers with such a status.  An SA that lacks an optional
// attribute does the same.
bool is_unserved(std::uint16_t status) {
  constexpr std::uint16_t kCode = 0x001c;  // the bits of the status that tell what is invalid
  switch (status & kCode) {
    case wire::mad_status::kBadVersion:
    case wire::mad_status::kMethodNotSupported:
    case wire::mad_status::kMethodAttributeNotSupported: return true;
    default: return false;
  }
}

}  // namespace

Error QueryResult::error() const {
  if (outcome == Outcome::kTimedOut) {
    return {.code = Errc::kTimedOut,
            .context = tries == 0 ? "no subnet manager was reachable"
                                  : "the subnet manager did not answer"};
  }
  if (is_unserved(mad_status)) {
    return {.code = Errc::kNotSupported,
            .context = "the subnet manager does not support this request"};
  }
  switch (sa_status()) {
    case wire::SaStatus::kNoRecords:
    case wire::SaStatus::kRequestInvalidGid:
      return {.code = Errc::kUnreachable, .context = "the subnet manager has no such record"};
    default:
      return {.code = Errc::kRejected,
              .detail = mad_status,
              .context = "the subnet manager refused the request"};
  }
}

// ---- queries ----------------------------------------------------------------------------------

Result<QueryId> Queries::ask(const Query& query, QueryOwner owner, std::uint64_t cookie, Time now) {
  if (waiting_.size() >= kWaitingMax) {
    ++counters_.limit_waiting;
    return fail(Errc::kNoResources, "too many queries wait for the subnet manager");
  }
  ++counters_.asked;
  const QueryId id{++last_id_};
  const Time until = now + query.give_up_after;
  entries_.emplace(
      id, Entry{.query = query, .owner = owner, .cookie = cookie, .asked_at = now, .until = until});
  waiting_.insert(id);
  deadlines_.emplace(until, id);
  send_waiting_queries(now);
  return id;
}

bool Queries::cancel(QueryId id, Time now) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) {
    // The query may have ended, while its result still waits in results_.
    const auto dropped =
        std::erase_if(results_, [&](const QueryResult& result) { return result.id == id; });
    return dropped != 0;
  }
  ++counters_.cancelled;
  cancel_request(id, found->second);
  waiting_.erase(id);
  deadlines_.erase({found->second.until, id});
  entries_.erase(found);
  send_waiting_queries(now);
  return true;
}

void Queries::extend(QueryId id, Time until) {
  const auto found = entries_.find(id);
  if (found == entries_.end() || until <= found->second.until) return;
  deadlines_.erase({found->second.until, id});
  found->second.until = until;
  deadlines_.emplace(until, id);
}

std::uint32_t Queries::tries(QueryId id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? 0 : found->second.tries;
}

void Queries::set_port(PortId port, const PortState& state, Time now) {
  std::optional<mad::Address> manager;
  if (state.is_ready()) {
    manager.emplace();
    manager->path.link_layer = LinkLayer::kInfiniband;
    manager->path.source_lid = state.lid;
    manager->path.destination_lid = state.sm_lid;
    manager->path.service_level = state.sm_sl;
    manager->path.port = port;
    manager->pkey_index = state.pkey_index(wire::kDefaultPkey).value_or(0);
  }
  // Compares the LMC, because `manager` contains only the first LID of the port.
  const bool has_same_lids = state.lmc == port_.lmc;
  port_ = state;
  if (manager == manager_ && has_same_lids) return;
  manager_ = manager;
  first_interval_ = kFirstInterval;
  round_trip_ = {};
  last_confirmed_ = window_shrunk_at_ = {};
  window_ = kOutstandingMax;
  for (auto& [id, entry] : entries_) {
    if (entry.state == State::kWaiting) continue;
    cancel_request(id, entry);
    entry.redirected_to.reset();
    entry.sa_answers_at_refusal.reset();
    entry.state = State::kWaiting;
    waiting_.insert(id);
    if (manager_) ++counters_.sent_to_new_manager;
  }
  send_waiting_queries(now);
}

// ---- sending ------------------------------------------------------------------------------------

void Queries::send_waiting_queries(Time now) {
  while (manager_ && !waiting_.empty() && outstanding() < window_) {
    const QueryId id = *waiting_.begin();
    waiting_.erase(waiting_.begin());
    Entry& entry = entries_.at(id);
    entry.transaction = new_transaction();
    by_transaction_.emplace(entry.transaction, id);
    entry.first_sent = now;
    entry.may_measure = true;
    entry.interval = first_interval_;
    send(id, entry, now);
  }
}

std::uint32_t Queries::new_transaction() {
  do {
    ++next_transaction_;
  } while (by_transaction_.contains(next_transaction_));
  return next_transaction_;
}

// Changes the interval by up to a quarter, so that hosts do not send queries at the same time.
Duration Queries::with_jitter(Duration interval) {
  const auto quarter = interval.count() / 4;
  return interval - Duration(quarter) +
         Duration(
             static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(2 * quarter) + 1)));
}

void Queries::send(QueryId id, Entry& entry, Time now) {
  ++counters_.sent;
  if (entry.tries++ != 0) ++counters_.repeated;
  entry.state = State::kSent;
  entry.last_sent = now;
  const SaHeader header{
      .mad = {.mgmt_class = MgmtClass::kSubnetAdministration,
              .class_version = wire::class_version(MgmtClass::kSubnetAdministration),
              .method = entry.query.method,
              .transaction_id = entry.transaction,
              .attribute_id = static_cast<std::uint16_t>(entry.query.attribute)},
      .rmpp = {.version = 0},  // the request is one MAD without RMPP
      .component_mask = entry.query.component_mask};
  std::vector<std::byte> mad(wire::kMadBytes);
  wire::encode_to(mad, header);
  std::ranges::copy(entry.query.record, mad.begin() + wire::kSaHeaderBytes);
  const auto sent = mads_.send(agent_,
                               {.to = entry.redirected_to.value_or(*manager_),
                                .timeout = with_jitter(entry.interval),
                                .cookie = id.value,
                                .mad = std::move(mad)},
                               now);
  // mads_.send() fails if the port has too many pending requests.
  if (!sent) pause(id, entry, now);
}

void Queries::pause(QueryId id, Entry& entry, Time now) {
  entry.state = State::kPaused;
  entry.may_measure = false;
  entry.resume_at = now + with_jitter(entry.interval);
  entry.interval = longer_interval(entry.interval);
  resumes_.emplace(entry.resume_at, id);
}

void Queries::cancel_request(QueryId id, Entry& entry) {
  if (entry.state == State::kWaiting) return;
  if (entry.state == State::kPaused) resumes_.erase({entry.resume_at, id});
  if (entry.state == State::kSent) {
    mads_.cancel(agent_, MgmtClass::kSubnetAdministration, entry.transaction);
  }
  by_transaction_.erase(entry.transaction);
}

// ---- answers and time ---------------------------------------------------------------------------

void Queries::receive(const mad::ManagementPort::Message& message, Time now) {
  const auto header =
      wire::decode_exact<wire::MadHeader>(std::span(message.mad).first<wire::kMadHeaderBytes>());
  const auto match = by_transaction_.find(static_cast<std::uint32_t>(header.transaction_id));
  if (match == by_transaction_.end()) return;
  const auto found = entries_.find(match->second);
  if (found->second.state != State::kSent) return;
  // The message ends the request in mads_, so cancel_request() must not cancel it.
  found->second.state = State::kPaused;
  found->second.resume_at = kNever;
  if (message.timed_out) return expire(found, now);
  receive_answer(found, message, now);
}

void Queries::expire(Entries::iterator found, Time now) {
  Entry& entry = found->second;
  entry.may_measure = false;
  if (entry.tries - entry.busy_answers >= entry.query.tries_max) {
    return end(found, {.outcome = QueryResult::Outcome::kTimedOut}, now);
  }
  if (was_lost(entry)) {
    entry.interval = std::min(entry.interval, first_interval_);
  } else {
    // New queries begin with a longer interval, so that one of them is answered at its first try
    // and measures the round trip (Karn's algorithm).
    first_interval_ = std::clamp((now - entry.first_sent) * 2, first_interval_, kFirstIntervalMax);
    if (entry.interval >= kRoundTripMax) shrink_window(now);
    entry.interval = longer_interval(entry.interval);
  }
  send(found->first, entry, now);
}

Duration Queries::first_interval_of(Duration round_trip) {
  return std::clamp(round_trip * 4, kFirstIntervalMin, kFirstIntervalMax);
}

bool Queries::was_lost(const Entry& entry) const {
  return last_confirmed_ > entry.last_sent && entry.interval >= round_trip_ * 4;
}

// Shrinks the window at most once in an interval, because queries that were sent together time out
// together.
void Queries::shrink_window(Time now) {
  if (window_shrunk_at_ != Time{} && now - window_shrunk_at_ < first_interval_) return;
  window_shrunk_at_ = now;
  window_ = std::max(window_ / 2, kWindowMin);
}

Duration Queries::longer_interval(Duration interval) const {
  const Duration spread_interval = kRepeatGap * static_cast<std::int64_t>(outstanding());
  const Duration max =
      std::clamp(std::max(spread_interval, round_trip_ * 4), kFewQueriesIntervalMax, kIntervalMax);
  return std::max(interval, std::min(interval * 2, max));
}

void Queries::receive_answer(Entries::iterator found, const mad::ManagementPort::Message& message,
                             Time now) {
  Entry& entry = found->second;
  const QueryId id = found->first;
  if (message.mad.size() < wire::kSaHeaderBytes) {
    ++counters_.mismatched;
    return pause(id, entry, now);
  }
  const SaHeader header = sa_header_of(message.mad);
  const auto data = std::span(message.mad).subspan(wire::kSaHeaderBytes);
  if (!is_response_to(header, entry.query)) {
    ++counters_.mismatched;
    return pause(id, entry, now);
  }
  if (is_unserved(header.mad.status)) return receive_unserved(found, header.mad.status, now);
  ++sa_answers_;
  if ((header.mad.status & wire::mad_status::kBusy) != 0) {
    ++counters_.busy;
    ++entry.busy_answers;
    return pause(id, entry, now);
  }
  if ((header.mad.status & wire::mad_status::kRedirect) != 0 && redirect(id, entry, data, now)) {
    return;
  }
  measure_round_trip(entry, now);
  if (header.mad.status != 0) {
    return end(found, {.outcome = QueryResult::Outcome::kRefused, .mad_status = header.mad.status},
               now);
  }
  end(found,
      {.outcome = QueryResult::Outcome::kAnswered,
       .attribute_offset = header.attribute_offset,
       .data = {data.begin(), data.end()},
       // Without RMPP the MAD does not contain its number of records, so it has exactly one.
       .is_table = header.rmpp.active},
      now);
}

void Queries::receive_unserved(Entries::iterator found, std::uint16_t status, Time now) {
  Entry& entry = found->second;
  ++counters_.unserved;
  if (entry.sa_answers_at_refusal && *entry.sa_answers_at_refusal != sa_answers_) {
    ++counters_.unsupported;
    return end(found, {.outcome = QueryResult::Outcome::kRefused, .mad_status = status}, now);
  }
  was_refused_ = was_refused_ || !entry.sa_answers_at_refusal;
  entry.sa_answers_at_refusal = sa_answers_;
  if (entry.tries - entry.busy_answers < entry.query.tries_max)
    return pause(found->first, entry, now);
  end(found, {.outcome = QueryResult::Outcome::kTimedOut}, now);
}

bool Queries::redirect(QueryId id, Entry& entry, std::span<const std::byte> data, Time now) {
  const auto info = wire::decode<wire::ClassPortInfo>(data);
  if (!info || entry.redirects >= kRedirectsMax) return false;
  const auto pkey_index = port_.pkey_index(info->redirect_pkey);
  // mads_ can send only with the Q_Key of QP1, and only to a LID.
  if (info->redirect_lid == Lid{} || info->redirect_qkey != wire::kGsiQkey || !pkey_index) {
    return false;
  }
  ++counters_.redirected;
  ++entry.redirects;
  mad::Address to = *manager_;
  to.path.destination_lid = info->redirect_lid;
  to.path.service_level = info->redirect_sl;
  to.remote_qpn = info->redirect_qpn;
  to.pkey_index = *pkey_index;
  if (info->redirect_gid != Gid{}) {
    to.path.has_grh = true;
    to.path.source = port_.gids.front();
    to.path.destination = info->redirect_gid;
    to.path.flow_label = info->redirect_fl;
    to.path.traffic_class = info->redirect_tc;
  }
  entry.redirected_to = to;
  entry.may_measure = false;
  send(id, entry, now);
  return true;
}

void Queries::measure_round_trip(const Entry& entry, Time now) {
  if (!entry.may_measure) {
    // Ignores a late answer.  An answer soon after a repeat most likely answers the repeat, and not
    // an earlier try.
    if (round_trip_ == Duration{} || now - entry.last_sent > round_trip_ * 4) return;
    last_confirmed_ = now;
    first_interval_ = first_interval_of(round_trip_);
    return;
  }
  const Duration sample = now - entry.first_sent;
  last_confirmed_ = now;
  round_trip_ = round_trip_ == Duration{} ? sample : (round_trip_ * 7 + sample) / 8;
  first_interval_ = first_interval_of(round_trip_);
  if (sample > kRoundTripMax) {
    shrink_window(now);
  } else {
    window_ = std::min(window_ + 1, kOutstandingMax);
  }
}

void Queries::end(Entries::iterator found, QueryResult result, Time now) {
  Entry& entry = found->second;
  const QueryId id = found->first;
  switch (result.outcome) {
    case QueryResult::Outcome::kAnswered: ++counters_.answered; break;
    case QueryResult::Outcome::kRefused: ++counters_.refused; break;
    case QueryResult::Outcome::kTimedOut: ++counters_.timed_out; break;
  }
  result.id = id;
  result.owner = entry.owner;
  result.cookie = entry.cookie;
  result.waited = now - entry.asked_at;
  result.first_sent = entry.first_sent;
  result.tries = entry.tries;
  cancel_request(id, entry);
  waiting_.erase(id);
  deadlines_.erase({entry.until, id});
  entries_.erase(found);
  results_.push_back(std::move(result));
  send_waiting_queries(now);
}

void Queries::on_timer(Time now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    end(entries_.find(deadlines_.begin()->second), {.outcome = QueryResult::Outcome::kTimedOut},
        now);
  }
  while (!resumes_.empty() && resumes_.begin()->first <= now) {
    const QueryId id = resumes_.begin()->second;
    resumes_.erase(resumes_.begin());
    send(id, entries_.at(id), now);
  }
}

Time Queries::deadline() const {
  Time earliest = kNever;
  if (!deadlines_.empty()) earliest = deadlines_.begin()->first;
  if (!resumes_.empty()) earliest = std::min(earliest, resumes_.begin()->first);
  return earliest;
}

std::optional<QueryResult> Queries::next_result() {
  if (results_.empty()) return std::nullopt;
  QueryResult result = std::move(results_.front());
  results_.pop_front();
  return result;
}

}  // namespace verbena::sa
