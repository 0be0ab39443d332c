#include "cm/sidr.h"

#include <algorithm>
#include <memory>

namespace verbena::cm {

using wire::cm::AttributeId;
using wire::cm::SidrRep;
using wire::cm::SidrReq;
using wire::cm::SidrStatus;

namespace {

// The repeats of a SIDR_REQ never reach this number, because the timeout of the resolution ends
// them before.
constexpr std::uint32_t kRepeatsMax = 0xffff;

}  // namespace

Result<ResolutionHandle> Sidr::resolve(const ResolveRequest& request, std::uint64_t cookie,
                                       Time now) {
  if (request.give_up_after <= Duration(0))
    return fail(Errc::kInvalidArgument, "the timeout must be positive");
  CommId id;
  do {
    id = comm_ids_.next();
  } while (active_.contains(id));
  const SidrReq req{.request_id = id,
                    .pkey = request.pkey,
                    .service_id = request.service_id,
                    .private_data = request.private_data};
  const auto header = wire::cm::mad_header(AttributeId::kSidrReq, transaction_ids_.next());
  auto handle = slots_.insert(
      std::make_unique<Resolution>(Resolution{.cookie = cookie,
                                              .address = request.address,
                                              .active = true,
                                              .id = id,
                                              .request = wire::cm::encode_mad(header, req)}));
  if (!handle) {
    ++counters_.resolutions_refused;
    return fail(Errc::kNoResources, "the host resolves too many services (resolutions_max)");
  }
  Resolution& resolution = *slots_.find(*handle);
  active_.emplace(id, *handle);
  const Duration round_trip =
      round_trips_.find(request.address.remote()).value_or(request.round_trip);
  resolution.retry.start(now, round_trip, request.give_up_after, kRepeatsMax, random_);
  arm(*handle, resolution);
  outbox_.send(resolution.address, AttributeId::kSidrReq, resolution.request);
  return handle;
}

Result<void> Sidr::set_cookie(ResolutionHandle handle, std::uint64_t cookie) {
  VB_TRY(find(handle))->cookie = cookie;
  return {};
}

Result<void> Sidr::answer(ResolutionHandle handle, const ResolveAnswer& answer, Time now) {
  Resolution& resolution = *VB_TRY(find_passive(handle));
  SidrRep rep{.request_id = resolution.key.request_id,
              .status = answer.status,
              .service_id = resolution.key.service_id};
  if (answer.private_data.size() > rep.private_data.size()) {
    return fail(Errc::kInvalidArgument, "too much private data");
  }
  if (answer.status == SidrStatus::kValid) {
    if (answer.qpn.value > kMask24) return fail(Errc::kInvalidArgument, "a QPN has 24 bits");
    if (answer.ece.vendor_id > kMask24)
      return fail(Errc::kInvalidArgument, "a vendor id has 24 bits");
    rep.qpn = answer.qpn;
    rep.qkey = answer.qkey;
    rep.set_vendor_id(answer.ece.vendor_id);
  }
  std::ranges::copy(answer.private_data, rep.private_data.begin());
  const auto header = wire::cm::mad_header(AttributeId::kSidrRep, resolution.key.transaction_id,
                                           answer.ece.options);
  const mad::Mad mad = wire::cm::encode_mad(header, rep);
  answers_.remember(resolution.key, mad, now + kAnswerLifetime);
  outbox_.send(resolution.address, AttributeId::kSidrRep, mad);
  end(handle, resolution);
  return {};
}

Result<void> Sidr::drop(ResolutionHandle handle) {
  Resolution& resolution = *VB_TRY(find_passive(handle));
  ++counters_.requests_dropped;
  end(handle, resolution);
  return {};
}

Result<void> Sidr::destroy(ResolutionHandle handle, Time now) {
  Resolution& resolution = *VB_TRY(find(handle));
  if (!resolution.active) return answer(handle, {.status = SidrStatus::kRejected}, now);
  end(handle, resolution);
  return {};
}

void Sidr::receive(const mad::Delivered& mad, const SidrReq& req,
                   std::optional<std::uint64_t> listener, Time now) {
  const SidrRequestKey key{.remote = mad.from.remote(),
                           .remote_lid = mad.from.path.destination_lid,
                           .interface = mad.from.path.interface,
                           .request_id = req.request_id,
                           .transaction_id = mad.header.transaction_id,
                           .service_id = req.service_id};
  auto& counter = counters_.of(AttributeId::kSidrReq);
  if (passive_.contains(key)) return void(++counter.duplicate);
  if (const mad::Mad* stored_answer = answers_.find(key, now)) {
    ++counter.duplicate;
    return outbox_.send(mad.from, AttributeId::kSidrRep, *stored_answer, Outbox::Kind::kRepeat);
  }
  if (!listener) {
    return reply(mad.from, mad.header.transaction_id,
                 {.request_id = req.request_id,
                  .status = SidrStatus::kServiceIdNotSupported,
                  .service_id = req.service_id});
  }
  const auto handle = slots_.insert(std::make_unique<Resolution>(
      Resolution{.cookie = *listener, .address = mad.from, .active = false, .key = key}));
  if (!handle) {
    ++counters_.resolutions_refused;
    return void(++counters_.of(Ignored::kLimitReached));
  }
  passive_.emplace(key, *handle);
  outbox_.report(
      SidrReqReceived{.resolution = *handle, .cookie = *listener, .req = req, .address = mad.from});
}

void Sidr::receive(const mad::Delivered& mad, const SidrRep& rep, Time now) {
  const auto at = active_.find(rep.request_id);
  if (at == active_.end()) return void(++counters_.of(Ignored::kUnknownId));
  const ResolutionHandle handle = at->second;
  Resolution& resolution = *slots_.find(handle);
  // Only the host that we asked may answer; another host may have guessed the id.
  if (!link::is_from_peer(mad.from.path.reversed(), resolution.address.path)) {
    return void(++counters_.of(Ignored::kWrongRemoteId));
  }
  round_trips_.record(resolution.address.remote(), resolution.retry, now);
  outbox_.report(SidrRepReceived{.resolution = handle,
                                 .cookie = resolution.cookie,
                                 .rep = rep,
                                 .ece = {rep.vendor_id(), mad.header.attribute_modifier}});
  end(handle, resolution);
}

void Sidr::refuse_version(const mad::Delivered& mad, const SidrReq& req) {
  reply(mad.from, mad.header.transaction_id,
        {.request_id = req.request_id,
         .status = SidrStatus::kVersionNotSupported,
         .service_id = req.service_id});
}

void Sidr::on_timer(Time now) {
  while (deadline() <= now) {
    const ResolutionHandle handle = deadlines_.begin()->second;
    Resolution& resolution = *slots_.find(handle);
    switch (resolution.retry.next_action(now, random_)) {
      case Retry::Action::kWait: arm(handle, resolution); break;
      case Retry::Action::kRepeat:
        outbox_.send(resolution.address, AttributeId::kSidrReq, resolution.request,
                     Outbox::Kind::kRepeat);
        arm(handle, resolution);
        break;
      case Retry::Action::kGiveUp:
        ++counters_.unreachable;
        outbox_.report(SidrUnreachable{.resolution = handle,
                                       .cookie = resolution.cookie,
                                       .tries = resolution.retry.tries(),
                                       .spent = resolution.retry.spent(now)});
        end(handle, resolution);
        break;
    }
  }
}

std::optional<Sidr::Row> Sidr::row(ResolutionHandle handle) const {
  const Resolution* resolution = slots_.find(handle);
  if (resolution == nullptr) return std::nullopt;
  return Row{.active = resolution->active, .tries = resolution->retry.tries()};
}

void Sidr::arm(ResolutionHandle handle, Resolution& resolution) {
  if (resolution.deadline != kNever) deadlines_.erase({resolution.deadline, handle});
  resolution.deadline = resolution.retry.deadline();
  deadlines_.emplace(resolution.deadline, handle);
}

void Sidr::end(ResolutionHandle handle, Resolution& resolution) {
  if (resolution.active) {
    active_.erase(resolution.id);
    deadlines_.erase({resolution.deadline, handle});
  } else {
    passive_.erase(resolution.key);
  }
  slots_.remove(handle);
}

void Sidr::reply(const mad::Address& to, std::uint64_t transaction_id, const SidrRep& rep) {
  const auto header = wire::cm::mad_header(AttributeId::kSidrRep, transaction_id);
  outbox_.send(to, AttributeId::kSidrRep, wire::cm::encode_mad(header, rep));
}

Result<Resolution*> Sidr::find(ResolutionHandle handle) const {
  Resolution* resolution = slots_.find(handle);
  if (resolution == nullptr) return fail(Errc::kBadHandle, "no such resolution");
  return resolution;
}

Result<Resolution*> Sidr::find_passive(ResolutionHandle handle) const {
  Resolution* resolution = VB_TRY(find(handle));
  if (resolution->active) return fail(Errc::kBadState, "only the passive side may answer");
  return resolution;
}

}  // namespace verbena::cm
