#pragma once

#include <cstdint>

namespace verbena::process {

// Names the asynchronous events that do not concern a QP.  The numbers are those of enum
// ibv_event_type; hca::QpEvent::Kind has the events of QPs.
enum class AsyncType : std::uint32_t {
  kCqError = 0,
  kDeviceFatal = 8,
  kPortActive = 9,
  kPortError = 10,
  kLidChange = 11,
  kPkeyChange = 12,
  kSmChange = 13,
  kSrqLimitReached = 15,
  kClientReregister = 17,
  kGidChange = 18,
};

}  // namespace verbena::process
