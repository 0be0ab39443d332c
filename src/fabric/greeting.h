#pragma once

#include <cstring>

#include "fabric/rc_endpoint.h"
#include "rdmacm/types.h"

// Encodes and decodes the private data of the REQs and REPs between the client and the server of
// this layer.
namespace verbena::fabric {

// Tells the server what the client is going to do.  The REQ carries it as private data.
struct ClientPlan {
  std::uint32_t sends = 0;               // the number of SENDs that the client will make
  std::uint32_t server_disconnects = 0;  // 1: the server disconnects after its last echo
};

inline void encode_plan(rdmacm::ConnParam& param, const ClientPlan& plan) {
  std::memcpy(param.private_data.data(), &plan, sizeof plan);
  param.private_data_bytes = sizeof plan;
}
inline ClientPlan decode_plan(const rdmacm::ConnParam& param) {
  ClientPlan plan;
  std::memcpy(&plan, param.private_data.data(), sizeof plan);
  return plan;
}

inline void encode_memory(rdmacm::ConnParam& param, const RemoteMemory& memory) {
  std::memcpy(param.private_data.data(), &memory, sizeof memory);
  param.private_data_bytes = sizeof memory;
}
inline RemoteMemory decode_memory(const rdmacm::ConnParam& param) {
  RemoteMemory memory;
  std::memcpy(&memory, param.private_data.data(), sizeof memory);
  return memory;
}

}  // namespace verbena::fabric
