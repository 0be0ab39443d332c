#include "client/watches.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "os/fd.h"

namespace verbena::client {
namespace {

constexpr std::uint64_t token(Watches::Kind kind) { return std::to_underlying(kind); }

}  // namespace

Watches::Watches(Parts parts)
    : wake_(std::move(parts.wake)),
      receiver_wake_(std::move(parts.receiver_wake)),
      check_(std::move(parts.check)),
      all_(std::move(parts.all)),
      all_but_sockets_(std::move(parts.all_but_sockets)),
      not_for_receiver_(std::move(parts.not_for_receiver)),
      sockets_(std::move(parts.sockets)) {}

Result<Watches> Watches::create() {
  Parts parts{.wake = VB_TRY(os::WakeFd::create()),
              .receiver_wake = VB_TRY(os::WakeFd::create()),
              .check = VB_TRY(os::TimerFd::create()),
              .all = VB_TRY(os::Poller::create()),
              .all_but_sockets = VB_TRY(os::Poller::create()),
              .not_for_receiver = VB_TRY(os::Poller::create()),
              .sockets = VB_TRY(os::Poller::create())};
  VB_TRY_VOID(parts.all.add(parts.wake.fd(), token(Kind::kWake)));
  VB_TRY_VOID(parts.all.add(parts.receiver_wake.fd(), token(Kind::kLanes)));
  VB_TRY_VOID(parts.all_but_sockets.add(parts.wake.fd(), token(Kind::kWake)));
  VB_TRY_VOID(parts.all_but_sockets.add(parts.check.fd(), token(Kind::kCheck)));
  VB_TRY_VOID(parts.not_for_receiver.add(parts.wake.fd(), token(Kind::kWake)));
  VB_TRY_VOID(parts.not_for_receiver.add(parts.check.fd(), token(Kind::kCheck)));
  return Watches(std::move(parts));
}

Result<void> Watches::add_socket(int fd) {
  VB_TRY_VOID(all_.add(fd, token(Kind::kSockets)));
  return sockets_.add(fd, token(Kind::kSockets));
}

// Ignores errors, as all functions that remove a descriptor do: a poller may not have the
// descriptor, because an earlier addition failed after its first step.
void Watches::remove_socket(int fd) {
  (void)all_.remove(fd).has_value();
  (void)sockets_.remove(fd).has_value();
}

Result<void> Watches::add_lanes(os::WakeFd wake) {
  if (lanes_wake_) return {};
  VB_TRY_VOID(all_.add(wake.fd(), token(Kind::kLanes)));
  lanes_wake_ = std::move(wake);
  return {};
}

void Watches::clear_lanes() {
  if (lanes_wake_) lanes_wake_->clear();
  receiver_wake_.clear();
}

void Watches::remove_lanes() {
  if (lanes_wake_) (void)all_.remove(lanes_wake_->fd()).has_value();
  lanes_wake_.reset();
}

Result<void> Watches::add_lane_of_other_user(int fd) {
  VB_TRY_VOID(all_.add(fd, token(Kind::kLanes)));
  return sockets_.add(fd, token(Kind::kLanes));
}

void Watches::remove_lane_of_other_user(int fd) { remove_socket(fd); }

Result<void> Watches::add_agent(int fd) {
  VB_TRY_VOID(all_.add(fd, token(Kind::kAgent)));
  VB_TRY_VOID(all_but_sockets_.add(fd, token(Kind::kAgent)));
  VB_TRY_VOID(not_for_receiver_.add(fd, token(Kind::kAgent), false));
  agent_ = fd;
  wake_receiver();
  return {};
}

// Ignores errors, because a closed connection has no descriptor to change.
void Watches::change_agent(int fd, bool readable, bool writable) {
  (void)all_.change(fd, token(Kind::kAgent), readable, writable).has_value();
  (void)all_but_sockets_.change(fd, token(Kind::kAgent), readable, writable).has_value();
  (void)not_for_receiver_.change(fd, token(Kind::kAgent), false, writable).has_value();
}

void Watches::remove_agent(int fd) {
  (void)all_.remove(fd).has_value();
  (void)all_but_sockets_.remove(fd).has_value();
  (void)not_for_receiver_.remove(fd).has_value();
  agent_ = -1;
}

Result<void> Watches::add_reaper(int pidfd) {
  VB_TRY_VOID(all_.add(pidfd, token(Kind::kReaper)));
  VB_TRY_VOID(all_but_sockets_.add(pidfd, token(Kind::kReaper)));
  return not_for_receiver_.add(pidfd, token(Kind::kReaper));
}

void Watches::remove_reaper(int pidfd) {
  (void)all_.remove(pidfd).has_value();
  (void)all_but_sockets_.remove(pidfd).has_value();
  (void)not_for_receiver_.remove(pidfd).has_value();
}

bool Watches::receiver_has_work() const {
  return std::ranges::any_of(for_receiver(), [](int fd) {
    if (fd < 0) return false;
    const auto ready = os::wait_for(fd, POLLIN, Time{});
    return ready && *ready != 0;
  });
}

std::span<const Watches::Kind> Watches::wait(For what, Time deadline) {
  std::array<os::Poller::Ready, kReadyMax> ready;
  os::Poller& poller = what == For::kAll              ? all_
                       : what == For::kNotForReceiver ? not_for_receiver_
                                                      : all_but_sockets_;
  const std::size_t count = poller.wait(ready, deadline);
  for (std::size_t i = 0; i < count; ++i) {
    ready_[i] = static_cast<Kind>(ready[i].token);
    if (ready_[i] == Kind::kWake) wake_.clear();
    if (ready_[i] == Kind::kCheck) check_.clear();
  }
  return std::span(ready_).first(count);
}

void Watches::abandon() {
  all_.close();
  all_but_sockets_.close();
  not_for_receiver_.close();
  sockets_.close();
  wake_.close();
  receiver_wake_.close();
  check_.close();
  if (lanes_wake_) lanes_wake_->close();
}

}  // namespace verbena::client
