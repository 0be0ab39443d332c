#include "ipoib/neighbours.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace verbena::ipoib {
namespace {

bool are_equal_except_ip_addresses(const Interface& a, const Interface& b) {
  return a.port == b.port && a.pkey == b.pkey && a.scope == b.scope &&
         a.link_address == b.link_address;
}

}  // namespace

Neighbours::Neighbours(Interface interface, const Config& config)
    : interface_(std::move(interface)),
      config_(config),
      table_(config.entries_max),
      outbox_(config.frames_max) {}

// ---- Consumer

Result<std::optional<LinkAddress>> Neighbours::resolve(const Gid& ip, std::uint64_t cookie,
                                                       Time now) {
  if (!is_host_address(ip)) return fail(Errc::kInvalidArgument, "no host can have this address");
  if (interface_.owns(ip)) {
    ++counters_.hits;
    return interface_.link_address;
  }
  if (!interface_.source_for(ip)) {
    return fail(Errc::kAddressNotFound, "no address of the interface is on the same link");
  }
  Entry* entry = table_.find(ip);
  if (entry != nullptr && !entry->is_incomplete() && now - entry->confirmed_at <= kAgeMax) {
    table_.touch(*entry);
    ++counters_.hits;
    const std::optional<LinkAddress> known_address = entry->address();
    if (is_joined_ && entry->state(now) == State::kStale) send_request(*entry, false, now);
    return known_address;
  }
  if (waiters_ + outbox_.events() >= config_.waiters_max) {
    ++counters_.waiters_refused;
    return fail(Errc::kNoResources, "too many calls wait for addresses (waiters_max)");
  }
  if (entry == nullptr) {
    bool evicted = false;
    entry = table_.insert(ip, evicted);
    counters_.evicted += evicted ? 1 : 0;
    if (entry == nullptr) {
      ++counters_.entries_refused;
      return fail(Errc::kNoResources, "too many addresses are being resolved (entries_max)");
    }
  } else if (!entry->is_incomplete()) {
    table_.set_address(*entry, std::nullopt);
    entry->tries = 0;
    entry->next_request = kNever;
  }
  ++waiters_;
  entry->waiters.push_back({.cookie = cookie, .called_at = now});
  if (is_joined_ && entry->tries == 0) send_request(*entry, true, now);
  schedule(*entry);
  return std::nullopt;
}

bool Neighbours::cancel(const Gid& ip, std::uint64_t cookie) {
  Entry* const entry = table_.find(ip);
  if (entry == nullptr) return false;
  const auto waiter = std::ranges::find(entry->waiters, cookie, &Waiter::cookie);
  if (waiter == entry->waiters.end()) return false;
  entry->waiters.erase(waiter);
  --waiters_;
  if (entry->waiters.empty()) {
    table_.erase(*entry);
  } else {
    schedule(*entry);
  }
  return true;
}

std::size_t Neighbours::forget(const Gid& gid) {
  const std::vector<Gid> removed_ips = table_.addresses_with_gid(gid);
  for (const Gid& ip : removed_ips) table_.erase(*table_.find(ip));
  counters_.forgotten += removed_ips.size();
  return removed_ips.size();
}

void Neighbours::flush() {
  std::vector<Gid> removed_ips;
  for (const auto& [ip, entry] : table_.entries()) {
    if (!entry.is_incomplete()) removed_ips.push_back(ip);
  }
  for (const Gid& ip : removed_ips) table_.erase(*table_.find(ip));
  counters_.forgotten += removed_ips.size();
}

// ---- Interface

void Neighbours::set_interface(Interface interface, Time now) {
  if (!are_equal_except_ip_addresses(interface, interface_)) {
    set_joined(false, now);
    flush();
    has_announced_ = false;
  }
  const bool has_other_ip_addresses = interface.addresses != interface_.addresses;
  interface_ = std::move(interface);
  if (!has_other_ip_addresses) return;

  std::vector<Gid> removed_ips;
  for (const auto& [ip, entry] : table_.entries()) {
    if (interface_.owns(ip) || !interface_.source_for(ip)) removed_ips.push_back(ip);
  }
  for (const Gid& ip : removed_ips) {
    Entry& entry = *table_.find(ip);
    const Result<LinkAddress> result =
        interface_.owns(ip)
            ? Result<LinkAddress>(interface_.link_address)
            : fail(Errc::kAddressNotFound, "the address is not on the link any more");
    finish(entry, entry.waiters.size(), result);
    table_.erase(entry);
  }
  has_announced_ = false;
  if (is_joined_) announce();
}

void Neighbours::set_joined(bool joined, Time now) {
  if (joined == is_joined_) return;
  is_joined_ = joined;
  if (joined) joined_at_ = now;
  if (joined && !has_announced_) announce();
  for (auto& [ip, entry] : table_.entries()) {
    entry.tries = 0;
    entry.next_request = kNever;
    if (joined && entry.is_incomplete()) send_request(entry, true, now);
    schedule(entry);
  }
}

// Announces the interface's link address, so that neighbours replace an older link address.
void Neighbours::announce() {
  has_announced_ = true;
  for (const OwnAddress& own : interface_.addresses) {
    send(make_announcement(interface_, own.ip), counters_.announcements);
  }
}

// ---- Requests and time

// Sends a request, and schedules its repeat.  REQUIRES: the interface is in the broadcast group.
void Neighbours::send_request(Entry& entry, bool to_group, Time now) {
  ++entry.tries;
  entry.next_request = now + kRequestInterval;
  schedule(entry);
  send(make_request(interface_, entry.ip, to_group ? nullptr : &*entry.address()),
       entry.is_incomplete() ? counters_.requests : counters_.probes);
}

// Returns the time at which a call of resolve() at `called_at` fails.  The call may wait
// kGroupTimeout until the interface joins its broadcast group, and then kAnswerTimeout for an
// answer.  If the interface leaves the group and joins it again, kAnswerTimeout starts again, but
// the call never waits longer than both timeouts together.
Time Neighbours::waiter_deadline(Time called_at) const {
  const Time group_deadline = called_at + kGroupTimeout;
  if (!is_joined_) return group_deadline;
  return std::min(std::max(called_at, joined_at_), group_deadline) + kAnswerTimeout;
}

void Neighbours::schedule(Entry& entry) {
  Time deadline = entry.next_request;
  if (!entry.waiters.empty()) {
    deadline = std::min(deadline, waiter_deadline(entry.waiters.front().called_at));
  }
  table_.set_deadline(entry, deadline);
}

// Ends the `waiter_count` oldest calls with this result.
void Neighbours::finish(Entry& entry, std::size_t waiter_count, const Result<LinkAddress>& result) {
  for (; waiter_count > 0; --waiter_count) {
    outbox_.report({.cookie = entry.waiters.front().cookie, .ip = entry.ip, .neighbour = result});
    entry.waiters.pop_front();
    --waiters_;
    ++(result ? counters_.resolved : counters_.failed);
  }
}

void Neighbours::fail_expired(Entry& entry, Time now) {
  const auto is_waiting = [&](const Waiter& waiter) {
    return waiter_deadline(waiter.called_at) > now;
  };
  const auto first_waiting = std::ranges::find_if(entry.waiters, is_waiting);
  const auto expired_count = static_cast<std::size_t>(first_waiting - entry.waiters.begin());
  if (is_joined_) {
    return finish(entry, expired_count,
                  fail(Errc::kAddressNotFound, "no host answers for this address on the subnet",
                       EHOSTUNREACH));
  }
  counters_.failed_without_group += expired_count;
  finish(entry, expired_count,
         fail(Errc::kTimedOut, "the port has not joined the broadcast group of its partition"));
}

void Neighbours::on_timer(Time now) {
  while (Entry* const entry = table_.first_due(now)) {
    fail_expired(*entry, now);
    if (entry->is_incomplete() && entry->waiters.empty()) {
      table_.erase(*entry);
    } else if (entry->next_request > now) {
      schedule(*entry);
    } else if (!entry->is_incomplete() && entry->tries == kTries) {
      ++counters_.lost;
      table_.erase(*entry);
    } else {
      send_request(*entry, true, now);
    }
  }
}

void Neighbours::send(SendFrame frame, std::uint64_t& counter) {
  ++(outbox_.send(std::move(frame)) ? counter : counters_.frames_dropped);
}

std::vector<Row> Neighbours::rows(Time now) const {
  std::vector<Row> rows;
  for (const auto& [ip, entry] : table_.entries()) {
    const Time since = entry.is_incomplete() ? entry.waiters.front().called_at : entry.confirmed_at;
    rows.push_back({.ip = ip,
                    .state = entry.state(now),
                    .neighbour = entry.address().value_or(LinkAddress{}),
                    .age = now - since,
                    .waiters = entry.waiters.size(),
                    .tries = entry.tries});
  }
  return rows;
}

}  // namespace verbena::ipoib
