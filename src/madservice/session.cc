#include "madservice/session.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "os/shared_memory.h"
#include "wire/mad.h"

namespace verbena::madservice {

using ipc::umad::UserMad;

Session::Session(asio::io_context& loop, os::UnixChannel channel, std::uint64_t id, Owner& owner)
    : loop_(loop),
      channel_(std::move(channel)),
      id_(id),
      owner_(owner),
      end_(loop, [this] { owner_.on_session_end(*this); }),
      requests_(loop, channel_.fd(), [this] { on_request(); }) {}

// Sends an answer.  If the socket buffer is full, the program does not read its answers, and the
// session ends.  Normal programs read all answers, because each thread waits for its answer.
void Session::answer_bytes(std::span<const std::byte> message, int fd) {
  if (has_ended_) return;
  if (!channel_.send(message, std::span<const int>(&fd, fd >= 0 ? 1 : 0))) end();
}

Result<os::UnixChannel> Session::open_mads() {
  auto [ours, theirs] = VB_TRY(os::UnixChannel::pair());
  mads_ = std::move(ours);
  mads_watch_ = agent::Watch(loop_, mads_.fd(), [this] { on_mads_readable(); });
  return std::move(theirs);
}

Result<int> Session::open_sm_file() {
  sm_file_ = VB_TRY(os::WatchedFile::create("verbena-issm"));
  sm_watch_ = agent::Watch(loop_, sm_file_->events_fd(), [this] { on_sm_file(); });
  return sm_file_->file();
}

void Session::deliver(const UserMad& header, std::vector<std::byte> mad) {
  if (has_ended_ || !mads_) return;
  const std::size_t bytes = sizeof(QueuedMad) + mad.size();
  if (queue_.size() >= kQueueMax || queue_bytes_ + bytes > kQueueBytesMax) {
    ++lost_mads_;
    return;
  }
  queue_.push_back({.header = header, .mad = std::move(mad)});
  queue_bytes_ += bytes;
  if (queue_.size() == 1) send_queued();
}

Result<void> Session::send_mad(const QueuedMad& queued) {
  const bool in_memory = queued.mad.size() > ipc::umad::kInlineBytesMax;
  const std::size_t inline_bytes = in_memory ? wire::kMadBytes : queued.mad.size();
  std::vector<std::byte> datagram(ipc::umad::kUserMadBytes + inline_bytes);
  std::memcpy(datagram.data(), &queued.header, ipc::umad::kUserMadBytes);
  std::copy_n(queued.mad.begin(), inline_bytes,
              datagram.begin() + static_cast<std::ptrdiff_t>(ipc::umad::kUserMadBytes));
  if (!in_memory) return mads_.send(datagram);
  const auto memory = VB_TRY(os::create_shared_memory("verbena-mad", queued.mad.size()));
  std::ranges::copy(queued.mad, memory.mapping.bytes().begin());
  const int fd = memory.fd.get();
  return mads_.send(datagram, std::span(&fd, 1));
}

void Session::send_queued() {
  while (!queue_.empty() && !has_ended_) {
    const QueuedMad& first = queue_.front();
    if (const auto sent = send_mad(first); !sent) {
      if (os::would_block(sent.error())) {
        return mads_watch_.when_writable([this] { send_queued(); });
      }
      if (sent.error().code == Errc::kDeviceFatal) return end();
      ++lost_mads_;  // there is no memory or descriptor for a long message
    }
    queue_bytes_ -= sizeof(QueuedMad) + first.mad.size();
    queue_.pop_front();
  }
}

void Session::on_request() {
  std::vector<std::byte> buffer(ipc::umad::kMessageBytesMax);
  std::vector<os::Fd> fds;
  for (std::size_t i = 0; i < kMessagesPerWakeup && !has_ended_; ++i) {
    const auto received = channel_.receive(buffer, fds);
    if (!received && os::would_block(received.error())) return;
    if (!received || *received == 0 ||
        !owner_.on_message(*this, std::span(buffer).first(*received), std::exchange(fds, {}))) {
      return end();
    }
  }
}

// Ends the session, because the program has closed the connection for MADs.  The program sends
// nothing on this connection, so the connection becomes readable only then.
void Session::on_mads_readable() { end(); }

void Session::on_sm_file() {
  for (const bool is_open : sm_file_->next_events()) owner_.on_sm_file(*this, is_open);
}

void Session::end() {
  if (std::exchange(has_ended_, true)) return;
  queue_.clear();
  requests_.read(false);
  mads_watch_ = agent::Watch();
  sm_watch_ = agent::Watch();
  end_.schedule();
}

}  // namespace verbena::madservice
