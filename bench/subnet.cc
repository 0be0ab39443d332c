// Measures calls of the RDMA CM that may query the SA, one call after the other.  Prints
//   with "routes": the median microseconds of rdma_resolve_addr() and of rdma_resolve_route()
//   with "groups": the number of groups per second that were joined and left
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "crowd.h"

namespace verbena::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kUsage =
    "usage: subnet routes COUNT ADDRESS | subnet groups COUNT OWN_ADDRESS\n";
constexpr int kResolveMs = 60'000;

sockaddr_in address_of(const char* text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(7400);
  errno = EINVAL;
  check(inet_pton(AF_INET, text, &address.sin_addr) == 1, text);
  return address;
}

rdma_event_channel* make_channel() {
  rdma_event_channel* channel = rdma_create_event_channel();
  check(channel != nullptr, "rdma_create_event_channel");
  return channel;
}

rdma_cm_id* make_id(rdma_event_channel* channel, rdma_port_space space) {
  rdma_cm_id* id = nullptr;
  check(rdma_create_id(channel, &id, nullptr, space) == 0, "rdma_create_id");
  return id;
}

void wait_for_event(rdma_event_channel* channel, rdma_cm_event_type wanted) {
  rdma_cm_event* event = nullptr;
  check(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
  if (event->event != wanted) {
    std::fprintf(stderr, "unexpected %s, status %d\n", rdma_event_str(event->event), event->status);
    std::exit(1);
  }
  check(rdma_ack_cm_event(event) == 0, "rdma_ack_cm_event");
}

void measure_routes(int count, sockaddr_in to) {
  rdma_event_channel* channel = make_channel();
  Durations addresses, routes;
  // The first round (-1) is not measured, because it also resolves the neighbour's address.
  for (int i = -1; i < count; ++i) {
    rdma_cm_id* id = make_id(channel, RDMA_PS_TCP);
    const auto start = Clock::now();
    check(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), kResolveMs) == 0,
          "rdma_resolve_addr");
    wait_for_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    const auto resolved = Clock::now();
    check(rdma_resolve_route(id, kResolveMs) == 0, "rdma_resolve_route");
    wait_for_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    const auto ended = Clock::now();
    if (i >= 0) {
      addresses.push_back(resolved - start);
      routes.push_back(ended - resolved);
    }
    check(rdma_destroy_id(id) == 0, "rdma_destroy_id");
  }
  print_medians(addresses, routes);
  std::puts("");
}

// Joins and leaves a new group in each round.  The SA must create and remove each of these groups.
void measure_groups(int count, sockaddr_in own_address) {
  constexpr std::uint32_t kGroups = 0xefc00000;  // 239.192.0.0, for use within an organisation
  rdma_event_channel* channel = make_channel();
  rdma_cm_id* id = make_id(channel, RDMA_PS_UDP);
  check(rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&own_address)) == 0, "rdma_bind_addr");
  Clock::time_point start{};
  for (int i = -1; i < count; ++i) {
    if (i == 0) start = Clock::now();
    sockaddr_in group{};
    group.sin_family = AF_INET;
    group.sin_addr.s_addr = htonl(kGroups + static_cast<std::uint32_t>(i + 1));
    auto* address = reinterpret_cast<sockaddr*>(&group);
    check(rdma_join_multicast(id, address, nullptr) == 0, "rdma_join_multicast");
    wait_for_event(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
    check(rdma_leave_multicast(id, address) == 0, "rdma_leave_multicast");
  }
  const std::chrono::duration<double> duration = Clock::now() - start;
  std::printf("%.1f\n", count / duration.count());
}

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  using namespace verbena::bench;
  const std::string_view what = argc == 4 ? argv[1] : "";
  if (what != "routes" && what != "groups") {
    std::fputs(kUsage, stderr);
    return 2;
  }
  const int count = parse_number(argv[2], "COUNT");
  if (what == "routes") {
    measure_routes(count, address_of(argv[3]));
  } else {
    measure_groups(count, address_of(argv[3]));
  }
}
