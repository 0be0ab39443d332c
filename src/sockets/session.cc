#include "sockets/session.h"

#include <array>
#include <atomic>
#include <utility>

namespace verbena::sockets {

Session::Session(asio::io_context& loop, os::UnixChannel channel, std::uint64_t id, Owner& owner)
    : channel_(std::move(channel)),
      id_(id),
      owner_(owner),
      deferred_end_(loop, [this] { owner_.on_session_end(*this); }),
      watch_(loop, channel_.fd(), [this] { on_readable(); }) {}

void Session::send_bytes(std::span<const std::byte> message, std::initializer_list<int> fds) {
  if (has_ended_ || is_finishing_) return;
  if (queue_.empty()) {
    const auto sent = send_now(message, fds);
    if (sent) return;
    if (!os::would_block(sent.error())) return end();
    watch_.when_writable([this] { on_writable(); });
  }
  if (queue_.size() >= kQueueMax) return end();
  Outgoing outgoing{.message = {message.begin(), message.end()}};
  for (const int fd : fds) {
    auto copy = os::duplicate_fd(fd);
    if (!copy) return end();
    outgoing.fds.push_back(std::move(*copy));
  }
  queue_.push_back(std::move(outgoing));
}

Result<void> Session::send_now(std::span<const std::byte> message, std::span<const int> fds) {
  VB_TRY_VOID(channel_.send(message, fds));
  if (mailbox_) {
    auto* memory = reinterpret_cast<broker::MailboxMemory*>(mailbox_.bytes().data());
    std::atomic_ref(memory->sent).fetch_add(1, std::memory_order_release);
  }
  return {};
}

void Session::on_writable() {
  while (!queue_.empty() && !has_ended_) {
    std::vector<int> fds;
    for (const os::Fd& fd : queue_.front().fds) fds.push_back(fd.get());
    if (const auto sent = send_now(queue_.front().message, fds); !sent) {
      if (!os::would_block(sent.error())) return end();
      return watch_.when_writable([this] { on_writable(); });
    }
    queue_.pop_front();
  }
  if (is_finishing_) end();
}

void Session::on_readable() {
  std::array<std::byte, broker::kMessageBytesMax> buffer;
  std::vector<os::Fd> fds;
  for (std::size_t i = 0; i < kMessagesPerWakeup && !has_ended_ && !is_finishing_; ++i) {
    const auto received = channel_.receive(buffer, fds);
    if (!received && os::would_block(received.error())) break;
    if (!received || *received == 0) {
      end();
      break;
    }
    owner_.on_message(*this, std::span(buffer).first(*received), std::exchange(fds, {}));
  }
  owner_.on_messages_end();
}

void Session::finish() {
  is_finishing_ = true;
  if (queue_.empty()) return end();
  watch_.read(false);  // unread messages of the peer would wake the event loop again and again
}

void Session::end() {
  if (std::exchange(has_ended_, true)) return;
  queue_.clear();
  watch_.read(false);
  deferred_end_.schedule();
}

}  // namespace verbena::sockets
