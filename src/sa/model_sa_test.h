#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/random.h"
#include "mad/management_port.h"
#include "sa/client.h"
#include "sim/world.h"
#include "wire/sa.h"

// Models a subnet manager with its SA for tests.
namespace verbena::sa {

// Holds the LIDs of all ports that are up.  All managers of a test see the same subnet.
using Subnet = std::map<Gid, Lid>;

// Answers the requests of clients from its memory.  Faults make it deaf, silent, busy or slow.
class ModelSa {
 public:
  struct Faults {
    Ratio loss{};    // the SA loses a request
    Ratio silent{};  // the SA carries out a request, but does not answer
    Ratio busy{};
    Duration delay_max{};
  };
  using Subscription = std::pair<Lid, wire::TrapNumber>;  // subscriber and trap

  ModelSa(sim::World& world, const Subnet& subnet, Lid lid, Random random)
      : subnet_(subnet), lid_(lid), world_(world), random_(random) {
    start();
  }

  Lid lid() const { return lid_; }
  bool is_alive() const { return mads_.has_value(); }
  void die() { mads_.reset(); }
  // Restarts with empty memory.
  void start() {
    ++generation_;
    mads_.emplace();
    agent_ = *mads_->add_agent({.mgmt_class = 3,
                                .class_version = 2,
                                .methods = {bit(0x01) | bit(0x02) | bit(0x12) | bit(0x15), 0},
                                .rmpp_version = 1});
    members.clear();
    subscriptions.clear();
    services.clear();
    mlids_.clear();
    next_mlid_ = static_cast<std::uint16_t>(0xc000 + random_.below(100));
  }

  Faults faults{};
  std::uint8_t path_mtu = 4;        // the MTU of all paths
  std::uint16_t lids_per_port = 1;  // the number of LIDs of each port; a path leads to each LID
  std::uint32_t capability_mask2 = wire::sa_capability2::kSendOnlyFullMember;
  std::optional<wire::SaAttribute> unsupported_attribute{};  // requests for it are refused
  std::map<Gid, std::map<Gid, std::uint8_t>> members{};      // join states by MGID and port GID
  std::set<Subscription> subscriptions{};
  std::map<std::pair<Gid, std::uint64_t>, wire::ServiceRecord> services{};
  std::map<std::pair<wire::Method, wire::SaAttribute>, std::uint64_t> requests{};

  void receive(const mad::SendMad& packet) {
    if (!mads_) return;
    mad::Address from = packet.to;
    from.path = packet.to.path.reversed();
    mads_->receive({.destination_qpn = wire::kGsiQpn, .from = from, .mad = packet.mad},
                   world_.now());
    while (const auto message = mads_->next_message()) {
      if (message->timed_out || message->mad.size() < wire::kMadBytes) continue;
      const auto header = header_in(message->mad);
      if (header.mad.response) continue;  // the client has answered a report
      if (random_.chance(faults.loss)) continue;
      const Duration delay(static_cast<std::int64_t>(
          random_.below(static_cast<std::uint64_t>(faults.delay_max.count()) + 1)));
      if (delay == Duration{}) {
        serve(*message);
      } else {
        world_.after(delay, [this, message = *message, generation = generation_] {
          if (is_alive() && generation == generation_) serve(message);
        });
      }
    }
  }
  void on_timer() {
    if (mads_) mads_->on_timer(world_.now());
  }
  Time deadline() const { return mads_ ? mads_->deadline() : kNever; }
  std::optional<mad::SendMad> next_packet() { return mads_ ? mads_->next_packet() : std::nullopt; }

  // Reports that a port or a group has appeared or disappeared.
  void report(wire::TrapNumber trap, const Gid& gid) {
    if (!mads_) return;
    wire::SaNotice notice{.notice = {.producer = 4, .trap_number = trap, .issuer = lid_}};
    notice.notice.details = wire::encode(wire::GidChange{.gid = gid});
    for (const auto& [subscriber, subscribed_trap] : subscriptions) {
      if (subscribed_trap != trap) continue;
      std::vector<std::byte> mad(wire::kMadBytes);
      wire::encode_to(mad,
                      wire::SaHeader{.mad = {.mgmt_class = wire::MgmtClass::kSubnetAdministration,
                                             .class_version = 2,
                                             .method = wire::Method::kReport,
                                             .transaction_id = ++next_report_,
                                             .attribute_id = 2}});
      wire::encode_to(std::span(mad).subspan(wire::kSaHeaderBytes), notice);
      mad::Address to;
      to.path.link_layer = LinkLayer::kInfiniband;
      to.path.source_lid = lid_;
      to.path.destination_lid = subscriber;
      (void)mads_->send(
          agent_,
          {.to = to, .timeout = std::chrono::seconds(1), .retries = 3, .mad = std::move(mad)},
          world_.now());
    }
  }
  // Removes a port, like a manager that no longer finds the port in its sweep.
  void forget_port(const Gid& gid, Lid lid) {
    for (auto& [mgid, ports] : members) ports.erase(gid);
    std::erase_if(members, [](const auto& group) { return group.second.empty(); });
    std::erase_if(subscriptions,
                  [&](const Subscription& subscription) { return subscription.first == lid; });
  }

  static wire::SaHeader header_in(std::span<const std::byte> mad) {
    return wire::decode_exact<wire::SaHeader>(mad.first<wire::kSaHeaderBytes>());
  }

 private:
  using Message = mad::ManagementPort::Message;
  static constexpr std::uint64_t bit(unsigned method) { return std::uint64_t{1} << method; }
  template <wire::Message Record>
  static Record record_in(const Message& message) {
    return wire::decode_exact<Record>(std::span(message.mad)
                                          .template subspan<wire::kSaHeaderBytes>()
                                          .template first<wire::kSize<Record>>());
  }

  void serve(const Message& message) {
    const auto header = header_in(message.mad);
    const auto attribute = wire::SaAttribute{header.mad.attribute_id};
    ++requests[{header.mad.method, attribute}];
    if (random_.chance(faults.busy)) {
      return answer<wire::PathRecord>(message, wire::mad_status::kBusy, {{}});
    }
    if (attribute == unsupported_attribute) return answer<wire::PathRecord>(message, 0x0c, {{}});
    switch (attribute) {
      case wire::SaAttribute::kPathRecord: return serve_path(message, header);
      case wire::SaAttribute::kMcMemberRecord: return serve_member(message, header);
      case wire::SaAttribute::kClassPortInfo:
        return answer<wire::ClassPortInfo>(
            message, 0, {{.class_version = 2, .capability_mask2 = capability_mask2}});
      case wire::SaAttribute::kInformInfo: return serve_inform(message);
      case wire::SaAttribute::kServiceRecord: return serve_service(message, header);
      default: return answer<wire::PathRecord>(message, 0x0c, {{}});
    }
  }

  void serve_path(const Message& message, const wire::SaHeader& header) {
    const auto request = record_in<wire::PathRecord>(message);
    std::vector<wire::PathRecord> paths;
    const bool has_destination =
        (header.component_mask & wire::PathRecord::Mask::kDestinationGid) != 0;
    const auto from = subnet_.find(request.source_gid);
    for (const auto& [gid, lid] : subnet_) {
      if ((has_destination && gid != request.destination_gid) || from == subnet_.end()) continue;
      const auto wanted_count = std::max<std::uint8_t>(request.numb_path, 1);
      for (std::uint16_t i = 0; i < std::min<std::uint16_t>(wanted_count, lids_per_port); ++i) {
        paths.push_back({.destination_gid = gid,
                         .source_gid = request.source_gid,
                         .destination_lid = {static_cast<std::uint16_t>(lid.value + i)},
                         .source_lid = {static_cast<std::uint16_t>(from->second.value + i)},
                         .reversible = true,
                         .numb_path = 1,
                         .pkey = {0xffff},
                         .mtu = path_mtu,
                         .rate = 3});
      }
    }
    if (paths.empty()) {
      return answer<wire::PathRecord>(message, wire::mad_status_of(wire::SaStatus::kNoRecords),
                                      {{}});
    }
    answer(message, 0, paths);
  }

  void serve_member(const Message& message, const wire::SaHeader& header) {
    auto record = record_in<wire::McMemberRecord>(message);
    if (header.mad.method == wire::Method::kDelete) {
      const auto group = members.find(record.mgid);
      const auto port = group == members.end() ? decltype(group->second.begin()){}
                                               : group->second.find(record.port_gid);
      if (group == members.end() || port == group->second.end()) {
        return answer<wire::McMemberRecord>(
            message, wire::mad_status_of(wire::SaStatus::kRequestInvalid), {record});
      }
      port->second = static_cast<std::uint8_t>(port->second & ~record.join_state);
      if (port->second == 0) group->second.erase(port);
      if (group->second.empty()) {
        members.erase(group);
        mlids_.erase(record.mgid);
        report(wire::TrapNumber::kMulticastGroupDeleted, record.mgid);
      }
      return answer<wire::McMemberRecord>(message, 0, {record});
    }
    if (record.mgid == Gid{}) {
      record.mgid.bytes = {std::byte{0xff}, std::byte{0x12}, std::byte{0xa0}, std::byte{0x1b}};
      record.mgid.bytes[15] = static_cast<std::byte>(++next_mgid_);
    }
    auto& state = members[record.mgid][record.port_gid];
    state = static_cast<std::uint8_t>(state | record.join_state);
    auto& mlid = mlids_[record.mgid];
    if (mlid == Lid{}) mlid.value = next_mlid_++;
    record.join_state = state;
    record.mlid = mlid;
    record.qkey = {0xb1b};
    record.pkey = {0xffff};
    record.mtu = 4;
    record.rate = 3;
    answer<wire::McMemberRecord>(message, 0, {record});
  }

  void serve_inform(const Message& message) {
    const auto inform = record_in<wire::InformInfo>(message);
    const Subscription subscription{message.from.path.destination_lid,
                                    wire::TrapNumber{inform.trap_number}};
    if (inform.subscribe) {
      subscriptions.insert(subscription);
    } else {
      subscriptions.erase(subscription);
    }
    answer<wire::InformInfo>(message, 0, {inform});
  }

  void serve_service(const Message& message, const wire::SaHeader& header) {
    const auto record = record_in<wire::ServiceRecord>(message);
    const std::pair key{record.service_gid, record.service_id.value};
    if (header.mad.method == wire::Method::kSet) services[key] = record;
    if (header.mad.method == wire::Method::kDelete) services.erase(key);
    if (header.mad.method != wire::Method::kGetTable) {
      return answer<wire::ServiceRecord>(message, 0, {record});
    }
    std::vector<wire::ServiceRecord> found;
    using Mask = wire::ServiceRecord::Mask;
    const auto differs = [&](std::uint64_t component, const auto member, const auto& service) {
      return (header.component_mask & component) != 0 && service.*member != record.*member;
    };
    for (const auto& [at, service] : services) {
      if (!differs(Mask::kName, &wire::ServiceRecord::name, service) &&
          !differs(Mask::kServiceId, &wire::ServiceRecord::service_id, service)) {
        found.push_back(service);
      }
    }
    answer(message, 0, found);
  }

  template <wire::Message Record>
  void answer(const Message& message, std::uint16_t status, const std::vector<Record>& records) {
    if (random_.chance(faults.silent)) return;
    wire::SaHeader header = header_in(message.mad);
    const bool is_table = header.mad.method == wire::Method::kGetTable && status == 0;
    header.mad.response = true;
    if (header.mad.method == wire::Method::kSet) header.mad.method = wire::Method::kGet;
    header.mad.status = status;
    constexpr std::size_t kRecordStride = (wire::kSize<Record> + 7) / 8 * 8;
    header.attribute_offset = kRecordStride / 8;
    header.rmpp.active = is_table;
    std::vector<std::byte> mad(is_table ? wire::kSaHeaderBytes + records.size() * kRecordStride
                                        : wire::kMadBytes);
    wire::encode_to(mad, header);
    for (std::size_t i = 0; i < records.size(); ++i) {
      wire::encode_to(std::span(mad).subspan(wire::kSaHeaderBytes + i * kRecordStride), records[i]);
    }
    // If the request is a repeat, the table for its first try may still be on its way.  Then send()
    // fails, and the client gets the first table.
    (void)mads_->send(agent_, {.to = message.from, .retries = 5, .mad = std::move(mad)},
                      world_.now());
    if (pump) pump();
  }

 public:
  std::function<void()> pump{};  // called after an answer, to deliver packets

 private:
  const Subnet& subnet_;
  Lid lid_;
  sim::World& world_;
  Random random_;
  std::optional<mad::ManagementPort> mads_{};
  mad::AgentNumber agent_{};
  std::uint64_t generation_ = 0;
  std::map<Gid, Lid> mlids_{};
  std::uint16_t next_mlid_ = 0xc000;
  unsigned next_mgid_ = 0;
  std::uint64_t next_report_ = 0;
};

}  // namespace verbena::sa
