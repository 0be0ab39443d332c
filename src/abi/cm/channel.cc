#include <fcntl.h>

#include <array>
#include <atomic>

#include "abi/abi.h"
#include "abi/cm/cm.h"
#include "abi/library.h"

// Implements event channels.

using namespace verbena::abi;

namespace {

// A program may destroy a channel while one of its threads is about to call rdma_get_cm_event()
// again (rping does so when it ends).  So the memory of the 256 channels that were destroyed last
// is not freed.  If O_NONBLOCK was not set, such a thread blocks for ever, as if it had made the
// call before the channel was destroyed.
std::array<std::atomic<CmChannel*>, 256> destroyed_channels;
std::atomic<std::size_t> next_destroyed{0};

}  // namespace

void verbena::abi::cm_release_channel(CmChannel& channel) {
  if (--channel.users != 0) return;
  vb_cm_channel_destroy(channel.library_handle);
  delete destroyed_channels[next_destroyed++ % destroyed_channels.size()].exchange(&channel);
}

VB_EXPORT rdma_event_channel* rdma_create_event_channel() {
  if (int error = check_cm_library()) return null_with(error);
  std::unique_ptr<CmChannel> channel(new (std::nothrow) CmChannel{});
  if (!channel) return null_with(ENOMEM);
  if (int error = vb_cm_channel_create(&channel->library_handle, &channel->fd)) {
    explain_once();
    return null_with(error);
  }
  // If this host cannot connect to other hosts, prints the reason before the first connect fails.
  vb_port_attr port{};
  if (vb_port_query(0, 1, &port) == 0 && port.host_alone != 0) explain_once();
  vb_cm_channel_hide_lost_requests(channel->library_handle);
  return channel.release();
}

// Destroying a channel cannot fail.  If ids still use the channel, libverbena would refuse to
// destroy it (EBUSY).  So the channel of libverbena and its descriptor exist until the last id is
// destroyed.
VB_EXPORT void rdma_destroy_event_channel(rdma_event_channel* channel) {
  auto* self = static_cast<CmChannel*>(channel);
  self->was_blocking = (fcntl(self->fd, F_GETFL) & O_NONBLOCK) == 0;
  self->is_destroyed = true;
  cm_release_channel(*self);
}
