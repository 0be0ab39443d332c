#include "process/status_table.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "ipc/counters.h"
#include "wire/drop.h"

namespace verbena::process {
namespace {

// Lists the reasons to drop a packet whose ICRC is good.
constexpr std::array kMalformedReasons{wire::Drop::kTooShort,      wire::Drop::kNotMultipleOfFour,
                                       wire::Drop::kUnknownOpcode, wire::Drop::kTransportVersion,
                                       wire::Drop::kPadTooLong,    wire::Drop::kPayloadNotAllowed};

ipc::QpTableRow table_row(const hca::QpRow& row) {
  return {.qpn = row.qpn,
          .destination_qpn = row.destination_qpn,
          .type = std::to_underlying(row.type),
          .state = std::to_underlying(row.state),
          .path_mtu = std::to_underlying(row.path_mtu),
          .link_layer = row.link_layer,
          .send_psn = row.send_psn,
          .acked_psn = row.acked_psn,
          .expected_psn = row.expected_psn,
          .send_queued = row.send_queued,
          .recv_queued = row.recv_queued,
          .source = row.source,
          .destination = row.destination,
          .source_lid = row.source_lid,
          .destination_lid = row.destination_lid,
          .packets_in = row.packets_in,
          .packets_out = row.packets_out,
          .bytes_in = row.bytes_in,
          .bytes_out = row.bytes_out,
          .retransmissions = row.retransmissions,
          .timeouts = row.timeouts,
          .rnr_naks_in = row.rnr_naks_in,
          .rnr_naks_out = row.rnr_naks_out};
}

// Calls f(prefix, name, value) for each counter, always in the same order.
void for_each_counter(const hca::Counters& engine, const StatusTable::Counts& counts, auto&& f) {
  for (std::size_t i = 0; i < engine.values.size(); ++i) {
    f("", hca::to_string(static_cast<hca::Counter>(i)), engine.values[i]);
  }
  for (const wire::Drop reason : kMalformedReasons) {
    f("drop_", wire::to_string(reason), engine.malformed[std::to_underlying(reason)]);
  }
  f("", "limit_ids", counts.ids_refused);
  f("", "limit_qpns", counts.qpns_refused);
  f("", "limit_unread", counts.messages_refused);
  f("", "limit_joins", counts.joins_refused);
  f("", "lanes", counts.lanes);
  f("", "lane_packets_in", counts.lane.packets_in);
  f("", "lanes_broken", counts.lane.broken);
  f("", "drop_lane_source", counts.lane.foreign_sources);
  f("", "lanes_refused", counts.lane.refused);
}

}  // namespace

void StatusTable::set_memory(std::span<std::byte> memory) {
  table_.emplace(memory);
  rows_.resize(ipc::QpTable::kRows);
  counters_.clear();
  for_each_counter({}, {}, [this](const char* prefix, const char* name, std::uint64_t) {
    counters_.push_back(table_->add_counter(ipc::counter_name(std::string(prefix) + name)));
  });
}

Time StatusTable::deadline() const {
  return outdated_ && table_ ? updated_ + kUpdateInterval : kNever;
}

void StatusTable::update(const hca::Engine& engine, const Counts& counts, Time now) {
  updated_ = now;
  outdated_ = false;
  const std::size_t count = engine.rows(rows_);
  for (std::size_t i = 0; i < count; ++i) {
    table_->write(static_cast<std::uint32_t>(i), table_row(rows_[i]));
  }
  for (std::size_t i = count; i < rows_written_; ++i) {
    table_->write(static_cast<std::uint32_t>(i), {});
  }
  rows_written_ = count;
  table_->set_count(static_cast<std::uint32_t>(engine.qp_count()));
  write_counters(engine, counts);
}

void StatusTable::write_counters(const hca::Engine& engine, const Counts& counts) {
  auto at = counters_.begin();
  for_each_counter(engine.counters(), counts, [&](const char*, const char*, std::uint64_t value) {
    table_->set_counter(*at++, value);
  });
}

}  // namespace verbena::process
