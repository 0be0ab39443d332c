#include "client/sizes.h"

#include <gtest/gtest.h>

namespace verbena::client {
namespace {

constexpr Error kRefused{Errc::kInvalidArgument, 0, "as it was"};

TEST(Sizes, TextContainsTheCallTheValueAndTheLimit) {
  EXPECT_STREQ(explain_size_error(kRefused, "ibv_create_qp()",
                                  {{"max_send_wr", 22, "max_qp_wr", 32768},
                                   {"max_recv_wr", 40000, "max_qp_wr", 32768}})
                   .context,
               "ibv_create_qp(): max_recv_wr is 40000, more than max_qp_wr (32768)");
  EXPECT_STREQ(
      explain_size_error(kRefused, "ibv_create_cq()", {{"cqe", 0, "max_cqe", 100, 1}}).context,
      "ibv_create_cq(): cqe is 0, less than 1");
}

TEST(Sizes, ErrorsWithoutASizeOutOfBoundsRemainUnchanged) {
  EXPECT_STREQ(explain_size_error(kRefused, "call", {{"a", 1, "b", 1}}).context, "as it was");
  const Error other{Errc::kNoResources, 0, "no room"};
  EXPECT_STREQ(explain_size_error(other, "call", {{"a", 2, "b", 1}}).context, "no room");
  EXPECT_EQ(explain_size_error(kRefused, "call", {{"a", 2, "b", 1}}), kRefused);
}

}  // namespace
}  // namespace verbena::client
