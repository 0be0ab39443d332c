#include "client/channels.h"

#include <set>
#include <utility>
#include <variant>

namespace verbena::client {
namespace {

constexpr std::uint32_t kCqErr = 0;  // IBV_EVENT_CQ_ERR

// PORT_ACTIVE, PORT_ERR, GID_CHANGE.
bool is_port_event(std::uint32_t type) { return type == 9 || type == 10 || type == 18; }

// Under the lock.
template <class Queue>
Queue* find_in(const Slots<Shared<Queue>>& slots, Handle<Shared<Queue>> channel) {
  const Shared<Queue>* const found = slots.find(channel);
  return found == nullptr ? nullptr : found->get();
}

}  // namespace

template <class Queue>
Result<Handle<Shared<Queue>>> Channels::create_in(Slots<Shared<Queue>>& slots) {
  auto fd = os::EventFd::create();
  if (!fd) return std::unexpected(fd.error());
  auto made =
      slots.insert(std::make_unique<Shared<Queue>>(std::make_shared<Queue>(*std::move(fd))));
  if (made) return made;
  limits_met_.fetch_add(1, std::memory_order_relaxed);
  return fail(made.error().code, "a program's event channels are all in use (kChannelsMax)");
}

// Numbers of enum ibv_event_type; the others are the port's and the device's.
Channels::Kind Channels::object_of(std::uint32_t event_type) {
  constexpr std::uint32_t kPathMigErr = 7, kSrqErr = 14, kSrqLimitReached = 15, kLastWqe = 16;
  if (event_type == kCqErr) return Kind::kCq;
  if (event_type <= kPathMigErr || event_type == kLastWqe) return Kind::kQp;
  return event_type == kSrqErr || event_type == kSrqLimitReached ? Kind::kSrq : Kind::kNone;
}

Channels::Channels() : completion_(kChannelsMax), cm_(kChannelsMax) {}

// ---- completion channels and CQs
// ------------------------------------------------------------------

Result<CompletionChannelHandle> Channels::create_completion() {
  const std::lock_guard lock(mutex_);
  return create_in(completion_);
}

Result<void> Channels::destroy_completion(CompletionChannelHandle channel) {
  const std::lock_guard lock(mutex_);
  for (const auto& [cookie, cq] : cqs_) {
    if (cq.channel == channel) return fail(Errc::kBusy, "a CQ uses the completion channel");
  }
  if (!completion_.remove(channel)) return fail(Errc::kBadHandle, "no such completion channel");
  return {};
}

Shared<CompletionChannel> Channels::completion(CompletionChannelHandle channel) {
  const std::lock_guard lock(mutex_);
  const auto* const found = completion_.find(channel);
  return found == nullptr ? nullptr : *found;
}

Result<std::uint64_t> Channels::add_cq(CompletionChannelHandle channel, std::uint64_t cookie) {
  const std::lock_guard lock(mutex_);
  if (channel && completion_.find(channel) == nullptr) {
    return fail(Errc::kBadHandle, "no such completion channel");
  }
  const std::uint64_t engine_cookie = next_cq_++;
  cqs_[engine_cookie] = {.channel = channel, .cookie = cookie};
  return engine_cookie;
}

void Channels::bind_cq(std::uint64_t engine_cookie, hca::CqHandle cq) {
  const std::lock_guard lock(mutex_);
  cqs_[engine_cookie].handle = cq;
}

void Channels::remove_unbound_cq(std::uint64_t engine_cookie) {
  const std::lock_guard lock(mutex_);
  cqs_.erase(engine_cookie);
}

void Channels::remove_cq(hca::CqHandle cq) {
  const std::lock_guard lock(mutex_);
  for (auto it = cqs_.begin(); it != cqs_.end(); ++it) {
    if (it->second.handle != cq) continue;
    if (CompletionChannel* channel = find_in(completion_, it->second.channel)) {
      channel->withdraw([&](std::uint64_t cookie) { return cookie == it->second.cookie; });
    }
    withdraw_async(it->second.cookie, Kind::kCq);
    cqs_.erase(it);
    return;
  }
}

void Channels::forget_qp(std::uint64_t cookie) {
  const std::lock_guard lock(mutex_);
  withdraw_async(cookie, Kind::kQp);
}

void Channels::forget_srq(std::uint64_t cookie) {
  const std::lock_guard lock(mutex_);
  withdraw_async(cookie, Kind::kSrq);
}

void Channels::withdraw_async(std::uint64_t cookie, Kind kind) {
  if (!async_) return;
  (void)async_->withdraw([&](const process::AsyncNotice& notice) {
    return notice.cookie == cookie && object_of(notice.type) == kind;
  });
}

std::uint64_t Channels::cookie_of_cq(std::uint64_t engine_cookie) {
  const std::lock_guard lock(mutex_);
  const auto found = cqs_.find(engine_cookie);
  return found == cqs_.end() ? 0 : found->second.cookie;
}

// ---- event channels and ids
// -----------------------------------------------------------------------

Result<CmChannelHandle> Channels::create_cm() {
  const std::lock_guard lock(mutex_);
  return create_in(cm_);
}

Result<void> Channels::destroy_cm(CmChannelHandle channel) {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, its] : ids_) {
    if (its == channel) return fail(Errc::kBusy, "an id uses the event channel");
  }
  if (!cm_.remove(channel)) return fail(Errc::kBadHandle, "no such event channel");
  return {};
}

Shared<CmChannel> Channels::cm(CmChannelHandle channel) {
  const std::lock_guard lock(mutex_);
  const auto* const found = cm_.find(channel);
  return found == nullptr ? nullptr : *found;
}

Result<void> Channels::hide_lost_requests(CmChannelHandle channel) {
  const std::lock_guard lock(mutex_);
  CmChannel* const found = find_in(cm_, channel);
  if (found == nullptr) return fail(Errc::kBadHandle, "no such event channel");
  found->hides_lost_requests = true;
  return {};
}

Result<void> Channels::write_event(process::CmNotice&& notice) {
  const std::lock_guard lock(mutex_);
  const auto found = ids_.find(notice.id);
  CmChannel* const channel = found == ids_.end() ? nullptr : find_in(cm_, found->second);
  if (channel == nullptr) return fail(Errc::kBadHandle, "no such id");
  if (notice.event.kind == rdmacm::EventKind::kUser && channel->size() >= kUnreadEventsMax) {
    ++limits_met_;
    return fail(Errc::kNoResources, "too many events that nobody reads (kUnreadEventsMax)");
  }
  channel->push(std::move(notice));
  return {};
}

Result<void> Channels::add_id(process::ConnectionHandle id, CmChannelHandle channel) {
  const std::lock_guard lock(mutex_);
  if (cm_.find(channel) == nullptr) return fail(Errc::kBadHandle, "no such event channel");
  ids_[id] = channel;
  return {};
}

std::vector<process::CmNotice> Channels::remove_id(process::ConnectionHandle id) {
  const std::lock_guard lock(mutex_);
  const auto found = ids_.extract(id);
  if (!found) return {};
  CmChannel* channel = find_in(cm_, found.mapped());
  if (channel == nullptr) return {};
  auto unseen = channel->withdraw([&](const process::CmNotice& notice) { return notice.id == id; });
  for (const process::CmNotice& request : unseen) {
    if (!request.new_id) continue;
    ids_.erase(request.new_id);
    (void)channel->withdraw(
        [&](const process::CmNotice& notice) { return notice.id == request.new_id; });
  }
  return unseen;
}

void Channels::remove_group(process::ConnectionHandle id, std::uint64_t group) {
  const std::lock_guard lock(mutex_);
  const auto found = ids_.find(id);
  CmChannel* channel = found == ids_.end() ? nullptr : find_in(cm_, found->second);
  if (channel == nullptr) return;
  (void)channel->withdraw(
      [&](const process::CmNotice& notice) { return notice.id == id && notice.group == group; });
}

Result<void> Channels::migrate_id(process::ConnectionHandle id, CmChannelHandle channel) {
  const std::lock_guard lock(mutex_);
  const auto found = ids_.find(id);
  if (found == ids_.end()) return fail(Errc::kBadHandle, "no such id");
  CmChannel* to = find_in(cm_, channel);
  if (to == nullptr) return fail(Errc::kBadHandle, "no such event channel");
  CmChannel* from = find_in(cm_, std::exchange(found->second, channel));
  if (from == nullptr || from == to) return {};
  // A listener's requests that nobody has seen go along, with what has come for them since.
  std::set<process::ConnectionHandle> moves{id};
  const auto notices = from->withdraw([&](const process::CmNotice& one) {
    if (!moves.contains(one.id)) return false;
    if (one.new_id) moves.insert(one.new_id);
    return true;
  });
  for (const process::ConnectionHandle moved : moves) ids_[moved] = channel;
  for (const process::CmNotice& notice : notices) to->push(notice);
  return {};
}

// ---- asynchronous events
// --------------------------------------------------------------------------

Result<std::unique_ptr<AsyncQueue>> Channels::make_async() {
  auto fd = os::EventFd::create();
  if (!fd) return std::unexpected(fd.error());
  return std::make_unique<AsyncQueue>(*std::move(fd));
}

Result<int> Channels::async_fd() {
  const std::lock_guard lock(mutex_);
  if (!async_) async_ = VB_TRY(make_async());
  return async_->fd();
}

bool Channels::dispatch(const process::Notice& notice) {
  const std::lock_guard lock(mutex_);
  if (const auto* cq = std::get_if<process::CqNotice>(&notice)) {
    const auto found = cqs_.find(cq->cookie);
    if (found == cqs_.end()) return false;
    if (CompletionChannel* channel = find_in(completion_, found->second.channel)) {
      channel->push(found->second.cookie);
    }
  } else if (const auto* async = std::get_if<process::AsyncNotice>(&notice)) {
    if (!async_) return false;  // nobody has asked for the descriptor
    process::AsyncNotice translated = *async;
    if (async->type == kCqErr) {
      const auto found = cqs_.find(async->cookie);
      translated.cookie = found == cqs_.end() ? 0 : found->second.cookie;
    }
    if (is_port_event(async->type)) {  // the last of a kind says it all
      (void)async_->withdraw(
          [&](const process::AsyncNotice& one) { return one.type == async->type; });
    }
    async_->push(translated);
  } else {
    const auto& cm = std::get<process::CmNotice>(notice);
    const auto found = ids_.find(cm.id);
    if (found == ids_.end()) return false;
    if (cm.new_id) ids_[cm.new_id] = found->second;
    CmChannel* const channel = find_in(cm_, found->second);
    if (channel == nullptr || (cm.unanswered && channel->hides_lost_requests)) return false;
    channel->push(cm);
    return channel->size() > 1;
  }
  return false;
}

}  // namespace verbena::client
