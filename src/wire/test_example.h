#pragma once

#include "wire/hex.h"

namespace verbena::wire {

// kExamplePacket is the example of the specification (vol1 7.8.3), from LRH to ICRC: a local packet
// with a WRITE of 14 bytes.
inline constexpr auto kExamplePacket =
    hex<"7012375c 000e17d2"
        "0a202487 0087b1b3 000dec2a"
        "01710a1c 015d4002 38f27a05 0000000e"
        "bb884d85 fd5cfba4 728bc069 0ed40000"
        "9625b75a">();

}  // namespace verbena::wire
