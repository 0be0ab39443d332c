// Measures RDMA CM connections between processes: connections per second, and memory for each.
// This is an ordinary librdmacm program; run it under `verbena run`.
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "check.h"
#include "crowd.h"

namespace {

using verbena::bench::need;
using verbena::bench::number;
using verbena::bench::Place;
using verbena::bench::place_of;
using verbena::bench::processes_named;
using verbena::bench::say_medians;
using verbena::bench::Server;
using verbena::bench::time_of;
using verbena::bench::Took;
using verbena::bench::wait_for_a_line;

using Clock = std::chrono::steady_clock;

constexpr const char* kUsage =
    "usage: connections connect COUNT TOGETHER [PROCESSES [NETWORK ADDRESS]]\n"
    "       connections latency block|poll COUNT\n"
    "       connections hold STEP...\n"
    "\n"
    "connect  PROCESSES clients (default 1) together make and disconnect COUNT connections, with\n"
    "         a QP at both ends.  Each client has TOGETHER of them under way.  Prints\n"
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

// Makes QPs.  All QPs of a process share its protection domain and its CQ.
class Device {
 public:
  void give_qp(rdma_cm_id* id) {
    if (pd_ == nullptr) {
      pd_ = ibv_alloc_pd(id->verbs);
      need(pd_ != nullptr, "ibv_alloc_pd");
      cq_ = ibv_create_cq(id->verbs, kCqEntries, nullptr, nullptr, 0);
      need(cq_ != nullptr, "ibv_create_cq");
    }
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = cq_;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {.max_send_wr = 16,
                  .max_recv_wr = 16,
                  .max_send_sge = 1,
                  .max_recv_sge = 1,
                  .max_inline_data = 0};
    need(rdma_create_qp(id, pd_, &wanted) == 0, "rdma_create_qp");
  }

 private:
  static constexpr int kCqEntries = 4096;

  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
};

rdma_event_channel* make_channel() {
  rdma_event_channel* channel = rdma_create_event_channel();
  need(channel != nullptr, "rdma_create_event_channel");
  return channel;
}

void do_not_wait(rdma_event_channel* channel) {
  need(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0, "O_NONBLOCK");
}

rdma_cm_id* make_id(rdma_event_channel* channel) {
  rdma_cm_id* id = nullptr;
  need(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
  return id;
}

struct Happened {
  rdma_cm_event_type type;
  rdma_cm_id* id;
  int status;
};

// Waits for an event; polls if the channel is non-blocking.
Happened next_event(rdma_event_channel* channel) {
  rdma_cm_event* event = nullptr;
  int result = 0;
  do {
    result = rdma_get_cm_event(channel, &event);
  } while (result != 0 && errno == EAGAIN);
  need(result == 0, "rdma_get_cm_event");
  const Happened happened{.type = event->event, .id = event->id, .status = event->status};
  need(rdma_ack_cm_event(event) == 0, "rdma_ack_cm_event");
  return happened;
}

void destroy(rdma_cm_id* id) {
  rdma_destroy_qp(id);
  need(rdma_destroy_id(id) == 0, "rdma_destroy_id");
}

[[noreturn]] void unexpected(const Happened& happened) {
  std::fprintf(stderr, "unexpected %s, status %d\n", rdma_event_str(happened.type),
               happened.status);
  std::exit(1);
}

// Accepts all requests until the process is killed.  Calls say_port(PORT) when it listens.
template <class SayPort>
[[noreturn]] void serve(bool polls, sockaddr_in any, SayPort say_port) {
  rdma_event_channel* channel = make_channel();
  if (polls) do_not_wait(channel);
  rdma_cm_id* listener = make_id(channel);
  need(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&any)) == 0, "rdma_bind_addr");
  need(rdma_listen(listener, kBacklog) == 0, "rdma_listen");
  say_port(ntohs(rdma_get_src_port(listener)));
  Device device;
  for (;;) {
    const Happened happened = next_event(channel);
    if (happened.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
      device.give_qp(happened.id);
      rdma_conn_param parameters{};
      need(rdma_accept(happened.id, &parameters) == 0, "rdma_accept");
    } else if (happened.type == RDMA_CM_EVENT_DISCONNECTED) {
      destroy(happened.id);
    } else if (happened.type != RDMA_CM_EVENT_ESTABLISHED &&
               happened.type != RDMA_CM_EVENT_TIMEWAIT_EXIT) {
      unexpected(happened);
    }
  }
}

class Client {
 public:
  explicit Client(const sockaddr_in& peer) : peer_(peer), channel_(make_channel()) {}

  void poll() { do_not_wait(channel_); }
  // Returns how long the last connection took from rdma_connect() to ESTABLISHED.
  Clock::duration connecting() const { return established_ - connect_; }

  // Makes `count` connections, `together` at a time, and closes each if `and_close`.
  void run(int count, int together, bool and_close) {
    int begun = 0;
    for (int ended = 0; ended < count;) {
      for (; begun < count && begun - ended < together; ++begun) {
        need(rdma_resolve_addr(make_id(channel_), nullptr, reinterpret_cast<sockaddr*>(&peer_),
                               kResolveMs) == 0,
             "rdma_resolve_addr");
      }
      if (step(next_event(channel_), and_close)) ++ended;
    }
  }

 private:
  // Handles an event.  Returns true if the connection needs no further event.
  bool step(const Happened& happened, bool and_close) {
    rdma_cm_id* id = happened.id;
    switch (happened.type) {
      case RDMA_CM_EVENT_ADDR_RESOLVED:
        need(rdma_resolve_route(id, kResolveMs) == 0, "rdma_resolve_route");
        return false;
      case RDMA_CM_EVENT_ROUTE_RESOLVED: {
        device_.give_qp(id);
        rdma_conn_param parameters{};
        parameters.retry_count = 7;
        connect_ = Clock::now();
        need(rdma_connect(id, &parameters) == 0, "rdma_connect");
        return false;
      }
      case RDMA_CM_EVENT_ESTABLISHED:
        established_ = Clock::now();
        if (!and_close) return true;
        need(rdma_disconnect(id) == 0, "rdma_disconnect");
        return false;
      case RDMA_CM_EVENT_DISCONNECTED: destroy(id); return true;
      case RDMA_CM_EVENT_TIMEWAIT_EXIT: return false;
      default: unexpected(happened);
    }
  }

  sockaddr_in peer_;
  rdma_event_channel* channel_;
  Device device_;
  Clock::time_point connect_{}, established_{};
};

void connect_and_close(int count, int together, int processes, const Place& place) {
  const Server server(place, [](const auto&... to) { serve(false, to...); });
  const int each = std::max(1, count / processes);
  const auto prepare = [&] {
    Client client(server.address());
    client.run(1, 1, true);  // so that both ends already have a lease of QPNs
    return client;
  };
  const auto others = [&] {
    std::vector<pid_t> all = processes_named("verbenad");
    all.push_back(server.pid());
    return all;
  };
  const Took took = time_of(processes, others, prepare,
                            [&](Client& client) { client.run(each, together, true); });
  const double all = each * processes;
  std::printf("%.1f %.2f\n", all / took.seconds, static_cast<double>(took.sleeps) / all);
}

void latency(bool polls, int count) {
  const Server server({}, [&](const auto&... to) { serve(polls, to...); });
  const auto prepare = [&] {
    Client client(server.address());
    if (polls) client.poll();
    client.run(1, 1, true);
    return client;
  };
  const auto others = [&] {
    std::vector<pid_t> all = processes_named("verbenad");
    all.push_back(server.pid());
    return all;
  };
  // The client runs in its own process, which prints the medians.
  const Took took = time_of(1, others, prepare, [&](Client& client) {
    std::vector<Clock::duration> connecting, whole;
    for (int i = 0; i < count; ++i) {
      const Clock::time_point begun = Clock::now();
      client.run(1, 1, true);
      whole.push_back(Clock::now() - begun);
      connecting.push_back(client.connecting());
    }
    say_medians(connecting, whole);
  });
  std::printf("%.2f\n", static_cast<double>(took.sleeps) / count);
}

void hold(const std::vector<int>& steps) {
  constexpr int kTogether = 16;
  const Server server({}, [](const auto&... to) { serve(false, to...); });
  Client client(server.address());
  int held = 0;
  for (const int step : steps) {
    if (step > held) client.run(step - held, kTogether, false);
    held = std::max(held, step);
    std::printf("holding %d client %d server %d\n", held, getpid(), server.pid());
    std::fflush(stdout);
    wait_for_a_line();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  const bool elsewhere = words.size() == 6;
  const bool counts =
      words.size() > 2 && words.size() < 7 && words.size() != 5 && words[0] == "connect";
  const bool steps = words.size() > 1 && words[0] == "hold";
  const bool polls = words.size() == 3 && words[1] == "poll";
  const bool one = words.size() == 3 && words[0] == "latency" && (polls || words[1] == "block");
  if (!counts && !steps && !one) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  if (one) {
    latency(polls, number(argv[3], "COUNT"));
    return 0;
  }
  std::vector<int> numbers;
  const int last = elsewhere ? 5 : argc;
  for (int i = 2; i < last; ++i) {
    numbers.push_back(number(argv[i], "COUNT, TOGETHER, PROCESSES and STEP"));
  }
  if (counts) {
    const Place place = elsewhere ? place_of(argv[5], argv[6]) : Place{};
    connect_and_close(numbers[0], numbers[1], numbers.size() > 2 ? numbers[2] : 1, place);
  } else {
    hold(numbers);
  }
}
