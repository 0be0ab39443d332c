#include "ipc/tool_messages.h"

#include <algorithm>

namespace verbena::ipc {

const PortStatus* StatusReply::find_down_port() const {
  const auto found = std::ranges::find(ports, false, &PortStatus::active);
  return found == ports.end() ? nullptr : &*found;
}

}  // namespace verbena::ipc
