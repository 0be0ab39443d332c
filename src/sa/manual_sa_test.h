#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "sa/queries.h"
#include "wire/bth.h"

// Provides a port for which the test acts as the SA.  The test gets each request, and answers it.
namespace verbena::sa {

constexpr Gid test_gid(unsigned number) {
  Gid gid{};
  gid.bytes[0] = std::byte{0xfe};
  gid.bytes[1] = std::byte{0x80};
  gid.bytes[14] = static_cast<std::byte>(number >> 8);
  gid.bytes[15] = static_cast<std::byte>(number);
  return gid;
}

class ManualSaTest : public testing::Test {
 protected:
  ManualSaTest() { queries.set_port({}, port, now); }

  PortState port{.active = true,
                 .lid = {5},
                 .sm_lid = {1},
                 .sm_sl = 3,
                 .gids = {test_gid(5)},
                 .pkeys = {{0x8001}, wire::kDefaultPkey}};
  Time now{std::chrono::seconds(1)};
  mad::ManagementPort mads{};
  mad::AgentNumber agent{*mads.add_agent({.mgmt_class = 3, .class_version = 2, .rmpp_version = 1})};
  Queries queries{mads, agent, Random(7)};

  // Subclasses pass results of queries, and the time, to the part of the client that they test.
  virtual void on_query_result(const QueryResult&) { FAIL() << "this test expects no result"; }
  virtual void on_timer() {}
  virtual Time deadline() { return kNever; }

  // Returns the requests that were sent since the last call.
  std::vector<mad::SendMad> sent() {
    std::vector<mad::SendMad> all = std::exchange(requests_during_table_, {});
    while (auto packet = mads.next_packet()) all.push_back(*packet);
    return all;
  }
  // Returns the request that was sent.  Fails if none or several were sent.
  mad::SendMad request() {
    const auto all = sent();
    EXPECT_EQ(all.size(), 1U);
    return all.empty() ? mad::SendMad{} : all.front();
  }
  static wire::SaHeader header_in(const mad::SendMad& packet) {
    return wire::decode_exact<wire::SaHeader>(std::span(packet.mad).first<wire::kSaHeaderBytes>());
  }
  template <wire::Message Record>
  static Record record_in(const mad::SendMad& packet) {
    return wire::decode_exact<Record>(
        std::span(packet.mad).template subspan<wire::kSaHeaderBytes, wire::kSize<Record>>());
  }
  // Answers a request with a status and records.
  template <wire::Message Record>
  void answer(const mad::SendMad& request, std::uint16_t status, const std::vector<Record>& records,
              wire::SaAttribute attribute) {
    wire::SaHeader header = header_in(request);
    const bool is_table = header.mad.method == wire::Method::kGetTable;
    header.mad.response = true;
    if (header.mad.method == wire::Method::kSet) header.mad.method = wire::Method::kGet;
    header.mad.status = status;
    header.mad.attribute_id = static_cast<std::uint16_t>(attribute);
    constexpr std::size_t kRecordStride = (wire::kSize<Record> + 7) / 8 * 8;
    if (is_table && status == 0) {
      header.attribute_offset = kRecordStride / 8;
      header.rmpp = {.type = wire::RmppType::kData, .active = true};
    }
    std::vector<std::byte> message(std::max<std::size_t>(
        is_table ? 0 : wire::kMadBytes, wire::kSaHeaderBytes + records.size() * kRecordStride));
    wire::encode_to(message, header);
    for (std::size_t i = 0; i < records.size(); ++i) {
      wire::encode_to(std::span(message).subspan(wire::kSaHeaderBytes + i * kRecordStride),
                      records[i]);
    }
    deliver(request, header, std::move(message));
  }
  template <wire::Message Record>
  void answer(const mad::SendMad& request, const Record& record) {
    answer(request, 0, std::vector{record}, wire::SaAttribute{header_in(request).mad.attribute_id});
  }
  void refuse(const mad::SendMad& request, std::uint16_t status) {
    answer(request, status, std::vector<wire::PathRecord>(1),
           wire::SaAttribute{header_in(request).mad.attribute_id});
  }
  void refuse(const mad::SendMad& request, wire::SaStatus status) {
    refuse(request, wire::mad_status_of(status));
  }

  void pump() {
    while (const auto message = mads.next_message()) queries.receive(*message, now);
    deliver_results();
  }
  // Advances the time to `end`, and returns the requests that were sent.
  std::vector<mad::SendMad> run_until(Time end) {
    std::vector<mad::SendMad> all;
    for (;;) {
      for (const auto& packet : sent()) all.push_back(packet);
      const Time next = std::min({mads.deadline(), queries.deadline(), deadline()});
      if (next > end) break;
      now = std::max(now, next);
      mads.on_timer(now);
      pump();
      queries.on_timer(now);
      deliver_results();
      on_timer();
    }
    now = end;
    return all;
  }
  std::vector<mad::SendMad> run_for(Duration duration) { return run_until(now + duration); }

 private:
  void deliver_results() {
    if (test_reads_results) return;
    while (const auto result = queries.next_result()) on_query_result(*result);
  }
  // Sends an answer like a manager, with RMPP if the answer is a table.
  void deliver(const mad::SendMad& request, const wire::SaHeader& header,
               std::vector<std::byte> message) {
    mad::ManagementPort manager;
    const auto server = *manager.add_agent({.mgmt_class = 3,
                                            .class_version = 2,
                                            .methods = {~std::uint64_t{0} - 1, 0},
                                            .rmpp_version = 1});
    EXPECT_TRUE(manager.send(server, {.to = request.to, .mad = std::move(message)}, now));
    for (bool moved = true; moved;) {
      moved = false;
      while (const auto packet = manager.next_packet()) {
        mads.receive({.destination_qpn = wire::kGsiQpn, .from = packet->to, .mad = packet->mad},
                     now);
        moved = true;
      }
      if (!header.rmpp.active || !moved) continue;
      while (const auto packet = mads.next_packet()) {
        if (header_in(*packet).rmpp.type != wire::RmppType::kAck) {
          requests_during_table_.push_back(*packet);
          continue;
        }
        manager.receive({.destination_qpn = wire::kGsiQpn, .from = packet->to, .mad = packet->mad},
                        now);
      }
    }
    pump();
  }

  std::vector<mad::SendMad> requests_during_table_{};  // sent while a table arrived

 protected:
  bool test_reads_results = false;  // if true, the test itself calls queries.next_result()
};

}  // namespace verbena::sa
