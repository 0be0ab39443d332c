#pragma once

#include <cstdint>
#include <span>

#include "subnet/device.h"
#include "wire/performance.h"

namespace verbena::subnet {

// Answers a Get or Set of the performance management class (vol1 16.1).  Replaces the data of the
// request, which begin at wire::kPerformanceDataOffset, with the data of the answer.  Returns the
// status of the answer.
// PortSamples and other optional attributes are not supported.
std::uint16_t pma_answer(Device& device, const wire::MadHeader& header,
                         std::span<std::byte, wire::kPerformanceDataBytes> data);

}  // namespace verbena::subnet
