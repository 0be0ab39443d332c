#include "process/agent_requests.h"

#include <cerrno>

namespace verbena::process {

void AgentRequests::on_reply(const ipc::Envelope& envelope) {
  if (auto found = waiting_.extract(envelope.request)) found.mapped()(&envelope);
}

Result<void> AgentRequests::fail_request(std::uint64_t request, std::string text) {
  auto found = waiting_.extract(request);
  if (!found) return {};
  const auto reply = ipc::encode(
      request,
      ipc::Done{.failed = true, .code = Errc::kSystem, .detail = EMFILE, .text = std::move(text)});
  const ipc::Envelope refusal = VB_TRY(ipc::open(reply));
  found.mapped()(&refusal);
  return {};
}

// Fails one request at a time, because its completion may cancel other requests.
void AgentRequests::fail_all() {
  const std::uint64_t end = next_number_;
  while (!waiting_.empty() && waiting_.begin()->first < end) {
    waiting_.extract(waiting_.begin()).mapped()(nullptr);
  }
}

std::optional<AgentRequests::Outgoing> AgentRequests::poll() {
  if (unsent_.empty()) return std::nullopt;
  std::optional<Outgoing> first = std::move(unsent_.front());
  unsent_.pop_front();
  if (unsent_.empty()) urgent_ = false;
  return first;
}

// Only the last message of a datagram may expect a reply.
bool AgentRequests::poll_another(Outgoing& message) {
  if (message.wants_reply || unsent_.empty()) return false;
  const Outgoing& next_message = unsent_.front();
  const std::size_t bytes_of_both = message.message.size() + next_message.message.size();
  if (next_message.hello || next_message.qp_table || bytes_of_both > ipc::kJoinedBytesMax)
    return false;
  message.message.insert(message.message.end(), next_message.message.begin(),
                         next_message.message.end());
  message.wants_reply = next_message.wants_reply;
  unsent_.pop_front();
  if (unsent_.empty()) urgent_ = false;
  return true;
}

void AgentRequests::drop_unsent() {
  unsent_.clear();
  urgent_ = false;
}

}  // namespace verbena::process
