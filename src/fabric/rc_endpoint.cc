#include "fabric/rc_endpoint.h"

#include <bit>
#include <utility>

namespace verbena::fabric {
namespace {

constexpr std::uint32_t kAreas = 4;
constexpr std::uint32_t kReceiveBit = 0x80000000;

std::size_t offset_of(RcEndpoint::Area area, std::uint32_t index) {
  return (std::size_t{std::to_underlying(area)} * RcEndpoint::kSlots + index % RcEndpoint::kSlots) *
         RcEndpoint::kSlotBytes;
}

std::byte byte_of(std::uint64_t salt, std::size_t i) {
  return static_cast<std::byte>(salt * 31 + i * 7 + (i >> 8));
}

}  // namespace

RcEndpoint::RcEndpoint(SimProcess& sim_process, hca::PdHandle pd, std::uint32_t number)
    : sim_process_(sim_process),
      number_(number),
      memory_(std::size_t{kAreas} * kSlots * kSlotBytes) {
  using namespace hca::access;
  const auto address = std::bit_cast<std::uintptr_t>(memory_.data());
  region_ = sim_process.require(
      "register_mr", sim_process.engine().register_mr(pd, address, memory_.size(), 0,
                                                      kLocalWrite | kRemoteWrite | kRemoteRead));
}

hca::QpInit RcEndpoint::qp_init(hca::PdHandle pd, hca::CqHandle cq, std::uint8_t device) const {
  return {.type = hca::QpType::kRc,
          .pd = pd,
          .send_cq = cq,
          .recv_cq = cq,
          .caps = {.max_send_wr = 2 * kSlots,
                   .max_recv_wr = kReceives,
                   .max_send_sge = 1,
                   .max_recv_sge = 1},
          .device = device,
          .cookie = number_};
}

void RcEndpoint::close() {
  if (!is_drained()) sim_process_.report_violation("requests that never completed");
  if (qp_) {
    if (const auto result = sim_process_.process().destroy_qp(qp_, sim_process_.now()); !result)
      sim_process_.report_violation("destroy_qp");
  }
  if (const auto result = sim_process_.engine().deregister_mr(region_.handle); !result) {
    sim_process_.report_violation("deregister_mr");
  }
  qp_ = {};
}

std::span<std::byte> RcEndpoint::slot(Area area, std::uint32_t index) {
  return std::span(memory_).subspan(offset_of(area, index), kSlotBytes);
}

// The region is registered with the virtual address 0, so an offset in the region is an address.
RemoteMemory RcEndpoint::exposed_memory() const { return {.address = 0, .r_key = region_.rkey}; }

std::uint64_t RcEndpoint::slot_address(std::uint64_t base, Area area, std::uint32_t index) {
  return base + offset_of(area, index);
}

hca::Sge RcEndpoint::sge(Area area, std::uint32_t index, std::uint32_t bytes) const {
  return {.address = slot_address(0, area, index), .length = bytes, .lkey = region_.lkey};
}

void RcEndpoint::post_receives() {
  for (std::uint32_t i = 0; i < kReceives; ++i) post_receive(i);
}

void RcEndpoint::post_receive(std::uint32_t index) {
  const std::uint64_t wr_id = std::uint64_t{number_} << 32 | kReceiveBit | next_wr_++;
  const hca::Sge memory_sge = sge(Area::kIn, index, kSlotBytes);
  const auto result =
      sim_process_.engine().post_recv(qp_, {.wr_id = wr_id, .sges = {&memory_sge, 1}});
  if (!result)
    return sim_process_.report_violation(std::string("post_recv: ") + result.error().context);
  receives_.push_back({.wr_id = wr_id, .index = index});
}

void RcEndpoint::post_send(std::uint32_t index, std::uint32_t bytes) {
  const hca::Sge memory_sge = sge(Area::kOut, index, bytes);
  post({.opcode = hca::WrOpcode::kSend, .sges = {&memory_sge, 1}}, index, bytes);
}

void RcEndpoint::post_rdma(hca::WrOpcode opcode, std::uint32_t index, std::uint32_t remote_slot,
                           std::uint32_t bytes, const RemoteMemory& memory) {
  const Area area = opcode == hca::WrOpcode::kRead ? Area::kReadBack : Area::kOut;
  const hca::Sge memory_sge = sge(area, index, bytes);
  post({.opcode = opcode,
        .sges = {&memory_sge, 1},
        .remote_address = slot_address(memory.address, Area::kExposed, remote_slot),
        .r_key = memory.r_key},
       index, bytes);
}

void RcEndpoint::post(const hca::SendRequest& request, std::uint32_t index, std::uint32_t bytes) {
  hca::SendRequest request_with_id = request;
  request_with_id.wr_id = std::uint64_t{number_} << 32 | next_wr_++;
  request_with_id.flags = hca::send_flag::kSignaled;
  const auto result = sim_process_.engine().post_send(qp_, request_with_id);
  if (!result)
    return sim_process_.report_violation(std::string("post_send: ") + result.error().context);
  sends_.push_back({request_with_id.wr_id, request.opcode, index, bytes});
}

std::optional<RcEndpoint::CompletedRequest> RcEndpoint::find_completed(
    const hca::WorkCompletion& completion) {
  const bool is_receive = (completion.wr_id & kReceiveBit) != 0;
  auto& queue = is_receive ? receives_ : sends_;
  if (queue.empty() || queue.front().wr_id != completion.wr_id) {
    sim_process_.report_violation("a completion out of order, or twice: " +
                                  std::to_string(completion.wr_id));
    return std::nullopt;
  }
  const PostedRequest posted = queue.front();
  queue.pop_front();
  const bool succeeded = completion.status == hca::WcStatus::kSuccess;
  if (succeeded && failed_) sim_process_.report_violation("success after an error");
  if (!succeeded) failed_ = true;
  return CompletedRequest{.opcode = posted.opcode,
                          .is_receive = is_receive,
                          .succeeded = succeeded,
                          .index = posted.index,
                          .bytes = is_receive ? completion.byte_len : posted.bytes};
}

void RcEndpoint::fill(std::span<std::byte> bytes, std::uint64_t salt) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_of(salt, i);
}

bool RcEndpoint::is_filled(std::span<const std::byte> bytes, std::uint64_t salt) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != byte_of(salt, i)) return false;
  }
  return true;
}

}  // namespace verbena::fabric
