#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "process/process.h"

// How Process asks the agent: for its own sources.
namespace verbena::process {

inline constexpr const char* kAgentGone = "the agent is gone";

template <class Reply, class Message>
Pending Process::ask(Message message, Completion<Reply> done, bool qp_table) {
  const std::uint64_t number = next_request_++;
  to_agent_.push_back({.message = ipc::encode(number, std::move(message)),
                       .hello = std::is_same_v<Message, ipc::Hello>,
                       .qp_table = qp_table});
  Waiting waiting = [this, done = std::move(done)](const ipc::Envelope* reply) mutable {
    if (reply == nullptr) return done(fail(Errc::kDeviceFatal, kAgentGone));
    if (reply->type == ipc::Type::kDone) {
      auto word = ipc::decode<ipc::Done>(*reply);
      if (!word) return done(std::unexpected(word.error()));
      if (word->failed) {
        last_text_ = word->text;
        return done(fail(word->code, kAgentRefused, word->detail));
      }
    }
    done(ipc::decode<Reply>(*reply));
  };
  waiting_.emplace(number, std::move(waiting));
  return Pending([this, number] { waiting_.erase(number); });
}

template <class Message>
void Process::say(Message message) {
  if (!device_) return;  // the next agent has not heard Hello, and knows nothing of all this
  to_agent_.push_back({.message = ipc::encode(next_request_++, std::move(message))});
}

}  // namespace verbena::process
