// Lists the paths, groups, addresses and counters of the InfiniBand ports of a node, and flushes
// their paths and addresses.

#include <algorithm>
#include <string>
#include <utility>

#include "ipc/counters.h"
#include "node/node.h"

namespace verbena::node {
namespace {

constexpr const char* kNoPortText =
    "this host has no InfiniBand port, so it uses no subnet administration";

// Collects the rows of one reply.  Skips the rows of earlier replies, and sets `more` if rows
// remain.
class Page {
 public:
  Page(std::uint32_t skip, bool& more) : skip_(skip), more_(more) {}

  // Adds the row that make() returns, if the row belongs to this reply.
  template <class Row>
  void add(std::vector<Row>& rows, auto&& make) {
    if (skip_ != 0) {
      --skip_;
    } else if (rows.size() < ipc::kSaRowsPerReply) {
      rows.push_back(make());
    } else {
      more_ = true;
    }
  }

 private:
  std::uint32_t skip_;
  bool& more_;
};

std::string text_of(const Error& error) {
  const std::string text = *error.context != '\0' ? error.context : to_string(error.code);
  return text.substr(0, ipc::kSaTextBytesMax);
}

ipc::SaPathRow unknown_path(PortId port, const sa::PathCache::View& view) {
  const sa::PathQuery& query = view.query;
  ipc::SaPathRow row{.port = port,
                     .state = view.negative_answer ? "absent" : "asked",
                     .destination = query.destination,
                     .source = query.source,
                     .destination_lid = query.destination_lid.value_or(Lid{}),
                     .source_lid = query.source_lid.value_or(Lid{}),
                     .pkey = query.pkey.value_or(Pkey{}),
                     .service_level = query.service_level.value_or(0),
                     .age = view.age,
                     .waiters = static_cast<std::uint32_t>(view.waiters)};
  if (view.negative_answer) row.error = text_of(*view.negative_answer);
  return row;
}

ipc::SaPathRow known_path(PortId port, const sa::PathCache::View& view,
                          const wire::PathRecord& path) {
  return {.port = port,
          .state = "known",
          .destination = path.destination_gid,
          .source = path.source_gid,
          .destination_lid = path.destination_lid,
          .source_lid = path.source_lid,
          .pkey = path.pkey,
          .service_level = path.service_level,
          .mtu = path.mtu,
          .rate = path.rate,
          .packet_life = path.packet_life,
          .age = view.age,
          .waiters = static_cast<std::uint32_t>(view.waiters)};
}

ipc::SaGroupRow group_row(PortId port, const sa::Memberships::View& view) {
  const wire::McMemberRecord record = view.record.value_or(wire::McMemberRecord{});
  return {.port = port,
          .mgid = view.mgid,
          .join_state = view.join_state,
          .wanted = view.wanted,
          .members = static_cast<std::uint32_t>(view.members),
          .busy = view.has_request,
          .mlid = record.mlid,
          .qkey = record.qkey,
          .pkey = record.pkey,
          .mtu = record.mtu,
          .rate = record.rate,
          .service_level = record.service_level};
}

ipc::SaAddressRow address_row(PortId port, const ipoib::Row& row) {
  return {.port = port,
          .ip = row.ip,
          .state = to_string(row.state),
          .gid = row.neighbour.gid,
          .qpn = row.neighbour.qpn,
          .age = row.age,
          .waiters = static_cast<std::uint32_t>(row.waiters),
          .tries = row.tries};
}

}  // namespace

Result<ipc::SaReply> Node::show_sa(const ipc::ShowSa& request, Time now) const {
  if (infiniband_.empty()) return fail(Errc::kNotSupported, kNoPortText);
  ipc::SaReply reply;
  Page page(request.skip, reply.more);
  const auto add_paths = [&](PortId id, const sa::PathCache::View& view) {
    if (view.paths.empty()) page.add(reply.paths, [&] { return unknown_path(id, view); });
    for (const wire::PathRecord& path : view.paths) {
      page.add(reply.paths, [&] { return known_path(id, view, path); });
    }
  };
  switch (request.topic) {
    case ipc::SaTopic::kPaths:
      for (const auto& [id, port] : infiniband_) {
        port.client().paths().visit([&](const auto& view) { add_paths(id, view); }, now);
      }
      return reply;
    case ipc::SaTopic::kGroups:
      for (const auto& [id, port] : infiniband_) {
        port.client().memberships().visit(
            [&](const auto& view) { page.add(reply.groups, [&] { return group_row(id, view); }); });
      }
      return reply;
    case ipc::SaTopic::kAddresses:
      for (const auto& [id, port] : infiniband_) {
        for (const ipoib::Row& row : port.neighbours().rows(now)) {
          page.add(reply.addresses, [&] { return address_row(id, row); });
        }
      }
      return reply;
    case ipc::SaTopic::kCounters: {
      std::vector<ipc::NamedCount> all;
      add_infiniband_counters(all);
      for (ipc::NamedCount& counter : all) {
        page.add(reply.counters, [&] { return std::move(counter); });
      }
      return reply;
    }
  }
  return fail(Errc::kInvalidArgument, "not a topic of 'verbena sa'");
}

Result<ipc::SaFlushed> Node::flush_sa(Time now) {
  if (infiniband_.empty()) return fail(Errc::kNotSupported, kNoPortText);
  ipc::SaFlushed all;
  for (auto& [id, port] : infiniband_) {
    const InfinibandPort::FlushCounts flushed = port.flush(now);
    all.paths += flushed.paths;
    all.addresses += flushed.addresses;
  }
  run(now);
  return all;
}

}  // namespace verbena::node
