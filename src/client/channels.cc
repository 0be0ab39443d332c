#include "client/channels.h"

#include <set>
#include <utility>
#include <variant>

namespace verbena::client {
namespace {

// Returns true for an event of a CQ, QP or SRQ.  Returns false for an event of a port or the
// device.  `type` is an enum ibv_event_type.
bool is_of_an_object(std::uint32_t type) {
  constexpr std::uint32_t kPathMigErr = 7, kSrqErr = 14, kLastWqeReached = 16;
  return type <= kPathMigErr || (type >= kSrqErr && type <= kLastWqeReached);
}

// REQUIRES: the caller holds the lock.
template <class Queue>
Queue* find_in(const Slots<Shared<Queue>>& slots, Handle<Shared<Queue>> channel) {
  const Shared<Queue>* const found = slots.find(channel);
  return found == nullptr ? nullptr : found->get();
}

}  // namespace

bool is_port_event(std::uint32_t type) {
  constexpr std::uint32_t kDeviceFatal = 8;
  return !is_of_an_object(type) && type != kDeviceFatal;
}

template <class Queue>
Result<Handle<Shared<Queue>>> Channels::create_in(Slots<Shared<Queue>>& slots) {
  auto fd = os::EventFd::create();
  if (!fd) return std::unexpected(fd.error());
  auto handle =
      slots.insert(std::make_unique<Shared<Queue>>(std::make_shared<Queue>(*std::move(fd))));
  if (handle) return handle;
  limit_refusals_.fetch_add(1, std::memory_order_relaxed);
  return fail(handle.error().code,
              "a program's event channels or contexts are all in use (kChannelsMax)");
}

Channels::Channels() : completion_(kChannelsMax), cm_(kChannelsMax), contexts_(kChannelsMax) {}

// ---- completion channels ------------------------------------------------------------------------

Result<CompletionChannelHandle> Channels::create_completion() {
  const std::lock_guard lock(mutex_);
  return create_in(completion_);
}

Result<void> Channels::destroy_completion(CompletionChannelHandle channel) {
  const std::lock_guard lock(mutex_);
  const CompletionChannel* const found = find_in(completion_, channel);
  if (found == nullptr) return fail(Errc::kBadHandle, "no such completion channel");
  if (found->users != 0) return fail(Errc::kBusy, "a CQ uses the completion channel");
  (void)completion_.remove(channel);
  return {};
}

Shared<CompletionChannel> Channels::completion(CompletionChannelHandle channel) {
  const std::lock_guard lock(mutex_);
  const auto* const found = completion_.find(channel);
  return found == nullptr ? nullptr : *found;
}

// ---- contexts -----------------------------------------------------------------------------------

Result<ContextHandle> Channels::create_context(std::uint32_t device) {
  const std::lock_guard lock(mutex_);
  const ContextHandle handle = VB_TRY(create_in(contexts_));
  find_in(contexts_, handle)->device = device;
  return handle;
}

Result<void> Channels::destroy_context(ContextHandle context) {
  const std::lock_guard lock(mutex_);
  if (!contexts_.remove(context)) return fail(Errc::kBadHandle, "no such context");
  return {};
}

Shared<Context> Channels::context(ContextHandle context) {
  const std::lock_guard lock(mutex_);
  const auto* const found = contexts_.find(context);
  return found == nullptr ? nullptr : *found;
}

// ---- CQs, QPs and SRQs --------------------------------------------------------------------------

Result<std::uint64_t> Channels::add_object(const EventTarget& target) {
  const std::lock_guard lock(mutex_);
  CompletionChannel* const channel = find_in(completion_, target.channel);
  if (target.channel && channel == nullptr) {
    return fail(Errc::kBadHandle, "no such completion channel");
  }
  const std::uint64_t object = next_object_++;
  objects_[object] = target;
  if (channel != nullptr) ++channel->users;
  return object;
}

void Channels::remove_object(std::uint64_t object) {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.extract(object);
  if (!found) return;
  if (CompletionChannel* channel = find_in(completion_, found.mapped().channel)) {
    --channel->users;
    (void)channel->withdraw(object);
  }
  if (Context* context = find_in(contexts_, found.mapped().context)) {
    (void)context->withdraw(object);
  }
}

EventTarget Channels::target_of(std::uint64_t object) {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(object);
  return found == objects_.end() ? EventTarget{} : found->second;
}

// ---- event channels and ids ---------------------------------------------------------------------

Result<CmChannelHandle> Channels::create_cm() {
  const std::lock_guard lock(mutex_);
  return create_in(cm_);
}

Result<void> Channels::destroy_cm(CmChannelHandle channel) {
  const std::lock_guard lock(mutex_);
  const CmChannel* const found = find_in(cm_, channel);
  if (found == nullptr) return fail(Errc::kBadHandle, "no such event channel");
  if (found->users != 0) return fail(Errc::kBusy, "an id uses the event channel");
  (void)cm_.remove(channel);
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
    ++limit_refusals_;
    return fail(Errc::kNoResources, "too many unread user events (kUnreadEventsMax)");
  }
  channel->push(std::move(notice));
  return {};
}

Result<void> Channels::add_id(process::ConnectionHandle id, CmChannelHandle channel) {
  const std::lock_guard lock(mutex_);
  if (cm_.find(channel) == nullptr) return fail(Errc::kBadHandle, "no such event channel");
  set_id(id, channel);
  return {};
}

// Makes the id report to the channel.  REQUIRES: the caller holds the lock.
void Channels::set_id(process::ConnectionHandle id, CmChannelHandle channel) {
  CmChannelHandle& id_channel = ids_[id];
  if (CmChannel* old_channel = find_in(cm_, id_channel)) --old_channel->users;
  id_channel = channel;
  if (CmChannel* new_channel = find_in(cm_, channel)) ++new_channel->users;
}

// Removes the id from its channel, and returns the channel.  REQUIRES: the caller holds the lock.
CmChannel* Channels::drop_id(process::ConnectionHandle id) {
  const auto found = ids_.extract(id);
  CmChannel* const channel = found ? find_in(cm_, found.mapped()) : nullptr;
  if (channel != nullptr) --channel->users;
  return channel;
}

std::vector<process::CmNotice> Channels::remove_id(process::ConnectionHandle id) {
  const std::lock_guard lock(mutex_);
  CmChannel* const channel = drop_id(id);
  if (channel == nullptr) return {};
  auto unread = channel->withdraw(id.value);
  for (const process::CmNotice& request : unread) {
    if (!request.new_id) continue;
    (void)drop_id(request.new_id);
    (void)channel->withdraw(request.new_id.value);
  }
  return unread;
}

void Channels::remove_group(process::ConnectionHandle id, std::uint64_t group) {
  const std::lock_guard lock(mutex_);
  const auto found = ids_.find(id);
  CmChannel* channel = found == ids_.end() ? nullptr : find_in(cm_, found->second);
  if (channel == nullptr) return;
  (void)channel->withdraw(id.value,
                          [&](const process::CmNotice& notice) { return notice.group == group; });
}

Result<void> Channels::migrate_id(process::ConnectionHandle id, CmChannelHandle channel) {
  const std::lock_guard lock(mutex_);
  const auto found = ids_.find(id);
  if (found == ids_.end()) return fail(Errc::kBadHandle, "no such id");
  CmChannel* to = find_in(cm_, channel);
  if (to == nullptr) return fail(Errc::kBadHandle, "no such event channel");
  CmChannel* from = find_in(cm_, found->second);
  set_id(id, channel);
  if (from == nullptr || from == to) return {};
  // Also moves the unread requests of a listener, and all events of the new ids of these requests.
  std::set<process::ConnectionHandle> moving_ids{id};
  const auto notices = from->withdraw_if([&](const process::CmNotice& one) {
    if (!moving_ids.contains(one.id)) return false;
    if (one.new_id) moving_ids.insert(one.new_id);
    return true;
  });
  for (const process::ConnectionHandle moving_id : moving_ids) set_id(moving_id, channel);
  for (const process::CmNotice& notice : notices) to->push(notice);
  return {};
}

// ---- events -------------------------------------------------------------------------------------

bool Channels::dispatch(const process::Notice& notice) {
  const std::lock_guard lock(mutex_);
  if (const auto* cq = std::get_if<process::CqNotice>(&notice)) {
    const auto found = objects_.find(cq->cookie);
    if (found == objects_.end()) return false;
    if (CompletionChannel* channel = find_in(completion_, found->second.channel)) {
      channel->push({.object = cq->cookie, .cookie = found->second.cookie});
    }
  } else if (const auto* async = std::get_if<process::AsyncNotice>(&notice)) {
    dispatch_async(*async);
  } else {
    const auto& cm = std::get<process::CmNotice>(notice);
    const auto found = ids_.find(cm.id);
    if (found == ids_.end()) return false;
    const CmChannelHandle handle = found->second;
    if (cm.new_id) set_id(cm.new_id, handle);
    CmChannel* const channel = find_in(cm_, handle);
    if (channel == nullptr || (cm.unanswered && channel->hides_lost_requests)) return false;
    channel->push(cm);
    return channel->size() > 1;
  }
  return false;
}

// Queues an asynchronous event.  An object's event goes only to the object's context.  A port's
// event goes to the contexts of its device.  A device's event goes to all contexts, because it
// reports the agent's death, which removes all devices.  REQUIRES: the caller holds the lock.
void Channels::dispatch_async(const process::AsyncNotice& notice) {
  if (is_of_an_object(notice.type)) {
    const auto found = objects_.find(notice.cookie);
    if (found == objects_.end()) return;
    if (Context* context = find_in(contexts_, found->second.context)) {
      context->push({.type = notice.type, .object = notice.cookie, .cookie = found->second.cookie});
    }
    return;
  }
  contexts_.for_each([&](ContextHandle, const Shared<Context>& context) {
    const bool is_of_its_device =
        context->device == VB_ALL_DEVICES || context->device == notice.port.device;
    if (is_port_event(notice.type) && !is_of_its_device) return;
    // Replaces an unread event of the same type and port, because only the last such event matters.
    // So the number of unread events remains small.
    (void)context->withdraw(0, [&](const AsyncEvent& one) {
      return one.type == notice.type && one.port == notice.port;
    });
    context->push({.type = notice.type, .port = notice.port});
  });
}

}  // namespace verbena::client
