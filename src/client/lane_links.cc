#include "client/lane_links.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "ipc/lane_messages.h"
#include "os/entropy.h"

namespace verbena::client {
namespace {

// Returns true if the program runs under valgrind.  Valgrind does not see the writes of other
// processes, and would report that the memory is uninitialised.
bool runs_under_valgrind() {
  const char* const preload = ::secure_getenv("LD_PRELOAD");
  return preload != nullptr && std::strstr(preload, "vgpreload_") != nullptr;
}

}  // namespace

void LaneLinks::publish(process::Process& process) {
  if (runs_under_valgrind()) return;
  Random random(os::random_key());
  auto mark = os::MemoryMark::create(random);
  if (!mark) return;
  auto table =
      os::create_shared_memory("verbena-access", link::AccessTable::kBytes, os::Writers::kCreator);
  if (!table) return;
  const auto attached = link::AccessTable::attach(table->mapping.bytes());
  if (!attached) return;
  table_ = *std::move(table);
  mark_ = *std::move(mark);
  access_table_ = *attached;
  process.publish(*access_table_,
                  {.mark_address = mark_.place().address, .mark_value = mark_.place().value});
}

// Opens the memory of the program at the other end of a lane.  Returns null unless both programs
// allow direct access.  A program with a capture does not, because a capture cannot show it.
std::unique_ptr<os::ProcessMemory> LaneLinks::open_memory(const ipc::DirectAccess& direct,
                                                          const os::Fd& table) const {
  if (direct.pid == 0 || !access_table_) return nullptr;
  constexpr std::size_t kBytes = link::AccessTable::kBytes;
  auto mapping = os::map_shared(table.get(), kBytes, kBytes, false);
  if (!mapping) return nullptr;
  auto memory =
      os::ProcessMemory::open(static_cast<pid_t>(direct.pid),
                              {direct.mark_address, direct.mark_value}, *std::move(mapping));
  return memory ? *std::move(memory) : nullptr;
}

Result<void> LaneLinks::add(const ipc::Lane& message, std::vector<os::Fd> fds) {
  const std::size_t needed = message.other_user ? 2 : 3;
  if (fds.size() < needed) return fail(Errc::kMalformed, "the descriptors of a lane are missing");
  // A new agent may reuse the number of a lane of the last agent that is not closed yet.
  if (links_.contains(message.lane)) return fail(Errc::kMalformed, "the lane exists already");
  constexpr std::size_t kBytes = link::Lane::kBytes;
  auto memory = VB_TRY(os::map_shared(fds[0].get(), kBytes, kBytes, true));
  auto other = VB_TRY(watch(message, fds));
  const auto bytes = memory.bytes();
  auto peer = fds.size() > needed ? open_memory(message.direct, fds[needed]) : nullptr;
  lanes_.offer_memory(message.lane, bytes, peer.get());
  links_.insert_or_assign(message.lane, Link{std::move(memory), std::move(other), std::move(peer)});
  watches_.wake_receiver();  // a thread that already sleeps must wake up to park the new lane
  return {};
}

// Watches the descriptor by which the program at the other end wakes this one.  Returns the
// descriptor by which this program wakes the other one.
Result<LaneLinks::Wake> LaneLinks::watch(const ipc::Lane& message, std::vector<os::Fd>& fds) {
  if (!message.other_user) {
    VB_TRY_VOID(watches_.add_lanes(os::WakeFd::adopt(std::move(fds[1]))));
    return Wake(os::WakeFd::adopt(std::move(fds[2])));
  }
  auto socket = VB_TRY(os::WakeSocket::adopt(std::move(fds[1])));
  VB_TRY_VOID(watches_.add_lane_of_other_user(socket.fd()));
  ++of_other_users_;
  return Wake(std::move(socket));
}

void LaneLinks::carry_out() {
  while (const auto lane = lanes_.poll_wake()) {
    if (process::LaneManager::is_own(*lane)) {
      watches_.wake_receiver();
    } else if (const auto found = links_.find(*lane); found != links_.end()) {
      std::visit([](auto& other) { other.wake(); }, found->second.other);
      ++wakes_sent_;
    }
  }
  while (const auto lane = lanes_.poll_closed()) {
    const auto link = links_.extract(*lane);
    if (!link) continue;
    if (const auto* const socket = std::get_if<os::WakeSocket>(&link.mapped().other)) {
      watches_.remove_lane_of_other_user(socket->fd());
      --of_other_users_;
    }
  }
}

void LaneLinks::clear_wakes() {
  if (of_other_users_ == 0) return;
  for (auto& [lane, link] : links_) {
    if (auto* const socket = std::get_if<os::WakeSocket>(&link.other)) socket->clear();
  }
}

void LaneLinks::abandon() {
  for (auto& [lane, link] : links_) {
    link.memory.abandon();
    std::visit([](auto& other) { other.close(); }, link.other);
    if (link.other_memory) link.other_memory->abandon();
  }
  table_.fd.reset();
  table_.mapping.abandon();
  mark_.abandon();
}

}  // namespace verbena::client
