// RDMA CM connections between two processes on loopback: how many a second, and what each costs in
// memory.  An ordinary librdmacm program; run it under `verbena run`.
#include <rdma/rdma_cma.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <string_view>
#include <vector>

#include "check.h"

namespace {

using verbena::bench::need;
using verbena::bench::number;
using verbena::bench::wait_for_a_line;
using Clock = std::chrono::steady_clock;

constexpr const char* kUsage =
    "usage: connections connect COUNT TOGETHER\n"
    "       connections hold STEP...\n"
    "connect: COUNT connections, TOGETHER at a time, each with a QP at both ends, made and\n"
    "disconnected; prints how many a second.  hold: makes so many connections, says so with the\n"
    "processes that hold them, and goes on to the next step when it reads a line.\n";

constexpr int kResolveMs = 5000;
constexpr int kBacklog = 1024;

// What all QPs of a process share.
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

rdma_cm_id* make_id(rdma_event_channel* channel) {
  rdma_cm_id* id = nullptr;
  need(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
  return id;
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

struct Happened {
  rdma_cm_event_type type;
  rdma_cm_id* id;
  int status;
};

Happened next_event(rdma_event_channel* channel) {
  rdma_cm_event* event = nullptr;
  need(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
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

// Accepts whatever comes until it is killed; writes its port to `ready` when it listens.
[[noreturn]] void serve(int ready) {
  rdma_event_channel* channel = make_channel();
  rdma_cm_id* listener = make_id(channel);
  sockaddr_in any = loopback(0);
  need(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&any)) == 0, "rdma_bind_addr");
  need(rdma_listen(listener, kBacklog) == 0, "rdma_listen");
  const std::uint16_t port = ntohs(rdma_get_src_port(listener));
  need(write(ready, &port, sizeof(port)) == sizeof(port), "write");
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

// The other process.
class Server {
 public:
  Server() {
    int ends[2];
    need(pipe(ends) == 0, "pipe");
    pid_ = fork();
    need(pid_ >= 0, "fork");
    if (pid_ == 0) {
      close(ends[0]);
      serve(ends[1]);
    }
    close(ends[1]);
    need(read(ends[0], &port_, sizeof(port_)) == sizeof(port_), "the server does not listen");
    close(ends[0]);
  }
  ~Server() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  pid_t pid() const { return pid_; }
  std::uint16_t port() const { return port_; }

 private:
  pid_t pid_ = 0;
  std::uint16_t port_ = 0;
};

class Client {
 public:
  explicit Client(std::uint16_t port) : peer_(loopback(port)), channel_(make_channel()) {}

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
  // True if that was the end of one connection's way.
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
        need(rdma_connect(id, &parameters) == 0, "rdma_connect");
        return false;
      }
      case RDMA_CM_EVENT_ESTABLISHED:
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
};

void connect_and_close(int count, int together) {
  const Server server;
  Client client(server.port());
  client.run(1, 1, true);  // both ends have their leases
  const auto begun = Clock::now();
  client.run(count, together, true);
  const std::chrono::duration<double> took = Clock::now() - begun;
  std::printf("%.1f\n", count / took.count());
}

void hold(const std::vector<int>& steps) {
  constexpr int kTogether = 16;
  const Server server;
  Client client(server.port());
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
  const bool counts = words.size() == 3 && words[0] == "connect";
  const bool steps = words.size() > 1 && words[0] == "hold";
  if (!counts && !steps) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  std::vector<int> numbers;
  for (int i = 2; i < argc; ++i) numbers.push_back(number(argv[i], "COUNT, TOGETHER and STEP"));
  if (counts) {
    connect_and_close(numbers[0], numbers[1]);
  } else {
    hold(numbers);
  }
}
