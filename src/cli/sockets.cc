#include "cli/sockets.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/printable.h"
#include "cli/socket_services.h"
#include "cli/text.h"
#include "os/agent_name.h"
#include "os/clock.h"
#include "os/daemon.h"
#include "os/unix_channel.h"
#include "verbena_build.h"

namespace verbena::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr Duration kTimeout = std::chrono::seconds(10);
constexpr const char* kNoService =
    "no socket service is running (one starts with the first program under "
    "'verbena run --sockets')";

std::string program_of(const broker::Row& row) {
  return printable_name(std::string(broker::text_of(row.program)));
}

// Formats a count of a direction.  A question mark says that the program has written impossible
// numbers, so that the count is too small or wrong.
std::string reported_text(std::uint64_t count, const broker::Traffic& traffic) {
  return std::to_string(count) + (traffic.implausible != 0 ? "?" : "");
}

std::string way_of(const broker::Row& row) { return row.has_ring != 0 ? "ring" : "tcp"; }

Json traffic_json(const broker::Traffic& traffic) {
  return {{"by_ring", traffic.by_ring},
          {"by_tcp", traffic.by_tcp},
          {"wakes", traffic.wakes},
          {"overflows", traffic.overflows},
          {"times_back", traffic.returns_to_tcp},
          {"implausible", traffic.implausible}};
}

Json totals_json(const broker::EndOfRows& totals) {
  return {{"pid", totals.pid},
          {"pairs", totals.pairs_now},
          {"pairs_made", totals.pairs_made},
          {"reports", totals.reports},
          {"claims_refused", totals.claims_refused},
          {"limits_met", totals.limit_refusals},
          {"memory_bytes", totals.memory_bytes},
          {"resident_bytes", totals.resident_bytes},
          {"given_back_bytes", totals.released_bytes},
          {"total", traffic_json(totals.total)}};
}

std::string json_text(const Json& json) {
  return json.dump(2, ' ', true, Json::error_handler_t::replace) + "\n";
}

Answer<SocketListing> read_socket_listing(os::UnixChannel& service, Time deadline) {
  SocketListing listing;
  std::array<std::byte, broker::kMessageBytesMax> buffer;
  std::vector<os::Fd> fds;
  if (!service.send(broker::bytes_of(broker::List{}), {}, deadline)) {
    return std::unexpected("the socket service has ended");
  }
  for (;;) {
    const auto bytes = service.receive(buffer, fds, deadline);
    if (!bytes || *bytes == 0) return std::unexpected("the socket service does not answer");
    const auto message = std::span(buffer).first(*bytes);
    if (const auto row = broker::decode<broker::Row>(message)) {
      listing.rows.push_back(*row);
    } else if (const auto last = broker::decode<broker::EndOfRows>(message)) {
      listing.totals = *last;
      return listing;
    } else {
      return std::unexpected("the socket service sent an unexpected answer");
    }
  }
}

void add(broker::Traffic& sum, const broker::Traffic& other) {
  sum.by_ring += other.by_ring;
  sum.by_tcp += other.by_tcp;
  sum.wakes += other.wakes;
  sum.overflows += other.overflows;
  sum.returns_to_tcp += other.returns_to_tcp;
  sum.implausible += other.implausible;
}

// Adds the rows and totals of another service.  Keeps the pid of the first service.
void add(SocketListing& sum, SocketListing other) {
  sum.rows.insert(sum.rows.end(), other.rows.begin(), other.rows.end());
  sum.totals.pairs_now += other.totals.pairs_now;
  sum.totals.pairs_made += other.totals.pairs_made;
  sum.totals.reports += other.totals.reports;
  sum.totals.claims_refused += other.totals.claims_refused;
  sum.totals.limit_refusals += other.totals.limit_refusals;
  sum.totals.memory_bytes += other.totals.memory_bytes;
  sum.totals.resident_bytes += other.totals.resident_bytes;
  sum.totals.released_bytes += other.totals.released_bytes;
  add(sum.totals.total, other.totals.total);
}

// Lists the sockets of all services.  Returns nothing if there is no service.
Answer<std::optional<SocketListing>> list_sockets(Time deadline) {
  std::optional<SocketListing> all;
  for (const std::string& name : socket_service_names()) {
    auto service = find_socket_service(name, deadline);
    if (!service) return std::unexpected(service.error());
    if (!*service) continue;
    auto listing = read_socket_listing(**service, deadline);
    if (!listing) return std::unexpected(listing.error());
    if (all) {
      add(*all, *std::move(listing));
    } else {
      all = *std::move(listing);
    }
  }
  return all;
}

}  // namespace

std::string sockets_as_text(const SocketListing& listing) {
  std::vector<std::vector<std::string>> rows{{"PROGRAM", "PID", "WAY", "LOCAL", "PEER", "OUT-RING",
                                              "OUT-TCP", "IN-RING", "IN-TCP", "WAKES", "BACK"}};
  for (const broker::Row& row : listing.rows) {
    rows.push_back({program_of(row), row.pid == 0 ? "-" : std::to_string(row.pid), way_of(row),
                    socket_name_text(row.connection.local), socket_name_text(row.connection.peer),
                    reported_text(row.out.by_ring, row.out), reported_text(row.out.by_tcp, row.out),
                    reported_text(row.in.by_ring, row.in), reported_text(row.in.by_tcp, row.in),
                    reported_text(row.out.wakes, row.out), std::to_string(row.out.returns_to_tcp)});
  }
  return table_text(rows);
}

std::string sockets_as_json(const SocketListing& listing) {
  Json rows = Json::array();
  for (const broker::Row& row : listing.rows) {
    rows.push_back({{"program", program_of(row)},
                    {"pid", row.pid},
                    {"processes", row.holders},
                    {"way", way_of(row)},
                    {"local", socket_name_text(row.connection.local)},
                    {"peer", socket_name_text(row.connection.peer)},
                    {"out", traffic_json(row.out)},
                    {"in", traffic_json(row.in)}});
  }
  return json_text({{"service", totals_json(listing.totals)}, {"sockets", std::move(rows)}});
}

std::string socket_totals_as_text(const SocketListing& listing) {
  const broker::EndOfRows& t = listing.totals;
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const char* name, std::uint64_t value) {
    rows.push_back({name, std::to_string(value)});
  };
  add("connections with a ring", t.pairs_now);
  add("connections with a ring so far", t.pairs_made);
  add("bytes by ring, as programs say", t.total.by_ring);
  add("bytes by TCP, as programs say", t.total.by_tcp);
  add("impossible counts of programs", t.total.implausible);
  add("wakes", t.total.wakes);
  add("times that a ring was full", t.total.overflows);
  add("returns to TCP", t.total.returns_to_tcp);
  add("connection ends reported", t.reports);
  add("claims refused", t.claims_refused);
  add("limits reached", t.limit_refusals);
  add("bytes of memory", t.resident_bytes);
  add("bytes of memory at most", t.memory_bytes);
  add("bytes of idle rings released", t.released_bytes);
  return table_text(rows) + fmt::format("socket service: pid {}\n", t.pid);
}

std::string socket_totals_as_json(const SocketListing& listing) {
  return json_text({{"service", totals_json(listing.totals)}});
}

int sockets(const SocketsOptions& options) {
  const Time deadline = os::now() + kTimeout;
  const auto listing = list_sockets(deadline);
  if (!listing) return print_error("sockets", listing.error());
  if (!*listing) {
    std::puts(options.json ? "{\n  \"service\": null,\n  \"sockets\": []\n}" : kNoService);
    return 0;
  }
  std::string text;
  if (options.totals) {
    text = options.json ? socket_totals_as_json(**listing) : socket_totals_as_text(**listing);
  } else {
    text = options.json ? sockets_as_json(**listing) : sockets_as_text(**listing);
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}

Answer<void> start_socket_service(const std::string& library_directory) {
  const Time deadline = os::now() + kTimeout;
  for (const std::string& name : socket_service_names()) {
    const auto found = find_socket_service(name, deadline);
    if (found && *found) return {};
    // Ignore an error of root's service, which may be of another build, because this user's own
    // service suffices.
    if (!found && name == os::socket_service_name()) return std::unexpected(found.error());
  }
  std::string problem;
  const auto started =
      os::start_daemon({.path = library_directory + "/verbena-sockets",
                        .args = {"verbena-sockets", "--ready-fd", std::to_string(os::kReadyFd)},
                        .deadline = deadline},
                       problem);
  if (!started) return std::unexpected("the socket service did not start: " + problem);
  return {};
}

}  // namespace verbena::cli
