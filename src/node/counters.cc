// Lists all counters of a node, by name.

#include "ipc/counters.h"

#include <string>
#include <utility>

#include "node/node.h"
#include "wire/cm_common.h"
#include "wire/drop.h"

namespace verbena::node {
namespace {

// Collects counters with their names.
class CounterList {
 public:
  void add(const std::string& name, std::uint64_t value) {
    all_.push_back({ipc::counter_name(name), value});
  }
  std::vector<ipc::NamedCount> release() { return std::move(all_); }

 private:
  std::vector<ipc::NamedCount> all_{};
};

void add_qp1(CounterList& list, const hca::Counters& qp1) {
  for (std::size_t i = 0; i < qp1.values.size(); ++i) {
    list.add(std::string("qp1_") + hca::to_string(static_cast<hca::Counter>(i)), qp1.values[i]);
  }
  for (std::size_t i = 1; i < qp1.malformed.size(); ++i) {
    list.add(std::string("qp1_drop_") + wire::to_string(static_cast<wire::Drop>(i)),
             qp1.malformed[i]);
  }
}

template <class Counters>
void add_named_counters(CounterList& list, const auto& table, const Counters& counters) {
  for (const auto& [member, name] : table) list.add(name, counters.*member);
}

// Lists a counter for each REJ reason that has occurred.  Leaves out the reasons that have not
// occurred, because there are about thirty reasons.
void add_rejects(CounterList& list, const std::string& prefix,
                 const std::map<std::uint16_t, std::uint64_t>& by_reason) {
  for (const auto& [reason, count] : by_reason) {
    const std::string name = wire::cm::to_string(static_cast<wire::cm::RejReason>(reason));
    // The text after a colon explains the reason; it is not part of the name.
    list.add(prefix + "_" + std::to_string(reason) + "_" + name.substr(0, name.find(':')), count);
  }
}

// Lists how long endpoints were in each state.  Leaves out kEstablished and kTimewait, in which no
// side waits for the other, and the empty buckets of the histograms.
void add_times(CounterList& list, const cm::Counters& cm) {
  for (std::size_t i = 0; i < cm::Counters::kStates; ++i) {
    const auto state = static_cast<cm::State>(i);
    if (state == cm::State::kEstablished || state == cm::State::kTimewait) continue;
    for (std::size_t bucket = 0; bucket < cm::TimeHistogram::kBuckets; ++bucket) {
      const std::uint64_t count = cm.times[i].of(bucket);
      if (count == 0) continue;
      const bool is_last = bucket + 1 == cm::TimeHistogram::kBuckets;
      const auto us = std::chrono::duration_cast<std::chrono::microseconds>(
                          cm::TimeHistogram::limit(is_last ? bucket - 1 : bucket))
                          .count();
      list.add(std::string("cm_time_in_") + cm::to_string(state) +
                   (is_last ? "_over_" : "_up_to_") + std::to_string(us) + "_us",
               count);
    }
  }
}

void add_cm(CounterList& list, const cm::Counters& cm) {
  for (std::size_t i = 0; i < cm::Counters::kMessages; ++i) {
    const auto id = static_cast<wire::cm::AttributeId>(cm::Counters::kFirst + i);
    const std::string name = std::string("cm_") + wire::cm::to_string(id);
    const auto& message = cm.of(id);
    list.add(name + "_sent", message.sent);
    list.add(name + "_repeated", message.repeated);
    list.add(name + "_received", message.received);
    list.add(name + "_duplicate", message.duplicate);
  }
  for (std::size_t i = 0; i < cm.ignored.size(); ++i) {
    list.add(std::string("cm_ignored_") + cm::to_string(static_cast<cm::Ignored>(i)),
             cm.ignored[i]);
  }
  add_rejects(list, "cm_rej_sent", cm.rejects_sent);
  add_rejects(list, "cm_rej_received", cm.rejects_received);
  add_times(list, cm);
  add_named_counters(list, cm::kEventNames, cm);
}

std::vector<ipc::NamedCount> counters_of(const InfinibandPort& port) {
  CounterList list;
  const sa::Client& client = port.client();
  add_named_counters(list, sa::kQueryCounterNames, client.queries().counters());
  add_named_counters(list, sa::kPathCounterNames, client.paths().counters());
  add_named_counters(list, sa::kMembershipCounterNames, client.memberships().counters());
  add_named_counters(list, sa::kSubscriptionCounterNames, client.subscriptions().counters());
  add_named_counters(list, sa::kServiceCounterNames, client.services().counters());
  add_named_counters(list, sa::kCapabilityCounterNames, client.capabilities().counters());
  list.add("sa_send_only_full_members",
           client.capabilities().has_send_only_full_members().value_or(false) ? 1 : 0);
  const ipoib::Counters& ipoib = port.neighbours().counters();
  add_named_counters(list, ipoib::kEventNames, ipoib);
  for (std::size_t i = 0; i < ipoib.ignored.size(); ++i) {
    list.add(std::string("ipoib_ignored_") + ipoib::to_string(static_cast<ipoib::Ignored>(i)),
             ipoib.ignored[i]);
  }
  add_named_counters(list, kInfinibandCounterNames, port.counters());
  return list.release();
}

}  // namespace

// Adds up the counters of all InfiniBand ports.
void Node::add_infiniband_counters(std::vector<ipc::NamedCount>& all) const {
  std::vector<ipc::NamedCount> sum;
  for (const auto& [id, port] : infiniband_) {
    std::vector<ipc::NamedCount> port_counters = counters_of(port);
    for (std::size_t i = 0; i < sum.size(); ++i) port_counters[i].value += sum[i].value;
    sum = std::move(port_counters);
  }
  all.insert(all.end(), sum.begin(), sum.end());
}

std::vector<ipc::NamedCount> Node::counters() const {
  CounterList list;
  add_qp1(list, qp1_.counters());
  add_named_counters(list, mad::kCounterNames, mads_.counters());
  list.add("limit_qp1_sends", qp1_.sends_dropped());
  add_cm(list, rdmacm_.cm_counters());
  list.add("limit_ids", rdmacm_.limit_refusals().ids);
  list.add("limit_ids_of_client", rdmacm_.limit_refusals().ids_per_owner);
  list.add("limit_ids_of_user", rdmacm_.limit_refusals().ids_per_user);
  list.add("limit_leases", leases_over_host_limit_);
  list.add("limit_leases_of_client", leases_over_client_limit_);
  list.add("limit_leases_of_user", leases_over_user_limit_);
  list.add("leases_held", leases_delayed_);
  list.add("limit_groups", joins_over_host_limit_);
  list.add("limit_groups_of_client", joins_over_client_limit_);
  list.add("limit_gids", ports_.gids_dropped());
  list.add("limit_services_of_client", services_.limit_refusals());
  add_named_counters(list, kLaneCounterNames, lanes_.counters());
  std::vector<ipc::NamedCount> all = list.release();
  add_infiniband_counters(all);
  return all;
}

}  // namespace verbena::node
