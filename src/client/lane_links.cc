#include "client/lane_links.h"

#include <utility>

namespace verbena::client {

Result<void> LaneLinks::add(const ipc::Lane& message, std::vector<os::Fd> fds) {
  constexpr std::size_t kDescriptors = 3;
  if (fds.size() != kDescriptors) return fail(Errc::kMalformed, "a lane without its descriptors");
  constexpr std::size_t kBytes = link::Lane::kBytes;
  auto memory = VB_TRY(os::map_shared(fds[0].get(), kBytes, kBytes, true));
  VB_TRY_VOID(watches_.add_lanes(os::WakeFd::adopt(std::move(fds[1]))));
  const auto bytes = memory.bytes();
  links_.insert_or_assign(message.lane,
                          Link{std::move(memory), os::WakeFd::adopt(std::move(fds[2]))});
  lanes_.offer_memory(message.lane, bytes);
  watches_.wake();  // a progress thread that sleeps has not parked this lane
  return {};
}

void LaneLinks::carry_out() {
  while (const auto lane = lanes_.poll_wake()) {
    if (process::LaneManager::is_own(*lane)) {
      watches_.wake();
    } else if (const auto found = links_.find(*lane); found != links_.end()) {
      found->second.other.wake();
    }
  }
  while (const auto lane = lanes_.poll_closed()) links_.erase(*lane);
}

void LaneLinks::abandon() {
  for (auto& [lane, link] : links_) {
    link.memory.abandon();
    link.other.close();
  }
}

}  // namespace verbena::client
