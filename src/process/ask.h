#pragma once

#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "process/process.h"

// Defines the templates with which Process sends requests to the agent.  Only the sources of
// Process include it.
namespace verbena::process {

inline constexpr const char* kAgentGone = "the agent is gone";
inline constexpr const char* kIdGone = "the agent of this id is gone: make a new one";

inline Started<ipc::Done> failed(const Error& error) {
  return Result<ipc::Done>(std::unexpected(error));
}

inline ipc::Bytes bytes(std::span<const std::byte> given) { return {given.begin(), given.end()}; }

template <class Reply, class Message>
Pending Process::ask(Message message, Completion<Reply> done, bool qp_table) {
  const std::uint64_t number = next_request_++;
  urgent_ = true;
  to_agent_.push_back({.message = ipc::encode(number, std::move(message)),
                       .wants_reply = true,
                       .hello = std::is_same_v<Message, ipc::Hello>,
                       .qp_table = qp_table});
  ReplyHandler handler = [this, done = std::move(done)](const ipc::Envelope* reply) mutable {
    if (reply == nullptr) return done(fail(Errc::kDeviceFatal, kAgentGone));
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
  reply_handlers_.emplace(number, std::move(handler));
  return Pending([this, number] { reply_handlers_.erase(number); });
}

template <class Reply, class Message>
Started<Reply> Process::ask_for(ConnectionHandle id, Message message, Completion<Reply> done) {
  const auto connection = find_alive(id);
  if (!connection) return Result<Reply>(std::unexpected(connection.error()));
  make(**connection);
  message.id = (*connection)->agent_id;
  return ask<Reply>(std::move(message), std::move(done));
}

template <class Message>
Started<ipc::Done> Process::tell(Connection& connection, Connection::Stage next, Message message) {
  make(connection);
  message.id = connection.agent_id;
  // The agent does not send the program's reason or private data if the program dies first.
  bool carries_data = std::is_same_v<Message, ipc::Reject>;
  if constexpr (requires { message.private_data; }) carries_data |= !message.private_data.empty();
  say(std::move(message), carries_data ? Urgency::kUrgent : Urgency::kMayWait);
  connection.stage = next;  // only now: say() throws if there is no memory
  return Result<ipc::Done>(ipc::Done{});
}

template <class Message>
void Process::say(Message message, Urgency urgency) {
  if (!device_) return;  // without an agent, drop it: the next agent will not know the object
  static_assert(ipc::may_go_unanswered(Message::kType));
  urgent_ |= urgency == Urgency::kUrgent;
  to_agent_.push_back({.message = ipc::encode(0, std::move(message))});
}

}  // namespace verbena::process
