#include "gtest/gtest.h"
#include "os/test_process.h"
#include "verbena/c_api_requests.h"

namespace verbena::client {
namespace {

// The child shares the descriptor of an inherited queue with the parent, and must not change it.
TEST(Requests, AForkedChildHasOnlyQueuesOfItsOwn) {
  vb_handle inherited{};
  int fd = -1;
  ASSERT_EQ(vb_requests_create(&inherited, &fd), 0);
  EXPECT_EQ(os::run_in_child([&] {
              vb_handle own{};
              EXPECT_EQ(vb_requests_create(&own, &fd), 0);
              EXPECT_NE(vb_requests_destroy(inherited), 0);
              EXPECT_EQ(vb_requests_destroy(own), 0);
            }),
            0);
  EXPECT_EQ(vb_requests_destroy(inherited), 0);
}

}  // namespace
}  // namespace verbena::client
