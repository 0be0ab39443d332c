#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/operation.h"
#include "ipc/messages.h"

namespace verbena::process {

inline constexpr const char* kNoAgentText = "the agent has ended";

// Holds the messages for the agent until the owner sends them, and the requests that wait for the
// agent's reply.  Each request gets exactly one reply, or kDeviceFatal if the agent dies.
class AgentRequests {
 public:
  // Carries a message for the agent.  If `qp_table` is set, the owner sends the descriptor of the
  // QP table with it.  If `hello` is set, the owner sends the program's pidfd with it.
  struct Outgoing {
    ipc::Bytes message{};
    bool wants_reply = false;
    bool hello = false;
    bool qp_table = false;
  };
  // Says how soon the owner must send a message that send() queues.  A message that may wait can be
  // sent together with later messages.
  enum class Urgency : bool { kMayWait, kUrgent };

  // ---- requests
  // Queues a request.  `done` gets the reply, unless the Pending is cancelled or destroyed before.
  template <class Reply, class Message>
  Pending ask(Message message, Completion<Reply> done, bool qp_table = false);
  // Queues a message that gets no reply.
  template <class Message>
  void send(Message message, Urgency urgency = Urgency::kUrgent);
  // Returns the number that the next request will get.
  std::uint64_t next_number() const { return next_number_; }
  // Returns true while the request with this number waits for its reply.
  bool is_pending(std::uint64_t request) const { return waiting_.contains(request); }
  // Returns the text of the agent's last refusal, for an Error that is from_agent.
  const std::string& last_refusal_text() const { return last_text_; }

  // ---- the connection
  // While the connection is closed, send() drops messages, because the next agent does not know the
  // objects that they name.
  void open() { open_ = true; }
  void close() { open_ = false; }
  bool is_open() const { return open_; }
  void on_reply(const ipc::Envelope& envelope);
  // Fails the request with kSystem, EMFILE and this text, as if the agent had refused it.  Ignores
  // a request that does not wait for a reply.
  Result<void> fail_request(std::uint64_t request, std::string text);
  // Fails all pending requests, but not the new requests that their completions make.
  void fail_all();

  // ---- messages to be sent
  std::size_t unsent() const { return unsent_.size(); }
  // Returns true if no unsent message is urgent.  After an urgent message was queued, returns false
  // until all messages are sent.
  bool may_wait() const { return !urgent_; }
  std::optional<Outgoing> poll();
  // Appends the next message to `message` and returns true, if one datagram may carry both.
  bool poll_another(Outgoing& message);
  void drop_unsent();

 private:
  // Handles the agent's reply.  The argument is null if the agent died before its reply.
  using ReplyHandler = std::move_only_function<void(const ipc::Envelope*)>;

  bool open_ = false;
  std::uint64_t next_number_ = 1;
  std::map<std::uint64_t, ReplyHandler> waiting_{};
  std::deque<Outgoing> unsent_{};
  bool urgent_ = false;  // an urgent message was queued since unsent_ was last empty
  std::string last_text_{};
};

template <class Reply, class Message>
Pending AgentRequests::ask(Message message, Completion<Reply> done, bool qp_table) {
  const std::uint64_t number = next_number_++;
  ReplyHandler handler = [this, done = std::move(done)](const ipc::Envelope* reply) mutable {
    if (reply == nullptr) return done(fail(Errc::kDeviceFatal, kNoAgentText));
    if (reply->type == ipc::Type::kDone) {
      auto done_reply = ipc::decode<ipc::Done>(*reply);
      if (!done_reply) return done(std::unexpected(done_reply.error()));
      if (done_reply->failed) {
        last_text_ = done_reply->text;
        return done(std::unexpected(Error{.code = done_reply->code,
                                          .detail = done_reply->detail,
                                          .context = "the agent refused",
                                          .from_agent = true}));
      }
    }
    done(ipc::decode<Reply>(*reply));
  };
  waiting_.emplace(number, std::move(handler));
  // If memory runs out below, the destructor of `pending` removes the handler.
  Pending pending([this, number] { waiting_.erase(number); });
  unsent_.push_back({.message = ipc::encode(number, std::move(message)),
                     .wants_reply = true,
                     .hello = std::is_same_v<Message, ipc::Hello>,
                     .qp_table = qp_table});
  urgent_ = true;
  return pending;
}

template <class Message>
void AgentRequests::send(Message message, Urgency urgency) {
  if (!open_) return;
  static_assert(ipc::needs_no_reply(Message::kType));
  unsent_.push_back({.message = ipc::encode(0, std::move(message))});
  urgent_ |= urgency == Urgency::kUrgent;
}

}  // namespace verbena::process
