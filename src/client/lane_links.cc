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
  const auto access_table = link::AccessTable::attach(table->mapping.bytes());
  if (!access_table) return;
  table_ = *std::move(table);
  mark_ = *std::move(mark);
  access_table_ = *access_table;
  process.publish(*access_table_,
                  {.mark_address = mark_.place().address, .mark_value = mark_.place().value});
}

// Opens the memory of the program at the other end of a lane.  Returns null unless both programs
// allow direct access.  A program with a capture does not allow direct access, because a capture
// cannot show it.
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
  const std::size_t fds_min = message.other_user ? 2 : 3;
  if (fds.size() < fds_min) return fail(Errc::kMalformed, "the descriptors of a lane are missing");
  // Refuses a number that is in use.  A lane of the last agent may not be closed yet, and a new
  // agent may use its number again.
  if (links_.contains(message.lane)) return fail(Errc::kMalformed, "the lane exists already");
  constexpr std::size_t kBytes = link::Lane::kBytes;
  auto memory = VB_TRY(os::map_shared(fds[0].get(), kBytes, kBytes, true));
  auto peer_wake = VB_TRY(watch(message, fds));
  const auto bytes = memory.bytes();
  auto peer = fds.size() > fds_min ? open_memory(message.direct, fds[fds_min]) : nullptr;
  lanes_.set_lane_memory(message.lane, bytes, peer.get());
  links_.insert_or_assign(message.lane,
                          Link{std::move(memory), std::move(peer_wake), std::move(peer)});
  watches_.wake_receiver();  // a sleeping thread must wake up to park the new lane
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
  ++other_user_links_;
  return Wake(std::move(socket));
}

void LaneLinks::handle_wakes_and_closes() {
  while (const auto lane = lanes_.poll_wake()) {
    if (process::LaneManager::is_own(*lane)) {
      watches_.wake_receiver();
    } else if (const auto found = links_.find(*lane); found != links_.end()) {
      std::visit([](auto& peer_wake) { peer_wake.wake(); }, found->second.peer_wake);
      ++wakes_sent_;
    }
  }
  while (const auto lane = lanes_.poll_closed()) {
    const auto link = links_.extract(*lane);
    if (!link) continue;
    if (const auto* const socket = std::get_if<os::WakeSocket>(&link.mapped().peer_wake)) {
      watches_.remove_lane_of_other_user(socket->fd());
      --other_user_links_;
    }
  }
}

void LaneLinks::clear_wakes() {
  if (other_user_links_ == 0) return;
  for (auto& [lane, link] : links_) {
    if (auto* const socket = std::get_if<os::WakeSocket>(&link.peer_wake)) socket->clear();
  }
}

void LaneLinks::abandon() {
  for (auto& [lane, link] : links_) {
    link.memory.abandon();
    std::visit([](auto& peer_wake) { peer_wake.close(); }, link.peer_wake);
    if (link.peer_memory) link.peer_memory->abandon();
  }
  table_.fd.reset();
  table_.mapping.abandon();
  mark_.abandon();
}

}  // namespace verbena::client
