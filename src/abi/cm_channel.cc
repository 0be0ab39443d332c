#include <fcntl.h>

#include <array>
#include <atomic>

#include "abi/abi.h"
#include "abi/cm.h"
#include "abi/library.h"

// Event channels.

using namespace verbena::abi;

namespace {

// Programs destroy a channel while a thread of theirs is on its way back to rdma_get_cm_event()
// (rping does, at its end).  So the last ones destroyed stay in memory, and that thread finds what
// it would have found a moment earlier: nothing, for ever.
std::array<std::atomic<CmChannel*>, 256> resting;
std::atomic<std::size_t> next_resting{0};

}  // namespace

VB_EXPORT rdma_event_channel* rdma_create_event_channel() {
  if (int error = check_cm_library()) return null_with(error);
  std::unique_ptr<CmChannel> channel(new (std::nothrow) CmChannel{});
  if (!channel) return null_with(ENOMEM);
  if (int error = vb_cm_channel_create(&channel->library_handle, &channel->fd)) {
    explain_once();
    return null_with(error);
  }
  vb_cm_channel_hide_lost_requests(channel->library_handle);
  return channel.release();
}

// There is no way to say no: ids that still use it keep the engine's channel, and hear nothing.
VB_EXPORT void rdma_destroy_event_channel(rdma_event_channel* channel) {
  auto* mine = static_cast<CmChannel*>(channel);
  mine->blocking = (fcntl(mine->fd, F_GETFL) & O_NONBLOCK) == 0;
  mine->destroyed = true;
  vb_cm_channel_destroy(mine->library_handle);
  delete resting[next_resting++ % resting.size()].exchange(mine);
}
