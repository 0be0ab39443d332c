#include "agent/connection.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <utility>

namespace verbena::agent {
namespace {

// Holds the datagram that is being received.  All connections share it, since the loop has one
// thread.
constinit std::array<std::byte, ipc::kMessageBytesMax> datagram_memory{};

}  // namespace

Connection::Connection(asio::io_context& loop, os::UnixChannel channel, std::uint64_t id,
                       Owner& owner, LimitCounters& limit_counters)
    : loop_(loop),
      channel_(std::move(channel)),
      id_(id),
      owner_(owner),
      limit_counters_(limit_counters),
      flush_(loop, [this] { flush(); }),
      end_(loop, [this] { owner_.ended(*this, why_); }) {
  socket_watch_ = Watch(loop_, channel_.fd(), [this] { on_readable(); });
}

// The watches are declared after the descriptors that they watch, so they are destroyed first.
Connection::~Connection() {
  const bool has_unsent = !next_datagram_.empty() && !ended_ && !peer_closed_ && queue_.empty();
  // Sends the last messages now, because the loop may have ended.  Ignores errors, because this
  // connection is being destroyed.
  if (has_unsent) (void)channel_.send(next_datagram_).has_value();
}

void Connection::send(ipc::Bytes message, std::span<const int> fds) {
  if (ended_ || peer_closed_) return;
  if (const auto envelope = ipc::open(message); envelope && envelope->request != 0) {
    if (outstanding_ > 0) --outstanding_;
    update_reading();
  }
  if (!fds.empty() || next_datagram_.size() + message.size() > ipc::kJoinedBytesMax) flush();
  if (!fds.empty()) return send_datagram(message, 1, fds);
  next_datagram_.insert(next_datagram_.end(), message.begin(), message.end());
  ++next_datagram_messages_;
  flush_.schedule();
}

void Connection::flush() {
  if (next_datagram_.empty() || ended_) return;
  ipc::Bytes datagram = std::exchange(next_datagram_, {});
  send_datagram(datagram, std::exchange(next_datagram_messages_, 0), {});
  datagram.clear();
  next_datagram_ = std::move(datagram);  // keeps the memory for the next datagram
}

void Connection::send_datagram(const ipc::Bytes& datagram, std::size_t messages,
                               std::span<const int> fds) {
  if (ended_ || peer_closed_) return;
  if (!queue_.empty()) return enqueue(datagram, messages, fds);
  const auto sent = channel_.send(datagram, fds);
  if (sent) return;
  if (!os::would_block(sent.error())) return on_send_error(sent.error());
  enqueue(datagram, messages, fds);
  socket_watch_.when_writable([this] { on_writable(); });
}

void Connection::reply_result(std::uint64_t request, const Result<void>& result) {
  ipc::Done message;
  if (!result) {
    message = {.failed = true,
               .code = result.error().code,
               .detail = result.error().detail,
               .text = result.error().context};
  }
  reply(request, message);
}

// Handles a failed send.  The error kDeviceFatal means that the program has closed the connection.
// Then the agent still receives the messages that the program sent before, up to the end of file.
void Connection::on_send_error(const Error& error) {
  if (error.code != Errc::kDeviceFatal) {
    return end(fmt::format("a message to it cannot be sent: {}", std::strerror(error.detail)));
  }
  peer_closed_ = true;
  queue_.clear();
  queued_ = queued_bytes_ = 0;
  outstanding_ = 0;  // the program does not wait for replies any more
  if (finishing_) return end("finished");
  update_reading();
}

void Connection::enqueue(ipc::Bytes datagram, std::size_t messages, std::span<const int> fds) {
  if (queued_ + messages > kQueueMax || queued_bytes_ + datagram.size() > kQueueBytesMax) {
    ++limit_counters_.queue;
    return end(fmt::format("it has not read {} messages of {} bytes", queued_, queued_bytes_));
  }
  queued_ += messages;
  queued_bytes_ += datagram.size();
  Outgoing outgoing{std::move(datagram), messages, {}};
  for (const int fd : fds) {
    auto copy = os::duplicate_fd(fd);
    if (!copy) return end("no descriptor is left for a message to it");
    outgoing.fds.push_back(std::move(*copy));
  }
  queue_.push_back(std::move(outgoing));
}

void Connection::on_writable() {
  while (!queue_.empty() && !ended_) {
    std::vector<int> fds;
    for (const os::Fd& fd : queue_.front().fds) fds.push_back(fd.get());
    if (const auto sent = channel_.send(queue_.front().datagram, fds); !sent) {
      if (!os::would_block(sent.error())) return on_send_error(sent.error());
      return socket_watch_.when_writable([this] { on_writable(); });
    }
    queued_ -= queue_.front().messages;
    queued_bytes_ -= queue_.front().datagram.size();
    queue_.pop_front();
  }
  if (finishing_) end("finished");
}

void Connection::on_readable() {
  std::size_t messages = 0;
  while (messages < kMessagesPerEvent) {
    if (ended_ || finishing_ || outstanding_ >= kRequestsMax) break;
    const std::size_t received = receive(datagram_memory);
    if (received == 0) break;
    messages += received;
  }
  owner_.received_all(*this, messages);
  update_reading();
}

// Receives one datagram and returns the number of its messages.  Returns 0 if no datagram has
// arrived, or if the connection has ended.
std::size_t Connection::receive(std::span<std::byte> buffer) {
  std::vector<os::Fd> fds;
  const auto received = channel_.receive(buffer, fds);
  if (!received && os::would_block(received.error())) return 0;
  if (!received || *received == 0) {
    end(received ? "end of file" : fmt::format("it {}", received.error().context));
    return 0;
  }
  std::span<const std::byte> datagram = buffer.first(*received);
  std::size_t messages = 0;
  for (; !ended_ && !finishing_ && !datagram.empty(); ++messages) {
    const bool is_short = datagram.size() <= ipc::kJoinedBytesMax;
    const auto message = ipc::take_message(datagram);
    const bool is_valid = message && (is_short || datagram.empty()) &&
                          deliver(*message, datagram.empty(), std::exchange(fds, {}));
    if (!is_valid) end("it sent an invalid request");
  }
  return ended_ ? 0 : messages;
}

// Passes a message to the owner.  Returns false if it is not a valid request.  Only the last
// message of a datagram may expect a reply, so that a datagram cannot exceed the limit of
// outstanding requests.
bool Connection::deliver(std::span<const std::byte> message, bool is_last,
                         std::vector<os::Fd> fds) {
  const auto envelope = ipc::open(message);
  if (!envelope) return false;
  const bool needs_reply = envelope->request != 0;
  if (needs_reply ? !is_last : !ipc::needs_no_reply(envelope->type)) return false;
  // A program that has closed the connection waits for no replies, and send() counts none.
  if (needs_reply && !peer_closed_ && ++outstanding_ == kRequestsMax) ++limit_counters_.requests;
  owner_.received(*this, *envelope, message, std::move(fds));
  return true;
}

// Handles the death of the process.  Receives the last messages of the process, such as a reject
// that it sent just before it ended.  Limits their number, because another process may have a copy
// of the socket and continue to send.
void Connection::on_death() {
  process_watch_.read(false);  // the pidfd stays readable for ever
  process_has_ended_ = true;
  for (std::size_t i = 0; i < kQueueMax && !ended_ && !finishing_; ++i) {
    if (receive(datagram_memory) == 0) break;
  }
  end("the process has ended");
}

void Connection::update_reading() {
  // A connection that is about to end receives nothing more.
  socket_watch_.read(!ended_ && !finishing_ && outstanding_ < kRequestsMax);
}

void Connection::watch_death(os::Fd pidfd) {
  pidfd_ = std::move(pidfd);
  process_watch_ = Watch(loop_, pidfd_.get(), [this] { on_death(); });
}

void Connection::finish() {
  finishing_ = true;
  flush();
  update_reading();
  if (queue_.empty()) end("finished");
}

void Connection::end(std::string why) {
  if (queue_.empty()) flush();
  if (std::exchange(ended_, true)) return;
  why_ = process_has_ended_ ? "the process has ended" : std::move(why);
  queue_.clear();
  queued_ = queued_bytes_ = 0;
  update_reading();
  end_.schedule();
}

}  // namespace verbena::agent
