#include "abi/abi.h"
#include "abi/cm.h"
#include "abi/engine.h"

// Event channels.

using namespace verbena::abi;

VB_EXPORT rdma_event_channel* rdma_create_event_channel() {
  if (int error = check_cm_engine()) return null_with(error);
  std::unique_ptr<CmChannel> channel(new (std::nothrow) CmChannel{});
  if (!channel) return null_with(ENOMEM);
  if (int error = vb_cm_channel_create(&channel->engine, &channel->fd)) {
    explain_once();
    return null_with(error);
  }
  return channel.release();
}

// There is no way to say no: ids that still use it keep the engine's channel, and hear nothing.
VB_EXPORT void rdma_destroy_event_channel(rdma_event_channel* channel) {
  auto* mine = static_cast<CmChannel*>(channel);
  vb_cm_channel_destroy(mine->engine);
  delete mine;
}
