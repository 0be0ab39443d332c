#include "hca/direct_access.h"

#include <algorithm>
#include <array>
#include <span>

namespace verbena::hca {
namespace {

// After a refusal, this number of requests do not wait for earlier requests, as a direct access
// would have to.
constexpr std::uint32_t kRequestsAfterRefusal = 64;

}  // namespace

struct DirectAccess::Parts {
  std::array<std::span<std::byte>, link::PeerMemory::kPartsMax> spans;
  std::size_t count = 0;

  std::span<const std::span<std::byte>> used_spans() const { return std::span(spans).first(count); }
};

void DirectAccess::start() {
  generation_ = 0;
  copied_bytes_ = 0;
  requests_not_to_wait_ = 0;
  short_writes_ = {};
}

// Requests without bytes need no rights, so packets are simpler for them.  A QP that may migrate
// sends packets, because its path could change between the check and the record.
bool DirectAccess::can_carry_out(const SendWqe& wqe) const {
  const bool is_long_enough =
      wqe.opcode == WrOpcode::kWriteImm
          ? wqe.length >= kImmediateBytesMin
          : (wqe.opcode == WrOpcode::kWrite || wqe.opcode == WrOpcode::kRead) && wqe.length > 0;
  return has_peer() && is_long_enough && core_.attributes.migration == MigrationState::kMigrated &&
         core_.lane->peer_allows_access();
}

// Finds the memory of the next bytes.  Returns false if an element names no memory that the engine
// can copy, such as a null region, or if the bytes are in too many elements.
bool DirectAccess::find_parts(const SendWqe& wqe, std::uint32_t bytes, Parts& parts) const {
  if (wqe.is_copied()) {
    std::byte* const copy = const_cast<std::byte*>(SendQueue::copied_bytes(wqe));
    parts.spans[parts.count++] = {copy + copied_bytes_, bytes};
    return true;
  }
  const std::uint32_t needed = wqe.opcode == WrOpcode::kRead ? access::kLocalWrite : 0;
  std::uint64_t skip = copied_bytes_;
  std::uint64_t remaining = bytes;
  for (const Sge& sge : SendQueue::sges(wqe)) {
    if (remaining == 0) break;
    if (skip >= sge.length) {
      skip -= sge.length;
      continue;
    }
    const std::uint64_t part = std::min(sge.length - skip, remaining);
    const auto found =
        core_.shared.memory.find(core_.pd, sge.lkey, sge.address + skip, part, needed);
    if (!found || parts.count == parts.spans.size()) return false;
    parts.spans[parts.count++] = *found;
    remaining -= part;
    skip = 0;
  }
  return remaining == 0;
}

link::AccessRequest DirectAccess::make_request(const SendWqe& wqe, Psn first,
                                               std::uint32_t psns) const {
  const QpAttributes& a = core_.attributes;
  const bool is_read = wqe.opcode == WrOpcode::kRead;
  return {.target = a.destination_qpn,
          .initiator = core_.qpn,
          .initiator_address = a.path.address.source,
          .pkey = core_.shared.ports.pkeys(a.path.address.port).at(a.pkey_index),
          .mtu = static_cast<std::uint8_t>(a.path_mtu),
          .generation = generation_,
          .first_psn = first,
          .psns = psns,
          .access_flags = is_read ? access::kRemoteRead : access::kRemoteWrite,
          .r_key = wqe.r_key,
          .remote_address = wqe.remote.address,
          .length = wqe.length};
}

void DirectAccess::note_started(const SendWqe& wqe) {
  if (!is_short_write(wqe)) return;
  short_writes_.add(program_has_emptied_cq());
  last_short_write_epoch_ = core_.send_cq.start_epoch();
}

DirectAccess::Outcome DirectAccess::refuse() {
  copied_bytes_ = 0;
  requests_not_to_wait_ = kRequestsAfterRefusal;
  ++core_.shared.counters[Counter::kDirectRefused];
  return Outcome::kRefused;
}

DirectAccess::Outcome DirectAccess::carry_out(const SendWqe& wqe, Psn first, std::uint32_t psns) {
  link::Lane& lane = *core_.lane;
  // Checks that the lane has space for the record before any byte is copied.
  if (!lane.prepare_executed()) return lane.ended() ? refuse() : Outcome::kLaneFull;
  const bool has_immediate = wqe.opcode == WrOpcode::kWriteImm;
  const std::uint32_t total = has_immediate ? psns * core_.mtu() : wqe.length;
  const std::uint32_t bytes = std::min(total - copied_bytes_, kBytesMax);
  Parts parts;
  if (!find_parts(wqe, bytes, parts)) return refuse();

  const bool is_read = wqe.opcode == WrOpcode::kRead;
  link::PeerMemory& memory = *lane.peer_memory();
  lane.begin_access();
  const auto granted = lane.peer_allows_access()
                           ? link::grant(memory.table(), make_request(wqe, first, psns))
                           : std::nullopt;
  bool copied = false;
  if (granted) {
    const std::uint64_t address = granted->address + copied_bytes_;
    copied = is_read ? memory.read(address, parts.used_spans())
                     : memory.write(address, parts.used_spans());
  }
  lane.leave();
  core_.shared.copied_bytes += bytes;
  if (!copied) return refuse();

  generation_ = granted->generation;
  copied_bytes_ += bytes;
  if (copied_bytes_ < total) return Outcome::kMore;
  copied_bytes_ = 0;
  requests_not_to_wait_ = 0;
  using Kind = link::ExecutedRecord::Kind;
  lane.commit(link::ExecutedRecord{.generation = generation_,
                                   .target_qpn = core_.attributes.destination_qpn.value,
                                   .initiator_qpn = core_.qpn.value,
                                   .first_psn = first.value,
                                   .psns = psns,
                                   .bytes = total,
                                   .kind = is_read         ? Kind::kRead
                                           : has_immediate ? Kind::kWriteBeforeImmediate
                                                           : Kind::kWrite,
                                   .r_key = wqe.r_key,
                                   .message_bytes = wqe.length,
                                   .remote_address = wqe.remote.address});
  note_started(wqe);
  core_.count_direct(is_read, is_read ? DataFlow::kIn : DataFlow::kOut, psns, total);
  return Outcome::kDone;
}

}  // namespace verbena::hca
