#include "broker/broker.h"

#include <algorithm>
#include <utility>

namespace verbena::broker {

void Broker::report(ProgramId program, const Report& report) {
  ++counters_.reports;
  if (report.continues != 0 && !has_memory(report.cookie)) {
    return send_unknown(program, report);
  }
  auto& cookies = cookies_of_[program];
  if (!cookies.contains(report.cookie) && cookies.size() >= limits_.ends_per_program) {
    ++counters_.limit_refusals;
    if (report.continues != 0) send_unknown(program, report);
    return;
  }
  const auto [found, is_new] = ends_.try_emplace(report.cookie);
  Socket& socket = found->second;
  if (!is_new && socket.connection != report.connection) detach(report.cookie);
  socket.connection = report.connection;
  cookies.insert(report.cookie);
  socket.holders[program] = report.number;
  without_holder_.erase(report.cookie);
  if (socket.pair) {
    if (pairs_.at(*socket.pair).memory == Memory::kMade) {
      send_memory(program, report.number, report.cookie, socket);
    }
    return;
  }
  const auto peer = without_pair_.find(socket.connection.mirrored());
  if (peer != without_pair_.end() && peer->second != report.cookie) {
    return introduce(report.cookie, peer->second);
  }
  // This may replace an older socket with the same addresses.  The older socket was closed, but its
  // holder has not reported that yet.
  without_pair_[socket.connection] = report.cookie;
}

bool Broker::has_memory(std::uint64_t cookie) const {
  const auto end = ends_.find(cookie);
  return end != ends_.end() && end->second.pair &&
         pairs_.at(*end->second.pair).memory == Memory::kMade;
}

// Removes a socket from its pair and its holders, because the socket has another connection now
// (connect() to AF_UNSPEC, and then to another peer).
void Broker::detach(std::uint64_t cookie) {
  Socket& socket = ends_.at(cookie);
  if (const auto waiting = without_pair_.find(socket.connection);
      waiting != without_pair_.end() && waiting->second == cookie) {
    without_pair_.erase(waiting);
  }
  for (const auto& [program, number] : std::exchange(socket.holders, {})) {
    cookies_of_[program].erase(cookie);
  }
  if (!socket.pair) return;
  leave_pair(*std::exchange(socket.pair, std::nullopt), cookie);
}

// Removes an end from its pair, and removes a pair whose ends are both removed.  The pair must not
// keep the cookie, because the same socket may be reported again with another connection.
void Broker::leave_pair(PairId id, std::uint64_t cookie) {
  constexpr std::uint64_t kNoCookie = 0;
  auto& cookies = pairs_.at(id).cookies;
  std::ranges::replace(cookies, cookie, kNoCookie);
  if (std::ranges::count(cookies, kNoCookie) < std::ssize(cookies)) return;
  pairs_.erase(id);
  outputs_.emplace_back(Release{id});
}

void Broker::introduce(std::uint64_t cookie, std::uint64_t peer) {
  Socket& second = ends_.at(cookie);
  Socket& first = ends_.at(peer);
  if (pairs_.size() >= limits_.pairs) {
    ++counters_.limit_refusals;
    without_pair_[second.connection] = cookie;  // a later report tries again
    return;
  }
  without_pair_.erase(first.connection);
  if (const auto stale = without_pair_.find(second.connection);
      stale != without_pair_.end() && stale->second == cookie) {
    without_pair_.erase(stale);
  }
  const PairId pair = next_pair_++;
  pairs_[pair] = {.cookies = {peer, cookie}};
  first.pair = second.pair = pair;
  first.side = 0;
  second.side = 1;
  outputs_.emplace_back(MakeMemory{pair});
}

void Broker::memory_made(PairId pair, bool success) {
  const auto found = pairs_.find(pair);
  if (found == pairs_.end()) return;
  found->second.memory = success ? Memory::kMade : Memory::kFailed;
  if (!success) {
    ++counters_.limit_refusals;
    return;
  }
  ++counters_.pairs_made;
  for (const std::uint64_t cookie : found->second.cookies) {
    const auto end = ends_.find(cookie);
    if (end == ends_.end()) continue;
    for (const auto& [program, number] : end->second.holders) {
      send_memory(program, number, cookie, end->second);
    }
  }
}

void Broker::send_memory(ProgramId program, std::uint32_t number, std::uint64_t cookie,
                         const Socket& socket) {
  outputs_.emplace_back(
      SendMemory{.program = program,
                 .pair = *socket.pair,
                 .message = {.number = number, .cookie = cookie, .side = socket.side}});
}

// Answers a report that continues a stream, because the program waits for an answer.
void Broker::send_unknown(ProgramId program, const Report& report) {
  outputs_.emplace_back(SendUnknown{program, {.number = report.number, .cookie = report.cookie}});
}

void Broker::forget(ProgramId program, const Forget& forget, Time now) {
  remove_holder(program, forget.cookie, now);
}

void Broker::program_ended(ProgramId program, Time now) {
  const auto found = cookies_of_.find(program);
  if (found == cookies_of_.end()) return;
  const std::set<std::uint64_t> cookies = std::move(found->second);
  cookies_of_.erase(found);
  for (const std::uint64_t cookie : cookies) remove_holder(program, cookie, now);
}

void Broker::remove_holder(ProgramId program, std::uint64_t cookie, Time now) {
  if (const auto cookies = cookies_of_.find(program); cookies != cookies_of_.end())
    cookies->second.erase(cookie);
  const auto found = ends_.find(cookie);
  if (found == ends_.end() || found->second.holders.erase(program) == 0) return;
  if (!found->second.holders.empty()) return;
  if (!found->second.pair) return erase(cookie);
  without_holder_.insert(cookie);
  outputs_.emplace_back(CheckSocket{cookie, found->second.connection});
  if (next_check_ == kNever) next_check_ = now + kCheckInterval;
}

void Broker::socket_checked(std::uint64_t cookie, bool exists, Time now) {
  if (!without_holder_.contains(cookie)) return;
  if (!exists) {
    without_holder_.erase(cookie);
    erase(cookie);
  }
  next_check_ = without_holder_.empty() ? kNever : std::min(next_check_, now + kCheckInterval);
}

void Broker::on_timer(Time now) {
  if (now < next_check_) return;
  next_check_ = without_holder_.empty() ? kNever : now + kCheckInterval;
  for (const std::uint64_t cookie : without_holder_) {
    outputs_.emplace_back(CheckSocket{cookie, ends_.at(cookie).connection});
  }
}

void Broker::erase(std::uint64_t cookie) {
  const auto found = ends_.find(cookie);
  const Socket socket = std::move(found->second);
  ends_.erase(found);
  if (!socket.pair) {
    const auto waiting = without_pair_.find(socket.connection);
    if (waiting != without_pair_.end() && waiting->second == cookie) without_pair_.erase(waiting);
    return;
  }
  leave_pair(*socket.pair, cookie);
}

std::optional<Broker::Output> Broker::poll() {
  if (outputs_.empty()) return std::nullopt;
  Output output = outputs_.front();
  outputs_.pop_front();
  return output;
}

std::vector<Broker::End> Broker::ends() const {
  std::vector<End> all;
  all.reserve(ends_.size());
  for (const auto& [cookie, socket] : ends_) all.push_back(describe(cookie, socket));
  return all;
}

std::optional<Broker::End> Broker::end(std::uint64_t cookie) const {
  const auto found = ends_.find(cookie);
  if (found == ends_.end()) return std::nullopt;
  return describe(cookie, found->second);
}

Broker::End Broker::describe(std::uint64_t cookie, const Socket& socket) {
  End end{
      .cookie = cookie, .connection = socket.connection, .pair = socket.pair, .side = socket.side};
  for (const auto& [program, number] : socket.holders) end.holders.push_back(program);
  return end;
}

std::vector<std::uint64_t> Broker::cookies_of_pair(PairId pair) const {
  const auto found = pairs_.find(pair);
  if (found == pairs_.end()) return {};
  return {found->second.cookies.begin(), found->second.cookies.end()};
}

std::vector<std::uint64_t> Broker::cookies_of_program(ProgramId program) const {
  const auto found = cookies_of_.find(program);
  if (found == cookies_of_.end()) return {};
  return {found->second.begin(), found->second.end()};
}

}  // namespace verbena::broker
