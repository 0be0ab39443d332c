#pragma once

#include <span>
#include <type_traits>
#include <utility>

#include "process/agent_requests.h"
#include "process/process.h"

// Defines the templates with which Process sends requests to the agent.  Only the sources of
// Process include it.
namespace verbena::process {

inline constexpr const char* kIdGone = "the agent of this id is gone: make a new one";

using Urgency = AgentRequests::Urgency;

inline Started<ipc::Done> failed(const Error& error) {
  return Result<ipc::Done>(std::unexpected(error));
}

inline ipc::Bytes bytes(std::span<const std::byte> given) { return {given.begin(), given.end()}; }

template <class Reply, class Message>
Started<Reply> Process::ask_for(ConnectionHandle id, Message message, Completion<Reply> done) {
  const auto connection = find_alive(id);
  if (!connection) return Result<Reply>(std::unexpected(connection.error()));
  make(**connection);
  message.id = (*connection)->agent_id;
  return requests_.ask<Reply>(std::move(message), std::move(done));
}

template <class Message>
Started<ipc::Done> Process::tell(Connection& connection, Connection::Stage next, Message message) {
  make(connection);
  message.id = connection.agent_id;
  // The agent does not send the program's reason or private data if the program dies first.
  bool carries_data = std::is_same_v<Message, ipc::Reject>;
  if constexpr (requires { message.private_data; }) carries_data |= !message.private_data.empty();
  requests_.say(std::move(message), carries_data ? Urgency::kUrgent : Urgency::kMayWait);
  connection.stage = next;  // only now: say() throws if there is no memory
  return Result<ipc::Done>(ipc::Done{});
}

}  // namespace verbena::process
