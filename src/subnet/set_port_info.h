#pragma once

#include <cstdint>

#include "subnet/device.h"
#include "subnet/sma.h"

namespace verbena::subnet {

// Applies a Set of PortInfo to a port (vol1 14.2.5.6).  Returns false, and changes nothing, if a
// value or the change of state is not allowed.  Read-only fields are ignored.  An external port of
// a switch also ignores the fields of an endport, for example LID and M_Key.
bool set_port_info(Device& device, std::uint8_t number, const wire::PortInfo& requested,
                   SmaEffects& effects);

}  // namespace verbena::subnet
