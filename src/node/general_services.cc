#include "node/general_services.h"

#include <array>
#include <bit>
#include <utility>

#include "wire/cm.h"
#include "wire/mad.h"
#include "wire/source_port.h"

namespace verbena::node {
namespace {

// Returns the value of a result that can be an error only because of our own bug.
template <class T>
T expect_value(Result<T> result) {
  VB_CHECK(result.has_value());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

// Returns true for a REQ, a SIDR_REQ or a LAP.  No peer waits for such a MAD.
bool starts_exchange(const mad::Mad& mad) {
  const auto header =
      wire::decode_exact<wire::MadHeader>(std::span(mad).first<wire::kMadHeaderBytes>());
  using wire::cm::AttributeId;
  if (header.mgmt_class != wire::MgmtClass::kCommunication) return false;
  const auto id = static_cast<AttributeId>(header.attribute_id);
  return id == AttributeId::kReq || id == AttributeId::kSidrReq || id == AttributeId::kLap;
}

constexpr hca::Limits kLimits{.pds = 1, .mrs = 1, .cqs = 1, .ahs = 4, .qps = 1};

}  // namespace

GeneralServices::GeneralServices(Random random)
    : engine_(kLimits, random),
      buffers_(std::make_unique<std::byte[]>(kPostedReceives * kBufferBytes)) {
  using hca::QpState;
  namespace attribute = hca::attribute;
  pd_ = expect_value(engine_.create_pd());
  const auto address = std::bit_cast<std::uintptr_t>(buffers_.get());
  lkey_ = expect_value(engine_.register_mr(pd_, address, kPostedReceives * kBufferBytes, address,
                                           hca::access::kLocalWrite))
              .lkey;
  cq_ = expect_value(engine_.create_cq(kPostedReceives + kPostedSendsMax, 0));
  qp_ = expect_value(engine_.create_qp({.type = hca::QpType::kUd,
                                        .pd = pd_,
                                        .send_cq = cq_,
                                        .recv_cq = cq_,
                                        .caps = {.max_send_wr = kPostedSendsMax,
                                                 .max_recv_wr = kPostedReceives,
                                                 .max_send_sge = 1,
                                                 .max_recv_sge = 1,
                                                 .max_inline_bytes = wire::kMadBytes}},
                                       wire::kGsiQpn));
  expect_value(engine_.modify_qp(
      qp_, {.state = QpState::kInit, .qkey = wire::kGsiQkey},
      attribute::kState | attribute::kPkeyIndex | attribute::kPort | attribute::kQkey, Time{}));
  expect_value(engine_.modify_qp(qp_, {.state = QpState::kRtr}, attribute::kState, Time{}));
  expect_value(engine_.modify_qp(qp_, {.state = QpState::kRts},
                                 attribute::kState | attribute::kSqPsn, Time{}));
  for (std::uint64_t slot = 0; slot < kPostedReceives; ++slot) post_receive(slot);
}

void GeneralServices::set_pkeys(PortId port, std::span<const Pkey> pkeys) {
  (void)engine_.set_pkeys(pkeys, port);  // if the new table is invalid, the old table remains
}

void GeneralServices::post_receive(std::uint64_t slot) {
  const hca::Sge sge{.address = std::bit_cast<std::uintptr_t>(buffers_.get() + slot * kBufferBytes),
                     .length = kBufferBytes,
                     .lkey = lkey_};
  expect_value(engine_.post_recv(qp_, {.wr_id = slot, .sges = std::span(&sge, 1)}));
}

std::optional<std::span<const std::byte>> GeneralServices::receive(const link::Arrival& arrival,
                                                                   Time now) {
  engine_.receive(arrival, now);
  return poll_completions();
}

// Polls completions, and returns the MAD of a receive.  Posts the receive again at once.  The bytes
// of the MAD remain unchanged until the next packet, and the caller no longer needs them then.
std::optional<std::span<const std::byte>> GeneralServices::poll_completions() {
  std::optional<std::span<const std::byte>> mad;
  std::array<hca::WorkCompletion, 4> done{};
  while (const unsigned count = expect_value(engine_.poll_cq(cq_, done))) {
    for (const hca::WorkCompletion& wc : std::span(done).first(count)) {
      if (wc.wr_id == kSendId) {
        --posted_;
        continue;
      }
      if (wc.status != hca::WcStatus::kSuccess) continue;
      if (wc.byte_len >= kGrhBytes) {
        mad = std::span(buffers_.get() + wc.wr_id * kBufferBytes + kGrhBytes,
                        wc.byte_len - kGrhBytes);
      }
      post_receive(wc.wr_id);
    }
  }
  return mad;
}

void GeneralServices::send(const mad::SendMad& out, Time /*now*/) {
  if (posted_ < kPostedSendsMax && waiting() == 0) return post(out);
  if (posted_ + waiting() >= kSends) {
    ++sends_dropped_;
    return;
  }
  (starts_exchange(out.mad) ? new_exchanges_ : replies_).push_back(out);
}

void GeneralServices::post_waiting() {
  while (posted_ < kPostedSendsMax && waiting() > 0) {
    auto& queue = replies_.empty() ? new_exchanges_ : replies_;
    post(queue.front());
    queue.pop_front();
  }
}

void GeneralServices::post(const mad::SendMad& out) {
  const mad::Address& to = out.to;
  hca::Path path{.address = to.path};
  if (!path.address.is_infiniband()) {
    path.address.source_port =
        wire::source_port(wire::default_flow_label(wire::kGsiQpn, wire::kGsiQpn));
  }
  const hca::AhHandle ah = expect_value(engine_.create_ah(pd_, path));
  const hca::Sge sge{.address = std::bit_cast<std::uintptr_t>(out.mad.data()),
                     .length = wire::kMadBytes};
  // The request is signalled, because its slot in the send queue becomes free when transmit() polls
  // its completion.
  expect_value(engine_.post_send(qp_, {.wr_id = kSendId,
                                       .flags = hca::send_flag::kInline | hca::send_flag::kSignaled,
                                       .sges = std::span(&sge, 1),
                                       .remote_qpn = to.remote_qpn,
                                       .remote_qkey = wire::kGsiQkey,
                                       .ah = ah}));
  ++posted_;
  expect_value(engine_.destroy_ah(ah));
}

bool GeneralServices::transmit(link::Burst& burst, Time now) {
  const bool more = engine_.transmit(burst, now);
  (void)poll_completions();
  post_waiting();
  return more || posted_ > 0;
}

}  // namespace verbena::node
