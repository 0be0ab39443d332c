#pragma once

#include <span>
#include <type_traits>
#include <utility>

#include "process/agent_requests.h"
#include "process/process.h"

// Defines the templates with which Process sends requests to the agent.  Only the sources of
// Process include this header.
namespace verbena::process {

inline constexpr const char* kAgentOfIdDiedText = "the agent of this id has ended: create a new id";

using Urgency = AgentRequests::Urgency;

inline Started<ipc::Done> failed(const Error& error) {
  return Result<ipc::Done>(std::unexpected(error));
}

inline ipc::Bytes bytes(std::span<const std::byte> span) { return {span.begin(), span.end()}; }

template <class Reply, class Message>
Started<Reply> Process::ask_about(ConnectionHandle id, Message message, Completion<Reply> done) {
  const auto connection = find_with_agent(id);
  if (!connection) return Result<Reply>(std::unexpected(connection.error()));
  create_in_agent(**connection);
  message.id = (*connection)->agent_id;
  return requests_.ask<Reply>(std::move(message), std::move(done));
}

template <class Message>
Started<ipc::Done> Process::send_without_reply(Connection& connection, Connection::Stage next_stage,
                                               Message message) {
  create_in_agent(connection);
  message.id = connection.agent_id;
  // If the program dies before this message is sent, the agent ends the connection itself, but
  // without the program's reason or private data.  So a message with data is sent at once.
  bool carries_data = std::is_same_v<Message, ipc::Reject>;
  if constexpr (requires { message.private_data; }) carries_data |= !message.private_data.empty();
  requests_.send(std::move(message), carries_data ? Urgency::kUrgent : Urgency::kMayWait);
  connection.stage = next_stage;  // set last, because send() may throw std::bad_alloc
  return Result<ipc::Done>(ipc::Done{});
}

}  // namespace verbena::process
