#pragma once

#include <cstring>

#include "fabric/line.h"
#include "rdmacm/types.h"

// What client and server of the simulation tell each other in the private data of REQ and REP.
namespace verbena::fabric {

struct Wishes {
  std::uint32_t sends = 0;    // how many SENDs will come
  std::uint32_t hang_up = 0;  // the server is to disconnect after the last
};

inline void write_wishes(rdmacm::ConnParam& param, const Wishes& wishes) {
  std::memcpy(param.private_data.data(), &wishes, sizeof wishes);
  param.private_data_bytes = sizeof wishes;
}
inline Wishes read_wishes(const rdmacm::ConnParam& param) {
  Wishes wishes;
  std::memcpy(&wishes, param.private_data.data(), sizeof wishes);
  return wishes;
}

inline void write_memory(rdmacm::ConnParam& param, const RemoteMemory& memory) {
  std::memcpy(param.private_data.data(), &memory, sizeof memory);
  param.private_data_bytes = sizeof memory;
}
inline RemoteMemory read_memory(const rdmacm::ConnParam& param) {
  RemoteMemory memory;
  std::memcpy(&memory, param.private_data.data(), sizeof memory);
  return memory;
}

}  // namespace verbena::fabric
