// Measures RDMA CM connections between processes: connections per second, latencies and wake-ups.
// It can also hold connections, so that another program can measure their memory.  This is an
// ordinary librdmacm program; run it under `verbena run`.
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "check.h"
#include "crowd.h"

namespace {

using verbena::bench::check;
using verbena::bench::measure;
using verbena::bench::Measurement;
using verbena::bench::parse_number;
using verbena::bench::parse_place;
using verbena::bench::Place;
using verbena::bench::print_medians;
using verbena::bench::processes_named;
using verbena::bench::Server;
using verbena::bench::wait_for_line;

using Clock = std::chrono::steady_clock;

constexpr const char* kUsage =
    "usage: connections connect COUNT WINDOW [PROCESSES [NETWORK ADDRESS]]\n"
    "       connections latency block|poll COUNT\n"
    "       connections hold STEP...\n"
    "\n"
    "connect  PROCESSES clients (default 1) together make and disconnect COUNT connections, with\n"
    "         a QP at both ends.  Each client makes WINDOW of them at once.  Prints\n"
    "         connections per second, and the wake-ups of threads for each connection, including\n"
    "         those of the agents.  The server runs in this network namespace, or at ADDRESS in\n"
    "         NETWORK (/proc/PID/ns/net).\n"
    "latency  Makes COUNT connections one after the other; both ends wait or poll for events.\n"
    "         Prints medians in microseconds: from rdma_connect() to ESTABLISHED, and from\n"
    "         rdma_resolve_addr() to DISCONNECTED.  Then prints the wake-ups for each connection.\n"
    "hold     Makes connections until there are STEP, prints their number and the pids of the\n"
    "         two processes, and goes on to the next STEP when it reads a line.\n";

constexpr int kResolveMs = 5000;
constexpr int kBacklog = 1024;

// Creates QPs.  All QPs of a process share one protection domain and one CQ.
class Device {
 public:
  void create_qp(rdma_cm_id* id) {
    if (pd_ == nullptr) {
      pd_ = ibv_alloc_pd(id->verbs);
      check(pd_ != nullptr, "ibv_alloc_pd");
      cq_ = ibv_create_cq(id->verbs, kCqEntries, nullptr, nullptr, 0);
      check(cq_ != nullptr, "ibv_create_cq");
    }
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_;
    init.qp_type = IBV_QPT_RC;
    init.cap = {.max_send_wr = 16,
                .max_recv_wr = 16,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 0};
    check(rdma_create_qp(id, pd_, &init) == 0, "rdma_create_qp");
  }

 private:
  static constexpr int kCqEntries = 4096;

  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
};

rdma_event_channel* make_channel() {
  rdma_event_channel* channel = rdma_create_event_channel();
  check(channel != nullptr, "rdma_create_event_channel");
  return channel;
}

void set_non_blocking(rdma_event_channel* channel) {
  check(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0, "O_NONBLOCK");
}

rdma_cm_id* make_id(rdma_event_channel* channel) {
  rdma_cm_id* id = nullptr;
  check(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
  return id;
}

struct CmEvent {
  rdma_cm_event_type type;
  rdma_cm_id* id;
  int status;
};

// Waits for an event, or polls in a loop if the channel is non-blocking.
CmEvent next_event(rdma_event_channel* channel) {
  rdma_cm_event* event = nullptr;
  int result = 0;
  do {
    result = rdma_get_cm_event(channel, &event);
  } while (result != 0 && errno == EAGAIN);
  check(result == 0, "rdma_get_cm_event");
  const CmEvent cm_event{.type = event->event, .id = event->id, .status = event->status};
  check(rdma_ack_cm_event(event) == 0, "rdma_ack_cm_event");
  return cm_event;
}

void destroy(rdma_cm_id* id) {
  rdma_destroy_qp(id);
  check(rdma_destroy_id(id) == 0, "rdma_destroy_id");
}

[[noreturn]] void exit_with_unexpected(const CmEvent& cm_event) {
  std::fprintf(stderr, "unexpected %s, status %d\n", rdma_event_str(cm_event.type),
               cm_event.status);
  std::exit(1);
}

// Accepts all requests until the process is killed.  Calls report_port(PORT) when it listens.
template <class ReportPort>
[[noreturn]] void serve(bool polls, sockaddr_in any, ReportPort report_port) {
  rdma_event_channel* channel = make_channel();
  if (polls) set_non_blocking(channel);
  rdma_cm_id* listener = make_id(channel);
  check(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&any)) == 0, "rdma_bind_addr");
  check(rdma_listen(listener, kBacklog) == 0, "rdma_listen");
  report_port(ntohs(rdma_get_src_port(listener)));
  Device device;
  for (;;) {
    const CmEvent cm_event = next_event(channel);
    if (cm_event.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
      device.create_qp(cm_event.id);
      rdma_conn_param parameters{};
      check(rdma_accept(cm_event.id, &parameters) == 0, "rdma_accept");
    } else if (cm_event.type == RDMA_CM_EVENT_DISCONNECTED) {
      destroy(cm_event.id);
    } else if (cm_event.type != RDMA_CM_EVENT_ESTABLISHED &&
               cm_event.type != RDMA_CM_EVENT_TIMEWAIT_EXIT) {
      exit_with_unexpected(cm_event);
    }
  }
}

class Client {
 public:
  explicit Client(const sockaddr_in& peer) : peer_(peer), channel_(make_channel()) {}

  void use_polling() { set_non_blocking(channel_); }
  // Returns how long the last connection took from rdma_connect() to ESTABLISHED.
  Clock::duration connect_duration() const { return established_at_ - connect_at_; }

  // Makes `count` connections, `window` at a time.  Closes each of them if `close_each` is true.
  void run(int count, int window, bool close_each) {
    int started = 0;
    for (int ended = 0; ended < count;) {
      for (; started < count && started - ended < window; ++started) {
        check(rdma_resolve_addr(make_id(channel_), nullptr, reinterpret_cast<sockaddr*>(&peer_),
                                kResolveMs) == 0,
              "rdma_resolve_addr");
      }
      if (handle_event(next_event(channel_), close_each)) ++ended;
    }
  }

 private:
  // Handles an event.  Returns true if the connection needs no further event.
  bool handle_event(const CmEvent& cm_event, bool close_each) {
    rdma_cm_id* id = cm_event.id;
    switch (cm_event.type) {
      case RDMA_CM_EVENT_ADDR_RESOLVED:
        check(rdma_resolve_route(id, kResolveMs) == 0, "rdma_resolve_route");
        return false;
      case RDMA_CM_EVENT_ROUTE_RESOLVED: {
        device_.create_qp(id);
        rdma_conn_param parameters{};
        parameters.retry_count = 7;
        connect_at_ = Clock::now();
        check(rdma_connect(id, &parameters) == 0, "rdma_connect");
        return false;
      }
      case RDMA_CM_EVENT_ESTABLISHED:
        established_at_ = Clock::now();
        if (!close_each) return true;
        check(rdma_disconnect(id) == 0, "rdma_disconnect");
        return false;
      case RDMA_CM_EVENT_DISCONNECTED: destroy(id); return true;
      case RDMA_CM_EVENT_TIMEWAIT_EXIT: return false;
      default: exit_with_unexpected(cm_event);
    }
  }

  sockaddr_in peer_;
  rdma_event_channel* channel_;
  Device device_;
  Clock::time_point connect_at_{}, established_at_{};
};

void connect_and_close(int count, int window, int processes, const Place& place) {
  const Server server(place, [](const auto&... to) { serve(false, to...); });
  const int per_process = std::max(1, count / processes);
  const auto prepare = [&] {
    Client client(server.address());
    client.run(1, 1, true);  // so that both ends get their lease of QPNs before the measurement
    return client;
  };
  const auto other_processes = [&] {
    std::vector<pid_t> pids = processes_named("verbenad");
    pids.push_back(server.pid());
    return pids;
  };
  const Measurement result = measure(processes, other_processes, prepare, [&](Client& client) {
    client.run(per_process, window, true);
  });
  const double total = per_process * processes;
  std::printf("%.1f %.2f\n", total / result.seconds, static_cast<double>(result.sleeps) / total);
}

void latency(bool polls, int count) {
  const Server server({}, [&](const auto&... to) { serve(polls, to...); });
  const auto prepare = [&] {
    Client client(server.address());
    if (polls) client.use_polling();
    client.run(1, 1, true);
    return client;
  };
  const auto other_processes = [&] {
    std::vector<pid_t> pids = processes_named("verbenad");
    pids.push_back(server.pid());
    return pids;
  };
  // The client runs in its own process, which prints the medians.
  const Measurement result = measure(1, other_processes, prepare, [&](Client& client) {
    std::vector<Clock::duration> connect_durations, total_durations;
    for (int i = 0; i < count; ++i) {
      const Clock::time_point start = Clock::now();
      client.run(1, 1, true);
      total_durations.push_back(Clock::now() - start);
      connect_durations.push_back(client.connect_duration());
    }
    print_medians(connect_durations, total_durations);
  });
  std::printf("%.2f\n", static_cast<double>(result.sleeps) / count);
}

void hold(const std::vector<int>& steps) {
  constexpr int kWindow = 16;
  const Server server({}, [](const auto&... to) { serve(false, to...); });
  Client client(server.address());
  int count = 0;
  for (const int step : steps) {
    if (step > count) client.run(step - count, kWindow, false);
    count = std::max(count, step);
    std::printf("holding %d client %d server %d\n", count, getpid(), server.pid());
    std::fflush(stdout);
    wait_for_line();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  const bool has_place = words.size() == 6;
  const bool is_connect =
      words.size() > 2 && words.size() < 7 && words.size() != 5 && words[0] == "connect";
  const bool is_hold = words.size() > 1 && words[0] == "hold";
  const bool polls = words.size() == 3 && words[1] == "poll";
  const bool is_latency =
      words.size() == 3 && words[0] == "latency" && (polls || words[1] == "block");
  if (!is_connect && !is_hold && !is_latency) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  if (is_latency) {
    latency(polls, parse_number(argv[3], "COUNT"));
    return 0;
  }
  std::vector<int> numbers;
  const int last = has_place ? 5 : argc;
  for (int i = 2; i < last; ++i) {
    numbers.push_back(parse_number(argv[i], "COUNT, WINDOW, PROCESSES and STEP"));
  }
  if (is_connect) {
    const Place place = has_place ? parse_place(argv[5], argv[6]) : Place{};
    connect_and_close(numbers[0], numbers[1], numbers.size() > 2 ? numbers[2] : 1, place);
  } else {
    hold(numbers);
  }
}
