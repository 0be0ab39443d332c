#include "client/watches.h"

#include <utility>

namespace verbena::client {
namespace {

constexpr std::uint64_t token(Watches::Kind kind) { return std::to_underlying(kind); }

}  // namespace

Watches::Watches(os::WakeFd wake, os::Poller all, os::Poller all_but_sockets)
    : wake_(std::move(wake)), all_(std::move(all)), all_but_sockets_(std::move(all_but_sockets)) {}

Result<Watches> Watches::create() {
  auto wake = VB_TRY(os::WakeFd::create());
  auto all = VB_TRY(os::Poller::create());
  auto all_but_sockets = VB_TRY(os::Poller::create());
  VB_TRY_VOID(all.add(wake.fd(), token(Kind::kWake)));
  VB_TRY_VOID(all_but_sockets.add(wake.fd(), token(Kind::kWake)));
  return Watches(std::move(wake), std::move(all), std::move(all_but_sockets));
}

Result<void> Watches::add_socket(int fd) { return all_.add(fd, token(Kind::kSockets)); }

void Watches::remove_socket(int fd) { (void)all_.remove(fd).has_value(); }

Result<void> Watches::add_lanes(os::WakeFd wake) {
  if (lanes_wake_) return {};
  VB_TRY_VOID(all_.add(wake.fd(), token(Kind::kLanes)));
  lanes_wake_ = std::move(wake);
  return {};
}

void Watches::clear_lanes() {
  if (lanes_wake_) lanes_wake_->clear();
}

void Watches::remove_lanes() {
  if (lanes_wake_) (void)all_.remove(lanes_wake_->fd()).has_value();
  lanes_wake_.reset();
}

Result<void> Watches::add_agent(int fd) {
  VB_TRY_VOID(all_.add(fd, token(Kind::kAgent)));
  return all_but_sockets_.add(fd, token(Kind::kAgent));
}

void Watches::change_agent(int fd, bool readable, bool writable) {
  (void)all_.change(fd, token(Kind::kAgent), readable, writable).has_value();
  (void)all_but_sockets_.change(fd, token(Kind::kAgent), readable, writable).has_value();
}

void Watches::remove_agent(int fd) {
  (void)all_.remove(fd).has_value();
  (void)all_but_sockets_.remove(fd).has_value();
}

Result<void> Watches::add_reaper(int pidfd) { return all_.add(pidfd, token(Kind::kReaper)); }

void Watches::remove_reaper(int pidfd) { (void)all_.remove(pidfd).has_value(); }

std::span<const Watches::Kind> Watches::wait(For what, Time deadline) {
  std::array<os::Poller::Ready, kReadyMax> ready;
  os::Poller& poller = what == For::kAll ? all_ : all_but_sockets_;
  const std::size_t count = poller.wait(ready, deadline);
  for (std::size_t i = 0; i < count; ++i) {
    ready_[i] = static_cast<Kind>(ready[i].token);
    if (ready_[i] == Kind::kWake) wake_.clear();
  }
  return std::span(ready_).first(count);
}

void Watches::abandon() {
  all_.close();
  all_but_sockets_.close();
  wake_.close();
  if (lanes_wake_) lanes_wake_->close();
}

}  // namespace verbena::client
