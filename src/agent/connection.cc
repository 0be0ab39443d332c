#include "agent/connection.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <utility>

#include "os/clock.h"

namespace verbena::agent {

Connection::Connection(asio::io_context& loop, os::UnixChannel channel, std::uint64_t id,
                       Owner& owner, LimitsMet& limits_met)
    : loop_(loop),
      channel_(std::move(channel)),
      id_(id),
      owner_(owner),
      limits_met_(limits_met),
      end_(loop, [this] { owner_.ended(*this, why_); }) {
  readable_ = Watch(loop_, channel_.fd(), [this] { on_readable(); });
}

// The watches stand below the descriptors that they watch, so they go first.
Connection::~Connection() = default;

void Connection::send(ipc::Bytes message, std::span<const int> fds) {
  if (ended_ || deaf_) return;
  if (const auto envelope = ipc::open(message); envelope && envelope->request != 0) {
    if (outstanding_ > 0) --outstanding_;
    update_reading();
  }
  if (!queue_.empty()) return enqueue(std::move(message), fds);
  const auto sent = channel_.send(message, fds);
  if (sent) return;
  if (!os::would_block(sent.error())) return on_unsent(sent.error());
  enqueue(std::move(message), fds);
  readable_.when_writable([this] { on_writable(); });
}

void Connection::done(std::uint64_t request, const Result<void>& result) {
  ipc::Done message;
  if (!result) {
    message = {.failed = true,
               .code = result.error().code,
               .detail = result.error().detail,
               .text = result.error().context};
  }
  reply(request, message);
}

// Who has closed it may have said something before, and the end of file comes behind that.
void Connection::on_unsent(const Error& error) {
  if (error.code != Errc::kDeviceFatal) {
    return end(fmt::format("it cannot be told anything: {}", std::strerror(error.detail)));
  }
  deaf_ = true;
  queue_.clear();
  queued_bytes_ = 0;
  outstanding_ = 0;  // nor does anybody wait
  if (finishing_) return end("done with it");
  update_reading();
}

void Connection::enqueue(ipc::Bytes message, std::span<const int> fds) {
  if (queue_.size() >= kQueueMax || queued_bytes_ + message.size() > kQueueBytesMax) {
    ++limits_met_.queue;
    return end(
        fmt::format("it has left {} messages of {} bytes unread", queue_.size(), queued_bytes_));
  }
  queued_bytes_ += message.size();
  Outgoing outgoing{std::move(message), {}};
  for (const int fd : fds) {
    auto copy = os::duplicate_fd(fd);
    if (!copy) return end("no descriptors left for what it was to be sent");
    outgoing.fds.push_back(std::move(*copy));
  }
  queue_.push_back(std::move(outgoing));
}

void Connection::on_writable() {
  while (!queue_.empty() && !ended_) {
    std::vector<int> fds;
    for (const os::Fd& fd : queue_.front().fds) fds.push_back(fd.get());
    if (const auto sent = channel_.send(queue_.front().message, fds); !sent) {
      if (!os::would_block(sent.error())) return on_unsent(sent.error());
      return readable_.when_writable([this] { on_writable(); });
    }
    queued_bytes_ -= queue_.front().message.size();
    queue_.pop_front();
  }
  if (finishing_) end("done with it");
}

void Connection::on_readable() {
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(ipc::kMessageBytesMax);
  const std::span buffer(memory.get(), ipc::kMessageBytesMax);
  for (std::size_t i = 0; i < kMessagesPerTurn; ++i) {
    if (ended_ || finishing_ || outstanding_ >= kRequestsMax || !receive(buffer)) break;
  }
  owner_.heard(*this);
  update_reading();
}

// False: there is nothing more, for now or for good.
bool Connection::receive(std::span<std::byte> buffer) {
  std::vector<os::Fd> fds;
  const auto received = channel_.receive(buffer, fds);
  if (!received && os::would_block(received.error())) return false;
  if (!received || *received == 0) {
    end(received ? "end of file" : fmt::format("it {}", received.error().context));
    return false;
  }
  const auto message = buffer.first(*received);
  const auto envelope = ipc::open(message);
  if (!envelope || (envelope->request == 0 && !ipc::may_go_unanswered(envelope->type))) {
    end("it sent what is no request");
    return false;
  }
  if (envelope->request != 0 && ++outstanding_ == kRequestsMax) ++limits_met_.requests;
  owner_.received(*this, *envelope, message, std::move(fds));
  return true;
}

// What it has said last, and did not wait for, is carried out: a reject with its reason, say.  A
// copy of the socket may be in other hands, so that is not without end.
void Connection::on_death() {
  death_.read(false);  // it stays readable
  dead_ = true;
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(ipc::kMessageBytesMax);
  const std::span buffer(memory.get(), ipc::kMessageBytesMax);
  for (std::size_t i = 0; i < kQueueMax && !ended_ && !finishing_ && receive(buffer); ++i) {
  }
  end("the process has ended");
}

void Connection::update_reading() {
  // Also while finishing: a connection that is about to end takes nothing more.
  readable_.read(!ended_ && !finishing_ && outstanding_ < kRequestsMax);
}

void Connection::watch_death(os::Fd pidfd) {
  pidfd_ = std::move(pidfd);
  death_ = Watch(loop_, pidfd_.get(), [this] { on_death(); });
}

void Connection::finish() {
  finishing_ = true;
  update_reading();
  if (queue_.empty()) end("done with it");
}

void Connection::end(std::string why) {
  if (std::exchange(ended_, true)) return;
  why_ = dead_ ? "the process has ended" : std::move(why);
  queue_.clear();
  queued_bytes_ = 0;
  update_reading();
  end_.at(os::now());
}

}  // namespace verbena::agent
