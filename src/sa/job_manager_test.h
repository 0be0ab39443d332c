#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "mad/management_port.h"
#include "sim/world.h"
#include "wire/bth.h"
#include "wire/sa.h"

// Models the SA of a large subnet for the start of a job, in tests and in bench/job_start.cc.
namespace verbena::sa {

inline constexpr Lid kJobManagerLid{1};
inline constexpr std::uint16_t kFirstJobLid = 100;

inline Gid job_gid(unsigned host) {
  Gid gid{};
  gid.bytes[0] = std::byte{0xfe};
  gid.bytes[1] = std::byte{0x80};
  gid.bytes[13] = std::byte{1};  // so that no host has the interface ID 0
  gid.bytes[14] = static_cast<std::byte>(host >> 8);
  gid.bytes[15] = static_cast<std::byte>(host);
  return gid;
}
inline unsigned job_host(const Gid& gid) {
  return std::to_integer<unsigned>(gid.bytes[14]) << 8 | std::to_integer<unsigned>(gid.bytes[15]);
}
inline Lid job_lid(unsigned host) { return {static_cast<std::uint16_t>(kFirstJobLid + host)}; }

// Serves one request at a time, and needs some time for each.  Requests wait in an unlimited queue.
// Like OpenSM, the manager also serves a repeat of a request that still waits in the queue.
class JobManager {
 public:
  struct Config {
    unsigned hosts = 0;
    Duration per_request = std::chrono::microseconds(50);
    Duration per_record = std::chrono::nanoseconds(500);  // added for each record of a table
    Ratio deaf{};                                         // the fraction of requests that are lost
    Ratio busy{};                                         // the fraction of requests that get BUSY
  };
  struct Counters {
    std::uint64_t unseen = 0;  // requests that were lost
    std::uint64_t paths = 0;   // requests for one path that were served, including repeats
    std::uint64_t tables = 0;  // requests for a table that were served, including repeats
    std::uint64_t others = 0;  // requests that are not for paths, for example subscriptions
    std::uint64_t busy = 0;
    std::size_t queue_max = 0;
  };

  JobManager(sim::World& world, const Config& config, Random random)
      : world_(world), config_(config), random_(random) {
    constexpr auto kRequests = std::uint64_t{1} << 0x01 | std::uint64_t{1} << 0x02 |
                               std::uint64_t{1} << 0x12;  // Get, Set, GetTable
    const auto agent = mads_.add_agent(
        {.mgmt_class = 3, .class_version = 2, .methods = {kRequests, 0}, .rmpp_version = 1});
    VB_CHECK(agent.has_value());
    agent_ = *agent;
  }
  JobManager(const JobManager&) = delete;
  JobManager& operator=(const JobManager&) = delete;

  // The manager calls pump() when next_packet() may have packets.
  std::move_only_function<void()> pump{};

  void receive(const mad::SendMad& packet) {
    mad::Address from = packet.to;
    from.path = packet.to.path.reversed();
    mads_.receive({.destination_qpn = wire::kGsiQpn, .from = from, .mad = packet.mad},
                  world_.now());
    while (auto message = mads_.next_message()) {
      if (message->timed_out) continue;
      if (random_.chance(config_.deaf)) {
        ++counters_.unseen;
        continue;
      }
      queue_.push_back(*std::move(message));
      counters_.queue_max = std::max(counters_.queue_max, queue_.size());
      if (queue_.size() == 1) start_first_request();
    }
  }
  void on_timer() { mads_.on_timer(world_.now()); }
  Time deadline() const { return mads_.deadline(); }
  std::optional<mad::SendMad> next_packet() { return mads_.next_packet(); }
  const Counters& counters() const { return counters_; }

 private:
  using Message = mad::ManagementPort::Message;

  static wire::SaHeader header_in(const Message& message) {
    return wire::decode_exact<wire::SaHeader>(std::span(message.mad).first<wire::kSaHeaderBytes>());
  }
  static bool is_table(const wire::SaHeader& header) {
    return header.mad.method == wire::Method::kGetTable;
  }

  void start_first_request() {
    Duration time = config_.per_request;
    if (is_table(header_in(queue_.front()))) time += config_.per_record * config_.hosts;
    world_.after(time, [this] {
      const Message message = std::move(queue_.front());
      queue_.pop_front();
      serve(message);
      if (!queue_.empty()) start_first_request();
      pump();
    });
  }

  void serve(const Message& message) {
    const wire::SaHeader header = header_in(message);
    if (random_.chance(config_.busy)) {
      ++counters_.busy;
      return answer(message, header, wire::mad_status::kBusy, {});
    }
    if (header.mad.attribute_id != static_cast<std::uint16_t>(wire::SaAttribute::kPathRecord)) {
      ++counters_.others;
      return answer(message, header, 0, {});
    }
    const auto request = wire::decode_exact<wire::PathRecord>(
        std::span(message.mad).subspan(wire::kSaHeaderBytes).first<kRecordBytes>());
    std::vector<wire::PathRecord> paths;
    if (is_table(header)) {
      ++counters_.tables;
      for (unsigned to = 0; to < config_.hosts; ++to) paths.push_back(path_to(to, request));
    } else {
      ++counters_.paths;
      paths.push_back(path_to(job_host(request.destination_gid), request));
    }
    answer(message, header, 0, paths);
  }

  static wire::PathRecord path_to(unsigned to, const wire::PathRecord& request) {
    return {.destination_gid = job_gid(to),
            .source_gid = request.source_gid,
            .destination_lid = job_lid(to),
            .source_lid = job_lid(job_host(request.source_gid)),
            .reversible = true,
            .numb_path = 1,
            .pkey = wire::kDefaultPkey,
            .mtu = 4,
            .rate = 3};
  }

  // Answers with the records, or with the record of the request if `paths` is empty.
  void answer(const Message& message, wire::SaHeader header, std::uint16_t status,
              const std::vector<wire::PathRecord>& paths) {
    const bool has_table = is_table(header) && status == 0;
    header.mad.response = true;
    if (header.mad.method == wire::Method::kSet) header.mad.method = wire::Method::kGet;
    header.mad.status = status;
    header.attribute_offset = kRecordBytes / 8;
    header.rmpp.active = has_table;
    std::vector<std::byte> mad = message.mad;
    if (has_table) mad.resize(wire::kSaHeaderBytes + paths.size() * kRecordBytes);
    wire::encode_to(mad, header);
    for (std::size_t i = 0; i < paths.size(); ++i) {
      wire::encode_to(std::span(mad).subspan(wire::kSaHeaderBytes + i * kRecordBytes), paths[i]);
    }
    // If the request is a repeat, the table for its first try may still be on its way.  Then send()
    // fails, and the client gets the first table.
    (void)mads_.send(agent_, {.to = message.from, .retries = 5, .mad = std::move(mad)},
                     world_.now());
  }

  static constexpr std::size_t kRecordBytes = wire::kSize<wire::PathRecord>;

  sim::World& world_;
  Config config_;
  Random random_;
  mad::ManagementPort mads_{};
  mad::AgentNumber agent_{};
  std::deque<Message> queue_{};  // the first message is being served
  Counters counters_{};
};

}  // namespace verbena::sa
