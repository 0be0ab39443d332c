#pragma once

#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "process/process.h"

// How Process asks the agent: for its own sources.
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
  in_haste_ = true;
  to_agent_.push_back({.message = ipc::encode(number, std::move(message)),
                       .asks = true,
                       .hello = std::is_same_v<Message, ipc::Hello>,
                       .qp_table = qp_table});
  Waiting waiting = [this, done = std::move(done)](const ipc::Envelope* reply) mutable {
    if (reply == nullptr) return done(fail(Errc::kDeviceFatal, kAgentGone));
    if (reply->type == ipc::Type::kDone) {
      auto word = ipc::decode<ipc::Done>(*reply);
      if (!word) return done(std::unexpected(word.error()));
      if (word->failed) {
        last_text_ = word->text;
        return done(std::unexpected(Error{.code = word->code,
                                          .detail = word->detail,
                                          .context = "the agent refused",
                                          .from_agent = true}));
      }
    }
    done(ipc::decode<Reply>(*reply));
  };
  waiting_.emplace(number, std::move(waiting));
  return Pending([this, number] { waiting_.erase(number); });
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
  bool has_words = std::is_same_v<Message, ipc::Reject>;  // of the program's own
  if constexpr (requires { message.private_data; }) has_words |= !message.private_data.empty();
  say(std::move(message), has_words ? Haste::kSome : Haste::kNone);
  connection.stage = next;  // not before: memory may have run out
  return Result<ipc::Done>(ipc::Done{});
}

template <class Message>
void Process::say(Message message, Haste haste) {
  if (!device_) return;  // the next agent has not heard Hello, and knows nothing of all this
  static_assert(ipc::may_go_unanswered(Message::kType));
  in_haste_ |= haste == Haste::kSome;
  to_agent_.push_back({.message = ipc::encode(0, std::move(message))});
}

}  // namespace verbena::process
