#include "sa/client.h"

#include <algorithm>

namespace verbena::sa {

using wire::TrapNumber;

namespace {

// Returns a random number; the client's MAD agent gets the next number.  The number is at least
// 2^31, because the agents of other programs are numbered from 1.
mad::AgentNumber agent_number_before(Random& random) {
  return {0x80000000 | (random.next32() & 0x7ffffff0)};
}

mad::AgentNumber add_agent(mad::ManagementPort& mads) {
  constexpr auto kReport = std::uint64_t{1} << static_cast<unsigned>(wire::Method::kReport);
  const auto agent = mads.add_agent(
      {.mgmt_class = static_cast<std::uint8_t>(wire::MgmtClass::kSubnetAdministration),
       .class_version = wire::class_version(wire::MgmtClass::kSubnetAdministration),
       .methods = {kReport, 0},
       .rmpp_version = wire::kRmppVersion});
  VB_CHECK(agent.has_value());
  return *agent;
}

}  // namespace

std::unique_ptr<Client> Client::create(PortId port, const Config& config, Random random, Time now) {
  return std::unique_ptr<Client>(new Client(port, config, random, now));
}

Client::Client(PortId port, const Config& config, Random& random, Time now)
    : port_(port),
      mads_(agent_number_before(random)),
      agent_(add_agent(mads_)),
      queries_(mads_, agent_, random.fork()),
      paths_(config.paths, queries_, random.fork()),
      memberships_(queries_, random.fork()),
      subscriptions_(queries_, mads_, agent_, random.fork()),
      services_(queries_, random.fork()),
      capabilities_(queries_, random.fork()) {
  if (!config.notices) return;
  for (const auto trap :
       {TrapNumber::kGidInService, TrapNumber::kGidOutOfService, TrapNumber::kMulticastGroupDeleted,
        TrapNumber::kUnpath, TrapNumber::kRepath}) {
    VB_CHECK(subscriptions_.subscribe_silently(trap, now).has_value());
  }
}

void Client::set_port(const PortState& state, Time now) {
  if (state == state_) return;
  const PortChange change = PortChange::between(state_, state);
  state_ = state;
  if (change.resends_queries()) memberships_.delay_new_groups(now);
  queries_.set_port(port_, state, now);
  subscriptions_.set_port(state, change, now);
  paths_.set_port(state, change, now);
  memberships_.set_port(state, change, now);
  services_.set_port(state, change, now);
  capabilities_.set_port(state, change, now);
  memberships_.set_send_only_full_members(capabilities_.has_send_only_full_members(), now);
  pump(now);
}

void Client::reregister(Time now) {
  subscriptions_.reregister(now);
  paths_.reregister(now);
  memberships_.reregister(now);
  services_.reregister(now);
  capabilities_.reregister(now);
  memberships_.set_send_only_full_members(std::nullopt, now);
  pump(now);
}

bool Client::wants(const wire::MadHeader& header) const {
  if (header.mgmt_class != wire::MgmtClass::kSubnetAdministration) return false;
  if (mad::is_response(header)) return header.transaction_id >> 32 == agent_.value;
  return header.method == wire::Method::kReport;
}

void Client::receive(const mad::ManagementPort::Arrival& arrival, Time now) {
  mads_.receive(arrival, now);
  pump(now);
}

void Client::on_timer(Time now) {
  mads_.on_timer(now);
  pump(now);
  queries_.on_timer(now);
  pump(now);
  paths_.on_timer(now);
  memberships_.on_timer(now);
  subscriptions_.on_timer(now);
  services_.on_timer(now);
  capabilities_.on_timer(now);
  pump(now);
}

Time Client::deadline() const {
  return std::min({mads_.deadline(), queries_.deadline(), paths_.deadline(),
                   memberships_.deadline(), subscriptions_.deadline(), services_.deadline(),
                   capabilities_.deadline()});
}

// Passes messages, and the results of queries, to the parts of the client that wait for them.
void Client::pump(Time now) {
  while (const auto message = mads_.next_message()) {
    const auto header =
        wire::decode_exact<wire::MadHeader>(std::span(message->mad).first<wire::kMadHeaderBytes>());
    if (message->timed_out || mad::is_response(header)) {
      queries_.receive(*message, now);
    } else if (const auto notice = subscriptions_.receive_report(*message, now)) {
      handle_notice(*notice, now);
    }
  }
  // Every SA answers a query for its ClassPortInfo, so the answer shows whether there is an SA.
  if (queries_.was_refused_since_last_call()) capabilities_.ask(now);
  while (const auto result = queries_.next_result()) dispatch(*result, now);
  paths_.set_notices(subscriptions_.is_registered(TrapNumber::kGidInService) &&
                     subscriptions_.is_registered(TrapNumber::kGidOutOfService));
}

void Client::dispatch(const QueryResult& result, Time now) {
  switch (result.owner) {
    case QueryOwner::kPaths: return paths_.receive(result, now);
    case QueryOwner::kMemberships: return memberships_.receive(result, now);
    case QueryOwner::kSubscriptions: return subscriptions_.receive(result, now);
    case QueryOwner::kServices: return services_.receive(result, now);
    case QueryOwner::kCapabilities: return receive_capabilities(result, now);
  }
}

void Client::receive_capabilities(const QueryResult& result, Time now) {
  capabilities_.receive(result, now);
  memberships_.set_send_only_full_members(capabilities_.has_send_only_full_members(), now);
}

void Client::handle_notice(const wire::SaNotice& notice, Time now) {
  const Gid gid = wire::decode_exact<wire::GidChange>(notice.notice.details).gid;
  switch (notice.notice.trap_number) {
    case TrapNumber::kGidInService: return paths_.gid_in_service(gid, now);
    case TrapNumber::kGidOutOfService: return paths_.gid_out_of_service(gid, now);
    case TrapNumber::kMulticastGroupDeleted: return memberships_.group_deleted(gid, now);
    case TrapNumber::kUnpath:
    case TrapNumber::kRepath: return paths_.paths_changed(now);
    default: return;
  }
}

std::optional<Event> Client::next_event() {
  if (auto event = paths_.next_event()) return Event(*std::move(event));
  if (auto event = memberships_.next_event()) return Event(*std::move(event));
  if (auto event = subscriptions_.next_event()) return Event(*std::move(event));
  if (auto event = services_.next_event()) return Event(*std::move(event));
  return std::nullopt;
}

}  // namespace verbena::sa
