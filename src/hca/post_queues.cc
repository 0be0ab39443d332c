#include "hca/post_queues.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "hca/operations.h"

namespace verbena::hca {
namespace {

// Returns the size of the space for elements in a slot.  The space also holds the copy of a small
// request, or inline data.
std::uint32_t send_element_bytes(const QpCaps& caps) {
  const auto elements = caps.max_send_sge * static_cast<std::uint32_t>(sizeof(Sge));
  return std::max(caps.max_inline_bytes, elements + kCopiedBytesMax);
}

std::uint64_t total_length(std::span<const Sge> sges) {
  std::uint64_t length = 0;
  for (const Sge& sge : sges) length += sge.length;
  return length;
}

template <class Wqe>
std::uint64_t copy_sges(Wqe& wqe, std::span<const Sge> sges) {
  std::uint64_t length = 0;
  Sge* const to = WorkQueue<Wqe>::sge_space(wqe);
  for (std::size_t i = 0; i < sges.size(); ++i) {
    ::new (to + i) Sge(sges[i]);
    length += sges[i].length;
  }
  wqe.sge_count = static_cast<decltype(wqe.sge_count)>(sges.size());
  return length;
}

// Copies inline data at the post.  Inline data needs no key (vol1 10.7.2).
void copy_inline(std::byte* to, std::span<const Sge> sges) {
  for (const Sge& sge : sges) {
    if (sge.length == 0) continue;
    const auto address = static_cast<std::uintptr_t>(sge.address);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): in verbs an address is an integer
    std::memcpy(to, reinterpret_cast<const std::byte*>(address), sge.length);
    to += sge.length;
  }
}

// Returns true if the transport supports this request (vol1 9.3, table 38; 10.6.7.2 for windows).
bool supports(QpType type, WrOpcode opcode) {
  const bool is_send = opcode == WrOpcode::kSend || opcode == WrOpcode::kSendImm;
  const bool is_write = opcode == WrOpcode::kWrite || opcode == WrOpcode::kWriteImm;
  if (type == QpType::kUd) return is_send;
  return type == QpType::kRc || is_send || is_write || is_local(opcode);
}

}  // namespace

PostQueues::PostQueues(QpCore& core)
    : core_(core),
      sends_(core.init.caps.max_send_wr, send_element_bytes(core.init.caps),
             core.init.type == QpType::kUd ? sizeof(DatagramTarget) : 0),
      receives_(core.init.caps.max_recv_wr,
                core.init.caps.max_recv_sge * static_cast<std::uint32_t>(sizeof(Sge))) {}

void PostQueues::set_state(QpState state) {
  const std::scoped_lock lock(sends_.mutex(), receives_.mutex());
  core_.attributes.state = state;
  state_.store(state, std::memory_order_relaxed);
}

void PostQueues::clear() {
  const std::scoped_lock lock(sends_.mutex(), receives_.mutex());
  sends_.clear();
  receives_.clear();
  core_.attributes = {};
}

Result<void> PostQueues::check_send(const SendRequest& request, const AddressHandle* ah,
                                    std::uint64_t length) const {
  const QpCaps& caps = core_.init.caps;
  const bool inlined = (request.flags & send_flag::kInline) != 0;
  if (request.opcode > WrOpcode::kSendInvalidate && request.opcode != WrOpcode::kAtomicWrite) {
    return fail(Errc::kNotSupported, "this send opcode is not supported");
  }
  if (request.sges.size() > caps.max_send_sge) {
    return fail(Errc::kInvalidArgument, "more elements than max_send_sge");
  }
  if (inlined && (fills_elements(request.opcode) || length > caps.max_inline_bytes)) {
    return fail(
        Errc::kInvalidArgument,
        "inline data is longer than max_inline_bytes, or the request is a READ or an atomic");
  }
  if (!supports(core_.init.type, request.opcode)) {
    return fail(Errc::kInvalidArgument,
                "UD supports only SEND; UC supports only SEND, WRITE and memory windows");
  }
  if (core_.init.type != QpType::kUd) return {};
  if (ah == nullptr) return fail(Errc::kBadHandle, "no such address handle");
  if (&ah->pd != &core_.pd) {
    return fail(Errc::kInvalidArgument, "the address handle is of another protection domain");
  }
  if (ah->path.address.port.device != core_.init.device && !core_.is_gsi()) {
    return fail(Errc::kInvalidArgument, "the address handle is of another device");
  }
  if (request.remote_qpn.value > kMask24) {
    return fail(Errc::kInvalidArgument, "remote_qpn has more than 24 bits");
  }
  return {};
}

// Returns true if the request must not begin before an earlier READ or atomic is complete
// (vol1 10.8.3.3).
bool PostQueues::waits_at_fence(const SendWqe& wqe) const {
  return (wqe.flags & send_flag::kFence) != 0 && sends_.is_pending(newest_with_response_);
}

// Copies the bytes of a small request at the post.  Some programs overwrite them before the driver
// handles the request (see kCopiedBytesMax).
void PostQueues::copy_small_request(SendWqe& wqe) const {
  if (wqe.length == 0 || wqe.length > kCopiedBytesMax || waits_at_fence(wqe)) return;
  if (fills_elements(wqe.opcode) || is_local(wqe.opcode)) return;
  const std::span<std::byte> space(SendQueue::byte_space(wqe), wqe.length);
  wqe.key_generation = core_.shared.memory.generation();  // read before the look-up of the keys
  if (core_.shared.memory.copy_for_post(core_.pd, SendQueue::sges(wqe), space)) {
    wqe.flags |= kCopiedFlag;
  }
}

// REQUIRES: the caller of check_send_queue() or prepare_send() has locked the send queue.
Result<void> PostQueues::check_send_queue(std::size_t requests) const {
  if (state_.load(std::memory_order_relaxed) < QpState::kRts) {
    return fail(Errc::kBadState, "the QP is not ready to send");
  }
  if (!sends_.has_room(requests)) {
    core_.shared.sends_refused.fetch_add(1, std::memory_order_relaxed);
    return fail(Errc::kNoResources, "the send queue is full");
  }
  return {};
}

// Fills the slot of a request that is posted after `skip` others.
void PostQueues::prepare_send(const SendRequest& request, const AddressHandle* ah,
                              std::uint64_t length, std::uint32_t skip) {
  SendWqe& wqe = sends_.prepare(skip);
  wqe.wr_id = request.wr_id;
  wqe.length = saturated_length(length);
  wqe.r_key = request.r_key;
  wqe.flags = static_cast<std::uint8_t>(request.flags & ~std::uint32_t{kCopiedFlag});
  wqe.immediate = request.immediate;
  wqe.opcode = request.opcode;
  if ((request.flags & send_flag::kInline) != 0) {
    wqe.sge_count = 0;
    copy_inline(SendQueue::byte_space(wqe), request.sges);
  } else {
    copy_sges(wqe, request.sges);
    copy_small_request(wqe);
  }
  if (request.opcode == WrOpcode::kBindWindow) {
    ::new (&wqe.bind) WindowBinding(request.bind);
  } else {
    ::new (&wqe.remote) SendWqe::Remote{request.remote_address, request.compare_add, request.swap};
  }
  if (core_.init.type == QpType::kUd) {
    ::new (sends_.extra_space(wqe))
        DatagramTarget{ah->path.address, request.remote_qpn, request.remote_qkey};
  }
  if (needs_response(request.opcode)) newest_with_response_ = sends_.next_number(skip);
}

Result<bool> PostQueues::post_send(const SendRequest& request, const AddressHandle* ah) {
  const std::uint64_t length = total_length(request.sges);
  VB_TRY_VOID(check_send(request, ah, length));

  const std::scoped_lock lock(sends_.mutex());
  VB_TRY_VOID(check_send_queue(1));
  prepare_send(request, ah, length, 0);
  sends_.publish();
  return true;
}

Result<bool> PostQueues::post_send_list(
    std::size_t count, const std::function<Result<ListedSend>(std::size_t)>& request_at) {
  const std::scoped_lock lock(sends_.mutex());
  VB_TRY_VOID(check_send_queue(count));
  const std::uint32_t newest_posted_with_response = newest_with_response_;
  for (std::size_t i = 0; i < count; ++i) {
    const auto prepared = [&]() -> Result<void> {
      const auto [request, ah] = VB_TRY(request_at(i));
      const std::uint64_t length = total_length(request.sges);
      VB_TRY_VOID(check_send(request, ah, length));
      prepare_send(request, ah, length, static_cast<std::uint32_t>(i));
      return {};
    }();
    if (!prepared) {
      newest_with_response_ = newest_posted_with_response;
      return std::unexpected(prepared.error());
    }
  }
  sends_.publish(static_cast<std::uint32_t>(count));
  return true;
}

Result<bool> PostQueues::post_recv(const RecvRequest& request) {
  if (core_.srq != nullptr) {
    return fail(Errc::kInvalidArgument, "the receives of this QP are posted to its SRQ");
  }
  if (request.sges.size() > core_.init.caps.max_recv_sge) {
    return fail(Errc::kInvalidArgument, "more elements than max_recv_sge");
  }
  const std::scoped_lock lock(receives_.mutex());
  const QpState state = state_.load(std::memory_order_relaxed);
  if (state == QpState::kReset) return fail(Errc::kBadState, "the QP is in RESET");
  if (!receives_.has_room(1)) {
    core_.shared.receives_refused.fetch_add(1, std::memory_order_relaxed);
    return fail(Errc::kNoResources, "the receive queue is full");
  }
  RecvWqe& wqe = receives_.prepare();
  wqe.wr_id = request.wr_id;
  wqe.length = saturated_length(copy_sges(wqe, request.sges));
  receives_.publish();
  return state == QpState::kError;
}

}  // namespace verbena::hca
