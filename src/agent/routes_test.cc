#include "agent/routes.h"

#include <asio/io_context.hpp>

#include "gtest/gtest.h"
#include "os/test_link.h"
#include "os/test_process.h"

namespace verbena::agent {
namespace {

const node::Node::RouteRequest kQuery{.token = 1, .destination = os::kOther};

bool is_route(const Routes::Answer& answer) {
  return answer && answer->has_value() && (*answer)->source == os::kSelf;
}

TEST(Routes, CachesARouteUntilANeighbourChanges) {
  os::in_network_namespace([] {
    const os::Fd link = os::make_link();
    if (!link) return;
    asio::io_context loop{1};
    int late_answers = 0;
    Routes routes(loop, [&](std::uint64_t token, const auto& route) {
      EXPECT_EQ(token, 1u);
      EXPECT_TRUE(route.has_value());
      ++late_answers;
    });
    EXPECT_FALSE(routes.ask(kQuery)) << "the neighbour is being resolved";
    os::answer();
    while (late_answers == 0) loop.run_one();
    EXPECT_TRUE(is_route(routes.ask(kQuery)));
    loop.poll();
    EXPECT_TRUE(is_route(routes.ask(kQuery)));
    os::forget();
    EXPECT_TRUE(is_route(routes.ask(kQuery))) << "cached: the change was not read yet";
    loop.restart();
    loop.run_one();
    EXPECT_FALSE(routes.ask(kQuery)) << "the neighbour is being resolved again";
  });
}

TEST(Routes, ForgetsRoutesWhenAddressesChange) {
  os::in_network_namespace([] {
    const os::Fd link = os::make_link();
    if (!link) return;
    asio::io_context loop{1};
    Routes routes(loop, [](std::uint64_t, const auto&) {});
    os::answer();
    EXPECT_TRUE(is_route(routes.ask(kQuery)));
    const node::Node::RouteRequest own_query{.token = 2, .destination = os::kSelf};
    EXPECT_TRUE(is_route(routes.ask(own_query)));
    EXPECT_TRUE((*routes.ask(own_query))->loopback);
    os::set_address(0x0a000002);
    const auto other = routes.ask(kQuery);
    EXPECT_FALSE(is_route(other));
    const auto after_change = routes.ask(own_query);
    EXPECT_FALSE(after_change && after_change->has_value() && (*after_change)->loopback)
        << "no longer our address";
  });
}

}  // namespace
}  // namespace verbena::agent
