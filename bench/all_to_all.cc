// Runs one host of a job: it connects to all other hosts by the RDMA CM, and accepts their
// connections.
//
// It prints "holding listening" and waits for a line, so that all hosts begin together.  When all
// its connections are established, it prints
//   holding ROUTES CONNECTIONS
// Both are seconds of CLOCK_MONOTONIC: the time when it resolved its last route, and the time when
// its last connection was established.  Then it waits for a line, or for the end of its input.
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "check.h"

namespace verbena::bench {
namespace {

constexpr const char* kUsage =
    "usage: all_to_all TIMES WINDOW RANK ADDRESS...\n"
    "  TIMES    connections to each other host\n"
    "  WINDOW   connections that are made at once\n"
    "  RANK     the index of this host's own ADDRESS, from 0\n";
constexpr std::uint16_t kPort = 7300;
constexpr int kResolveMs = 60'000;
constexpr int kBacklog = 4096;

double now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

sockaddr_in address_of(const char* text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kPort);
  errno = EINVAL;
  check(inet_pton(AF_INET, text, &address.sin_addr) == 1, text);
  return address;
}

class Host {
 public:
  // Makes `times` connections in each direction with each of the other hosts.
  Host(int times, int window, std::size_t rank, std::vector<sockaddr_in> addresses)
      : window_(window), rank_(rank), addresses_(std::move(addresses)) {
    connections_each_way_ = static_cast<std::size_t>(times) * (addresses_.size() - 1);
    channel_ = rdma_create_event_channel();
    check(channel_ != nullptr, "rdma_create_event_channel");
    rdma_cm_id* listener = nullptr;
    check(rdma_create_id(channel_, &listener, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
    sockaddr_in own_address = addresses_[rank_];
    check(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&own_address)) == 0,
          "rdma_bind_addr");
    check(rdma_listen(listener, kBacklog) == 0, "rdma_listen");
  }

  void run() {
    double last_route = now();
    start_connections();
    while (active_established_ + passive_established_ < 2 * connections_each_way_) {
      if (handle_event()) last_route = now();
    }
    std::printf("holding %.6f %.6f\n", last_route, now());
    std::fflush(stdout);
  }

 private:
  // Starts connections as the window allows.  Each host first connects to the host after itself, so
  // that not all hosts connect to the same host at once.
  void start_connections() {
    for (; started_ < connections_each_way_ &&
           started_ - active_established_ < static_cast<std::size_t>(window_);
         ++started_) {
      const std::size_t distance = 1 + started_ % (addresses_.size() - 1);
      sockaddr_in to = addresses_[(rank_ + distance) % addresses_.size()];
      rdma_cm_id* id = nullptr;
      check(rdma_create_id(channel_, &id, this, RDMA_PS_TCP) == 0, "rdma_create_id");
      check(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), kResolveMs) == 0,
            "rdma_resolve_addr");
    }
  }

  // Waits for an event and handles it.  Returns true if a route was resolved.
  bool handle_event() {
    rdma_cm_event* event = nullptr;
    check(rdma_get_cm_event(channel_, &event) == 0, "rdma_get_cm_event");
    rdma_cm_id* id = event->id;
    const rdma_cm_event_type type = event->event;
    const int status = event->status;
    check(rdma_ack_cm_event(event) == 0, "rdma_ack_cm_event");
    rdma_conn_param parameters{};
    parameters.retry_count = 7;
    switch (type) {
      case RDMA_CM_EVENT_ADDR_RESOLVED:
        check(rdma_resolve_route(id, kResolveMs) == 0, "rdma_resolve_route");
        return false;
      case RDMA_CM_EVENT_ROUTE_RESOLVED:
        create_qp(id);
        check(rdma_connect(id, &parameters) == 0, "rdma_connect");
        return true;
      case RDMA_CM_EVENT_CONNECT_REQUEST:
        create_qp(id);
        check(rdma_accept(id, &parameters) == 0, "rdma_accept");
        return false;
      case RDMA_CM_EVENT_ESTABLISHED:
        // The id of a connection request has the context of its listener, which is null.
        ++(id->context == this ? active_established_ : passive_established_);
        start_connections();
        return false;
      default:
        std::fprintf(stderr, "host %zu: unexpected %s, status %d\n", rank_, rdma_event_str(type),
                     status);
        std::exit(1);
    }
  }

  void create_qp(rdma_cm_id* id) {
    if (pd_ == nullptr) {
      pd_ = ibv_alloc_pd(id->verbs);
      check(pd_ != nullptr, "ibv_alloc_pd");
      cq_ = ibv_create_cq(id->verbs, 16, nullptr, nullptr, 0);
      check(cq_ != nullptr, "ibv_create_cq");
    }
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_;
    init.qp_type = IBV_QPT_RC;
    init.cap = {.max_send_wr = 1,
                .max_recv_wr = 1,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 0};
    check(rdma_create_qp(id, pd_, &init) == 0, "rdma_create_qp");
  }

  int window_;
  std::size_t rank_;
  std::vector<sockaddr_in> addresses_;
  std::size_t connections_each_way_ = 0;
  rdma_event_channel* channel_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  std::size_t started_ = 0, active_established_ = 0, passive_established_ = 0;
};

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  using namespace verbena::bench;
  if (argc < 6) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  const int times = parse_number(argv[1], "TIMES");
  const int window = parse_number(argv[2], "WINDOW");
  const std::size_t hosts = static_cast<std::size_t>(argc) - 4;
  char* end = nullptr;
  const auto rank = static_cast<std::size_t>(std::strtoul(argv[3], &end, 10));
  if (*end != '\0' || rank >= hosts) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  std::vector<sockaddr_in> addresses;
  for (int i = 4; i < argc; ++i) addresses.push_back(address_of(argv[i]));
  Host host(times, window, rank, std::move(addresses));
  std::puts("holding listening");
  std::fflush(stdout);
  wait_for_line();
  host.run();
  wait_for_line();
}
