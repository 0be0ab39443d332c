#include "agent/uplinks.h"

#include <algorithm>

#include "ipc/counters.h"
#include "os/clock.h"

namespace verbena::agent {

void copy_packet(const link::Arrival& arrival, std::span<std::byte> out) {
  std::ranges::copy(arrival.transport, out.begin());
  std::ranges::copy(arrival.headers, out.begin());
}

Result<std::unique_ptr<Uplinks>> Uplinks::create(asio::io_context& loop, Reader& reader,
                                                 WakeCallback on_wake) {
  auto wake = VB_TRY(os::WakeFd::create());
  return std::unique_ptr<Uplinks>(new Uplinks(loop, reader, std::move(wake), std::move(on_wake)));
}

Uplinks::Uplinks(asio::io_context& loop, Reader& reader, os::WakeFd wake, WakeCallback on_wake)
    : loop_(loop),
      reader_(reader),
      wake_(std::move(wake)),
      on_wake_(std::move(on_wake)),
      full_lane_timer_(loop, [this] { on_wake_(); }) {
  watch_ = Watch(loop, wake_.fd(), [this] {
    wake_.clear();
    on_wake_();
  });
}

// ---- programs -----------------------------------------------------------------------------------

Result<std::uint16_t> Uplinks::lease(HostIndex host, Random& random,
                                     std::span<const std::uint16_t> avoid) {
  const std::uint16_t range =
      VB_TRY(ranges_.lease(random, avoid, [](std::uint16_t) { return false; }));
  host_of_range_[range] = host;
  return range;
}

void Uplinks::release(std::uint16_t range) {
  ranges_.release(range);
  host_of_range_.erase(range);
  program_of_range_.erase(range);
}

std::size_t Uplinks::leases(HostIndex host) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      host_of_range_, [&](const auto& entry) { return entry.second == host; }));
}

Result<std::vector<int>> Uplinks::attach(const ProgramId& program, std::uint16_t range,
                                         std::optional<int> wake) {
  if (uplinks_.contains(program)) {
    program_of_range_[range] = program;
    return std::vector<int>();
  }
  if (uplinks_.size() == kUplinksMax) {
    ++counters_.limit;
    return fail(Errc::kNoResources, "too many uplinks (kUplinksMax)");
  }
  auto memory = VB_TRY(os::create_shared_memory("verbena-uplink", link::Lane::kBytes));
  const auto lane = VB_TRY(link::Lane::attach(memory.mapping.bytes(), link::Lane::Side::kSecond));
  std::vector<int> fds{memory.fd.get()};
  if (wake) {
    auto program_wake = os::WakeFd::adopt(VB_TRY(os::duplicate_fd(*wake)));
    uplinks_.try_emplace(program, std::move(memory.mapping), lane, std::move(program_wake));
    fds.insert(fds.end(), {*wake, wake_.fd()});
  } else {
    auto [own_end, program_end] = VB_TRY(os::WakeSocket::create_pair());
    fds_to_pass_.push_back(VB_TRY(os::duplicate_fd(program_end.fd())));
    fds.push_back(fds_to_pass_.back().get());
    const auto added =
        uplinks_.try_emplace(program, std::move(memory.mapping), lane, std::move(own_end));
    Uplink& uplink = added.first->second;
    auto& socket = std::get<os::WakeSocket>(uplink.wake_);
    uplink.socket_watch_ = Watch(loop_, socket.fd(), [this, &socket] {
      socket.clear();
      on_wake_();
    });
  }
  fds_to_pass_.push_back(std::move(memory.fd));
  program_of_range_[range] = program;
  return fds;
}

void Uplinks::release_passed_descriptors() { fds_to_pass_.clear(); }

void Uplinks::detach(const ProgramId& program) {
  const auto found = uplinks_.find(program);
  if (found == uplinks_.end()) return;
  constexpr std::size_t kRecordsMax = link::Lane::kRingBytes / ring::kRecordAlignment;
  const Time now = os::now();
  found->second.lane_.receive(kRecordsMax, [&](const link::Arrival& arrival) {
    return reader_.pass(program, arrival, now, false);
  });
  flush();
  uplinks_.erase(found);
  std::erase_if(program_of_range_, [&](const auto& entry) { return entry.second == program; });
}

Uplinks::Uplink* Uplinks::find(const ProgramId& program) {
  const auto found = uplinks_.find(program);
  return found == uplinks_.end() ? nullptr : &found->second;
}

std::optional<ProgramId> Uplinks::program_of(HostIndex host, std::uint16_t range) const {
  const auto program = program_of_range_.find(range);
  if (program == program_of_range_.end() || program->second.first != host) return {};
  return program->second;
}

// ---- packets ------------------------------------------------------------------------------------

bool Uplinks::read(Time now) {
  last_read_ = now;
  bool has_read = false;
  for (auto& [id, uplink] : uplinks_) {
    uplink.is_blocked_ = false;
    const auto pass = [&](const link::Arrival& arrival) {
      uplink.is_blocked_ = !reader_.pass(id, arrival, now, true);
      return !uplink.is_blocked_;
    };
    has_read |= uplink.lane_.receive(kRecordsPerRead, pass) != 0;
    if (uplink.lane_.finish()) uplink.wake();
    if (uplink.lane_.ended()) broken_.push_back(id);
  }
  flush();
  for (const ProgramId& id : std::exchange(broken_, {})) {
    ++counters_.broken;
    detach(id);
  }
  return has_read;
}

void Uplinks::flush() {
  Time deadline = kNever;
  for (auto& [id, uplink] : uplinks_) {
    if (uplink.lane_.flush()) uplink.wake();
    if (uplink.full_since_ == kNever) continue;
    // No packet waits for this lane any more if its timeout was over at the last read().
    const Time end_of_timeout = uplink.full_since_ + kFullLaneTimeout;
    if (end_of_timeout > last_read_) deadline = std::min(deadline, end_of_timeout);
  }
  full_lane_timer_.at(deadline);
}

bool Uplinks::deliver(Uplink& receiver, const link::Address& address, const link::Arrival& arrival,
                      Time now, bool may_wait) {
  if (!receiver.lane_.prepare(address)) {
    if (receiver.full_since_ == kNever) receiver.full_since_ = now;
    if (may_wait && !receiver.lane_.ended() && now < receiver.full_since_ + kFullLaneTimeout)
      return false;
    ++counters_.receiver_full;
    return true;
  }
  receiver.full_since_ = kNever;
  copy_packet(arrival, receiver.lane_.packet_space());
  receiver.lane_.commit(arrival.transport.size());
  ++counters_.forwarded;
  return true;
}

// ---- sleeping -----------------------------------------------------------------------------------

bool Uplinks::park() {
  bool may_sleep = true;
  for (auto& [id, uplink] : uplinks_) {
    may_sleep =
        (uplink.is_blocked_ ? uplink.lane_.park_for_space() : uplink.lane_.park()) && may_sleep;
  }
  counters_.sleeps += may_sleep ? 1 : 0;
  return may_sleep;
}

void Uplinks::unpark() {
  for (auto& [id, uplink] : uplinks_) uplink.lane_.unpark();
}

void Uplinks::add_counters(std::vector<ipc::NamedCount>& out) const {
  const auto add = [&](const char* name, std::uint64_t value) { out.push_back({name, value}); };
  add("forwarded", counters_.forwarded);
  add("dropped_receiver_full", counters_.receiver_full);
  add("uplinks", uplinks_.size());
  add("uplinks_broken", counters_.broken);
  add("limit_uplinks", counters_.limit);
  add("sleeps", counters_.sleeps);
}

}  // namespace verbena::agent
