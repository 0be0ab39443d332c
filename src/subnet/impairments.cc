#include "subnet/impairments.h"

#include <algorithm>
#include <utility>

#include "subnet/packet.h"

namespace verbena::subnet {

void Impairments::set_loss(std::size_t link, const faults::Loss& loss) {
  if (loss.per_million == 0) {
    lossy_links_.erase(link);
  } else {
    lossy_links_.insert_or_assign(link, faults::LossyLink(loss));
  }
}

bool Impairments::should_drop_next(std::size_t link) {
  if (lossy_links_.empty()) return false;
  const auto found = lossy_links_.find(link);
  return found != lossy_links_.end() && found->second.should_drop_next();
}

void Impairments::set_delay(PortRef out, Duration delay) {
  const auto found = slow_ports_.find(out);
  if (delay != Duration{}) {
    slow_ports_[out].delay = delay;
  } else if (found != slow_ports_.end()) {
    found->second.delay = {};
    if (found->second.lines.empty()) slow_ports_.erase(found);
  }
}

bool Impairments::delay(PortRef out, InFlight packet, Time now) {
  SlowPort& slow = slow_ports_.at(out);
  DelayLine& line = slow.lines.of(uses_management_lane(packet.packet));
  return line.push(std::move(packet), now + slow.delay);
}

std::size_t Impairments::drop(PortRef out) {
  const auto found = slow_ports_.find(out);
  if (found == slow_ports_.end()) return 0;
  const std::size_t dropped = std::exchange(found->second.lines, {}).size();
  if (found->second.delay == Duration{}) slow_ports_.erase(found);
  return dropped;
}

bool Impairments::move_due(Time now, LaneQueues<std::deque<InFlight>>& queues, std::size_t max) {
  bool has_appended = false;
  const auto move = [&](DelayLine& line, std::deque<InFlight>& queue) {
    while (queue.size() < max && line.first_due_packet(now) != nullptr) {
      queue.push_back(line.pop());
      has_appended = true;
    }
  };
  for (auto it = slow_ports_.begin(); it != slow_ports_.end();) {
    SlowPort& slow = it->second;
    move(slow.lines.smps, queues.smps);
    move(slow.lines.others, queues.others);
    const bool has_ended = slow.delay == Duration{} && slow.lines.empty();
    it = has_ended ? slow_ports_.erase(it) : std::next(it);
  }
  return has_appended;
}

Time Impairments::next_deadline() const {
  Time deadline = kNever;
  for (const auto& [out, slow] : slow_ports_) {
    deadline = std::min({deadline, slow.lines.smps.next_due(), slow.lines.others.next_due()});
  }
  return deadline;
}

Impairments::DelayLine* Impairments::arrived_line(std::uint32_t node, bool is_smp) {
  const auto found = paused_nodes_.find(node);
  return found == paused_nodes_.end() ? nullptr : &found->second.arrived.of(is_smp);
}

Impairments::DelayLine* Impairments::sent_line(std::uint32_t node, bool is_smp) {
  const auto found = paused_nodes_.find(node);
  return found == paused_nodes_.end() ? nullptr : &found->second.sent.of(is_smp);
}

std::size_t Impairments::late() const {
  std::size_t packets = 0;
  for (const auto& [out, slow] : slow_ports_) packets += slow.lines.size();
  for (const auto& [node, stored] : paused_nodes_)
    packets += stored.arrived.size() + stored.sent.size();
  return packets;
}

std::optional<Impairments::StoredPackets> Impairments::resume(std::uint32_t node) {
  auto found = paused_nodes_.extract(node);
  if (found.empty()) return std::nullopt;
  return std::move(found.mapped());
}

}  // namespace verbena::subnet
