#include "cli/sockets_trace.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "base/printable.h"
#include "cli/socket_services.h"
#include "cli/text.h"
#include "os/clock.h"
#include "os/unix_channel.h"
#include "stream/memory.h"

namespace verbena::cli {
namespace {

using Json = nlohmann::ordered_json;
using broker::Event;
using broker::EventKind;

constexpr Duration kFindTimeout = std::chrono::seconds(10);
// The command looks for missing services at this interval.
constexpr int kFindEveryMs = 100;

std::string program_text(const std::array<char, broker::kNameBytes>& name) {
  return printable_name(std::string(broker::text_of(name)));
}

std::string_view reason_text(std::uint32_t reason) {
  switch (stream::reason_of(reason)) {
    case stream::Reason::kNone: return "no reason is known";
    case stream::Reason::kExec: return "another program inherits the descriptor";
    case stream::Reason::kPassed: return "the descriptor was passed to another process";
    case stream::Reason::kKernelCall: return "the program uses splice, io_uring or the like";
    case stream::Reason::kUrgent: return "urgent data";
    case stream::Reason::kOther:
      return "the program uses the socket in a way that needs the kernel";
    case stream::Reason::kEnd: return "nothing follows";
  }
  return "no reason is known";
}

std::string_view reason_word(std::uint32_t reason) {
  switch (stream::reason_of(reason)) {
    case stream::Reason::kNone: return "none";
    case stream::Reason::kExec: return "exec";
    case stream::Reason::kPassed: return "passed";
    case stream::Reason::kKernelCall: return "kernel_call";
    case stream::Reason::kUrgent: return "urgent";
    case stream::Reason::kOther: return "other";
    case stream::Reason::kEnd: return "end";
  }
  return "none";
}

std::string_view word_of(EventKind kind) {
  switch (kind) {
    case EventKind::kOffered: return "offered";
    case EventKind::kPeerNotReported: return "alone";
    case EventKind::kRefused: return "refused";
    case EventKind::kLimit: return "limit";
    case EventKind::kPaired: return "introduced";
    case EventKind::kChangedOver: return "changed_over";
    case EventKind::kRing: return "ring";
    case EventKind::kSendsByTcp: return "sends_by_tcp";
    case EventKind::kReadsFromTcp: return "reads_from_tcp";
    case EventKind::kWithdrawn: return "stays_on_tcp";
    case EventKind::kClosed: return "closed";
    case EventKind::kProgramEnded: return "program_ended";
  }
  return "unknown";
}

std::string totals_text(const Event& event) {
  if (event.has_ring == 0) return "it never had a ring";
  return fmt::format(
      "it has sent {} bytes by the ring and {} by TCP (woke the peer {} times, found the ring full "
      "{} times)",
      event.out.by_ring, event.out.by_tcp, event.out.wakes, event.out.overflows);
}

std::string sentence_of(const Event& event) {
  const bool is_end = stream::reason_of(event.reason) == stream::Reason::kEnd;
  switch (event.kind) {
    case EventKind::kOffered: return "is offered to the socket service";
    case EventKind::kPeerNotReported:
      return "waits for its peer, which may run without 'verbena run --sockets' or on another host";
    case EventKind::kRefused: return "is refused: no socket of this host fits the report";
    case EventKind::kLimit: return "stays on TCP: a limit of the socket service is reached";
    case EventKind::kPaired:
      return event.peer_pid == 0 ? "is introduced to its peer"
                                 : fmt::format("is introduced to {} (pid {})",
                                               program_text(event.peer_program), event.peer_pid);
    case EventKind::kChangedOver: return "has changed over: it may send by the ring";
    case EventKind::kRing: return fmt::format("sends by the ring, from byte {} on", event.offset);
    case EventKind::kSendsByTcp:
      if (is_end) return "sends nothing more (shutdown)";
      return fmt::format("sends by TCP only, from byte {} on: {}", event.offset,
                         reason_text(event.reason));
    case EventKind::kReadsFromTcp:
      if (is_end) return "reads from TCP only: its peer sends nothing more";
      return fmt::format("reads from TCP only: {}", reason_text(event.reason));
    case EventKind::kWithdrawn: return fmt::format("stays on TCP: {}", reason_text(event.reason));
    case EventKind::kClosed: return "is closed; " + totals_text(event);
    case EventKind::kProgramEnded:
      return "was closed because its program ended or called exec; " + totals_text(event);
  }
  return "?";
}

std::string time_text(std::uint64_t wall_ns, bool is_local) {
  const auto seconds = static_cast<std::time_t>(wall_ns / 1'000'000'000);
  const std::uint64_t micros = wall_ns / 1'000 % 1'000'000;
  std::tm parts{};
  if (is_local) {
    ::localtime_r(&seconds, &parts);
  } else {
    ::gmtime_r(&seconds, &parts);
  }
  std::string clock =
      fmt::format("{:02}:{:02}:{:02}.{:06}", parts.tm_hour, parts.tm_min, parts.tm_sec, micros);
  if (is_local) return clock;
  return fmt::format("{:04}-{:02}-{:02}T{}Z", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     clock);
}

// Prints the events of one service, which may end and start again.
class EventSource {
 public:
  explicit EventSource(std::string name) : name_(std::move(name)) {}

  bool is_connected() const { return channel_.has_value(); }
  int fd() const { return channel_ ? channel_->fd() : -1; }

  // Connects to the service if it runs.
  Answer<void> try_connect() {
    const Time deadline = os::now() + kFindTimeout;
    auto found = find_socket_service(name_, deadline);
    if (!found) return std::unexpected(found.error());
    if (*found && (*found)->send(broker::bytes_of(broker::Trace{}), {}, deadline)) {
      channel_ = std::move(**found);
    }
    return {};
  }

  // Prints the events that have arrived, except those of processes that the options exclude.
  void print_events(const TraceOptions& options) {
    std::array<std::byte, broker::kMessageBytesMax> buffer;
    std::vector<os::Fd> fds;
    while (channel_) {
      const auto bytes = channel_->receive(buffer, fds);
      if (!bytes && os::would_block(bytes.error())) return;
      if (!bytes || *bytes == 0) return channel_.reset();
      const auto event = broker::decode<Event>(std::span(buffer).first(*bytes));
      if (!event) return channel_.reset();
      if (!is_event_of(*event, options.pids)) continue;
      const std::string line = options.json ? event_as_json(*event) : event_as_text(*event);
      std::fputs(line.c_str(), stdout);
    }
  }

 private:
  std::string name_;
  std::optional<os::UnixChannel> channel_{};
};

// Sleeps until an event arrives, until it is time to look for missing services, or until the reader
// of the output has closed its end.  Returns false if nobody reads the output any more.
bool wait_for_events(const std::vector<EventSource>& sources) {
  std::vector<pollfd> fds{{.fd = STDOUT_FILENO, .events = 0, .revents = 0}};
  bool all_connected = true;
  for (const EventSource& source : sources) {
    all_connected &= source.is_connected();
    fds.push_back({.fd = source.fd(), .events = POLLIN, .revents = 0});
  }
  ::poll(fds.data(), fds.size(), all_connected ? -1 : kFindEveryMs);
  return (fds[0].revents & (POLLERR | POLLNVAL)) == 0;
}

// Tells the user from when on the trace shows all events.
void print_state(bool is_connected) {
  std::fputs(is_connected ? "connected to a socket service\n"
                          : "waits for a socket service (one starts with the first program under "
                            "'verbena run --sockets')\n",
             stderr);
}

}  // namespace

bool is_event_of(const Event& event, const std::vector<std::uint32_t>& pids) {
  return pids.empty() || std::ranges::any_of(pids, [&](std::uint32_t pid) {
           return pid == event.pid || pid == event.peer_pid;
         });
}

std::string event_as_text(const Event& event) {
  return fmt::format("{} {} {} {} > {} {}{}\n", time_text(event.wall_ns, true),
                     event.pid == 0 ? "-" : program_text(event.program),
                     event.pid == 0 ? "-" : std::to_string(event.pid),
                     socket_name_text(event.connection.local),
                     socket_name_text(event.connection.peer),
                     event.is_earlier != 0 ? "(before this trace) " : "", sentence_of(event));
}

std::string event_as_json(const Event& event) {
  Json json{{"time", time_text(event.wall_ns, false)},
            {"event", word_of(event.kind)},
            {"earlier", event.is_earlier != 0},
            {"program", program_text(event.program)},
            {"pid", event.pid},
            {"peer_program", program_text(event.peer_program)},
            {"peer_pid", event.peer_pid},
            {"local", socket_name_text(event.connection.local)},
            {"peer", socket_name_text(event.connection.peer)}};
  if (event.kind == EventKind::kRing || event.kind == EventKind::kSendsByTcp)
    json["byte"] = event.offset;
  if (event.reason != 0) json["reason"] = reason_word(event.reason);
  if (event.has_ring != 0) {
    json["sent"] = {{"by_ring", event.out.by_ring},
                    {"by_tcp", event.out.by_tcp},
                    {"wakes", event.out.wakes},
                    {"overflows", event.out.overflows}};
  }
  return json.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
}

int trace_sockets(const TraceOptions& options) {
  std::vector<EventSource> sources;
  for (std::string& name : socket_service_names()) sources.emplace_back(std::move(name));
  std::optional<bool> printed_state;
  do {
    for (EventSource& source : sources) {
      if (!source.is_connected()) {
        if (const auto tried = source.try_connect(); !tried) {
          return print_error("sockets trace", tried.error());
        }
      }
      source.print_events(options);
    }
    std::fflush(stdout);
    const bool any_connected = std::ranges::any_of(sources, &EventSource::is_connected);
    if (std::exchange(printed_state, any_connected) != any_connected) print_state(any_connected);
  } while (std::ferror(stdout) == 0 && wait_for_events(sources));
  return 0;
}

}  // namespace verbena::cli
