#include <endian.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/ib.h>
#include <netinet/in.h>
#include <poll.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "client/channels.h"
#include "client/sockaddr.h"
#include "verbena/border.h"
#include "wire/ip.h"

namespace verbena::client {
namespace {

short ready(int fd) {
  pollfd one{.fd = fd, .events = POLLIN | POLLOUT, .revents = 0};
  (void)::poll(&one, 1, 0);
  return static_cast<short>(one.revents & ~POLLOUT);
}

CompletionChannelHandle channel_with_cq(Channels& channels, hca::CqHandle cq, std::uint64_t cookie,
                                        std::uint64_t& engine_cookie) {
  const auto channel = *channels.create_completion();
  engine_cookie = *channels.add_cq(channel, cookie);
  channels.bind_cq(engine_cookie, cq);
  return channel;
}

TEST(Channels, TheDescriptorIsReadableExactlyWhileEventsWait) {
  Channels channels;
  std::uint64_t engine_cookie = 0;
  const auto handle = channel_with_cq(channels, {7}, 42, engine_cookie);
  CompletionChannel& channel = *channels.completion(handle);
  EXPECT_EQ(ready(channel.fd()), 0);
  channels.dispatch(process::CqNotice{engine_cookie});
  channels.dispatch(process::CqNotice{engine_cookie});
  EXPECT_EQ(ready(channel.fd()), POLLIN);
  std::uint64_t cookie = 0;
  EXPECT_EQ(channel.next(cookie), 0);
  EXPECT_EQ(cookie, 42u);
  EXPECT_EQ(ready(channel.fd()), POLLIN);
  EXPECT_EQ(channel.next(cookie), 0);
  EXPECT_EQ(ready(channel.fd()), 0);
  ASSERT_EQ(fcntl(channel.fd(), F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(channel.next(cookie), EAGAIN);
}

TEST(Channels, ADestroyedCqLeavesNoEventBehind) {
  Channels channels;
  std::uint64_t engine_cookie = 0;
  const auto handle = channel_with_cq(channels, {7}, 42, engine_cookie);
  channels.dispatch(process::CqNotice{engine_cookie});
  EXPECT_EQ(channels.destroy_completion(handle).error().code, Errc::kBusy);
  channels.remove_cq({7});
  EXPECT_EQ(ready(channels.completion(handle)->fd()), 0);
  channels.dispatch(process::CqNotice{engine_cookie});  // was under way
  EXPECT_EQ(ready(channels.completion(handle)->fd()), 0);
  EXPECT_TRUE(channels.destroy_completion(handle));
  EXPECT_EQ(channels.destroy_completion(handle).error().code, Errc::kBadHandle);
}

TEST(Channels, AWaitingReaderGetsTheEventOfAnotherThread) {
  Channels channels;
  std::uint64_t engine_cookie = 0;
  const auto handle = channel_with_cq(channels, {7}, 42, engine_cookie);
  std::thread poster([&] { channels.dispatch(process::CqNotice{engine_cookie}); });
  std::uint64_t cookie = 0;
  EXPECT_EQ(channels.completion(handle)->next(cookie), 0);
  EXPECT_EQ(cookie, 42u);
  poster.join();
}

// Readers that wait and ones that do not, and entries that are withdrawn meanwhile.
TEST(Channels, NoEventIsLostOrLeftUnderManyHands) {
  constexpr std::uint64_t kEach = 20000, kWithdrawn = 7, kLast = 0;
  CompletionChannel channel(*os::EventFd::create());
  std::atomic<std::uint64_t> came = 0;
  const auto read = [&] {
    for (std::uint64_t cookie = 0; channel.next(cookie) == 0 && cookie != kLast;) ++came;
  };
  const auto push = [&] {
    for (std::uint64_t i = 1; i <= kEach; ++i) {
      channel.push(i);
      if (i % kWithdrawn != 0) continue;
      came += channel.withdraw([&](std::uint64_t one) { return one == i; }).size();
    }
  };
  std::vector<std::thread> readers, writers;
  for (int i = 0; i < 3; ++i) readers.emplace_back(read);
  for (int i = 0; i < 2; ++i) writers.emplace_back(push);
  for (std::thread& writer : writers) writer.join();
  for (std::size_t i = 0; i < readers.size(); ++i) channel.push(kLast);
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(came, 2 * kEach);
  EXPECT_EQ(ready(channel.fd()), 0) << "readable, and nothing to give";
  channel.push(1);
  EXPECT_EQ(ready(channel.fd()), POLLIN);
}

TEST(Channels, WhoIsOnItsWayToADestroyedOneFindsNothing) {
  Channels channels;
  const auto handle = *channels.create_cm();
  const auto taken = channels.cm(handle);
  ASSERT_EQ(::fcntl(taken->fd(), F_SETFL, O_NONBLOCK), 0);
  ASSERT_TRUE(channels.destroy_cm(handle));
  EXPECT_EQ(channels.cm(handle), nullptr);
  process::CmNotice notice;
  EXPECT_EQ(taken->next(notice), EAGAIN);
  const auto completions = *channels.create_completion();
  const auto also_taken = channels.completion(completions);
  ASSERT_EQ(::fcntl(also_taken->fd(), F_SETFL, O_NONBLOCK), 0);
  ASSERT_TRUE(channels.destroy_completion(completions));
  std::uint64_t cookie = 0;
  EXPECT_EQ(also_taken->next(cookie), EAGAIN);
}

TEST(Channels, AnIdTakesItsEventsAlongWhenItMigrates) {
  Channels channels;
  const auto from = *channels.create_cm();
  const auto to = *channels.create_cm();
  const process::ConnectionHandle id{3};
  ASSERT_TRUE(channels.add_id(id, from));
  channels.dispatch(process::CmNotice{.id = id, .cookie = 5});
  ASSERT_TRUE(channels.migrate_id(id, to));
  EXPECT_EQ(ready(channels.cm(from)->fd()), 0);
  process::CmNotice notice;
  EXPECT_EQ(channels.cm(to)->next(notice), 0);
  EXPECT_EQ(notice.cookie, 5u);
  EXPECT_TRUE(channels.destroy_cm(from));
  EXPECT_EQ(channels.destroy_cm(to).error().code, Errc::kBusy);
}

TEST(Channels, ALostRequestIsToldWhereItIsWanted) {
  Channels channels;
  const auto tells = *channels.create_cm();
  const auto hides = *channels.create_cm();
  ASSERT_TRUE(channels.hide_lost_requests(hides));
  ASSERT_TRUE(channels.add_id({1}, tells));
  ASSERT_TRUE(channels.add_id({2}, hides));
  for (const process::ConnectionHandle listener : {process::ConnectionHandle{1}, {2}}) {
    const process::ConnectionHandle brought{listener.value + 10};
    channels.dispatch(process::CmNotice{.id = listener, .new_id = brought});
    channels.dispatch(process::CmNotice{.id = brought, .unanswered = true});
  }
  EXPECT_EQ(channels.cm(tells)->withdraw([](const auto&) { return true; }).size(), 2u);
  EXPECT_EQ(channels.cm(hides)->withdraw([](const auto&) { return true; }).size(), 1u);
  EXPECT_EQ(ready(channels.cm(hides)->fd()), 0);
  channels.dispatch(process::CmNotice{.id = {12}});  // it was answered before it ended
  EXPECT_NE(ready(channels.cm(hides)->fd()), 0);
  EXPECT_EQ(channels.hide_lost_requests({99}).error().code, Errc::kBadHandle);
}

TEST(Channels, AListenerThatMigratesTakesItsRequestsAlongWithTheirEvents) {
  Channels channels;
  const auto from = *channels.create_cm();
  const auto to = *channels.create_cm();
  ASSERT_TRUE(channels.add_id({1}, from));
  ASSERT_TRUE(channels.add_id({7}, from));
  channels.dispatch(process::CmNotice{.id = {1}, .new_id = {2}});
  channels.dispatch(process::CmNotice{.id = {7}});
  channels.dispatch(process::CmNotice{.id = {2}});  // the peer has given up meanwhile
  ASSERT_TRUE(channels.migrate_id({1}, to));
  process::CmNotice notice;
  ASSERT_EQ(channels.cm(from)->next(notice), 0);
  EXPECT_EQ(notice.id, process::ConnectionHandle{7});
  EXPECT_EQ(ready(channels.cm(from)->fd()), 0);
  ASSERT_EQ(channels.cm(to)->next(notice), 0);
  EXPECT_EQ(notice.new_id, process::ConnectionHandle{2});
  ASSERT_EQ(channels.cm(to)->next(notice), 0);
  EXPECT_EQ(notice.id, process::ConnectionHandle{2});
}

TEST(Channels, AListenersUnseenRequestsComeBackWhenItGoes) {
  Channels channels;
  const auto channel = *channels.create_cm();
  ASSERT_TRUE(channels.add_id({1}, channel));
  channels.dispatch(process::CmNotice{.id = {1}, .new_id = {2}});
  const auto unseen = channels.remove_id({1});
  ASSERT_EQ(unseen.size(), 1u);
  EXPECT_EQ(unseen[0].new_id, process::ConnectionHandle{2});
  EXPECT_TRUE(channels.destroy_cm(channel)) << "neither id is there any more";
}

TEST(Channels, EventsOfAnUnseenRequestGoWithIt) {
  Channels channels;
  const auto channel = *channels.create_cm();
  ASSERT_TRUE(channels.add_id({1}, channel));
  channels.dispatch(process::CmNotice{.id = {1}, .new_id = {2}});
  channels.dispatch(process::CmNotice{.id = {2}});  // the peer has given up meanwhile
  EXPECT_EQ(channels.remove_id({1}).size(), 1u);
  EXPECT_EQ(ready(channels.cm(channel)->fd()), 0) << "readable, and nothing to give";
}

TEST(Channels, AnAsynchronousEventDoesNotOutliveItsQp) {
  Channels channels;
  const int fd = *channels.async_fd();
  channels.dispatch(process::AsyncNotice{.type = 4, .cookie = 9});   // COMM_EST of QP 9
  channels.dispatch(process::AsyncNotice{.type = 4, .cookie = 10});  // and of QP 10
  channels.dispatch(
      process::AsyncNotice{.type = 8, .cookie = 9});  // of the device: no cookie of a QP
  channels.forget_qp(9);
  process::AsyncNotice notice;
  EXPECT_EQ(channels.async()->next(notice), 0);
  EXPECT_EQ(notice.cookie, 10u);
  EXPECT_EQ(channels.async()->next(notice), 0);
  EXPECT_EQ(notice.type, 8u);
  EXPECT_EQ(ready(fd), 0);
}

TEST(Channels, PortEventsThatNobodyReadsDoNotPileUp) {
  Channels channels;
  const int fd = *channels.async_fd();
  for (int flaps = 0; flaps < 100; ++flaps) {
    for (const std::uint32_t type : {9, 18, 10}) {
      channels.dispatch(process::AsyncNotice{.type = type});
    }
  }
  process::AsyncNotice notice;
  for (const std::uint32_t type : {9, 18, 10}) {
    EXPECT_EQ(channels.async()->next(notice), 0);
    EXPECT_EQ(notice.type, type);
  }
  EXPECT_EQ(ready(fd), 0);
}

TEST(Sockaddr, ComesBackAsItWent) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(7174);
  in.sin_addr.s_addr = htonl(0x0a000001);
  const auto four = from_sockaddr(reinterpret_cast<const sockaddr*>(&in));
  ASSERT_TRUE(four);
  EXPECT_EQ(four->ip, wire::ipv4_gid(0x0a000001));
  EXPECT_EQ(from_sockaddr(reinterpret_cast<const sockaddr*>(&in)).value(), *four);
  const sockaddr_storage back = to_sockaddr(*four);
  EXPECT_EQ(std::memcmp(&back, &in, sizeof in), 0);

  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(1);
  in6.sin6_scope_id = 3;
  in6.sin6_addr.s6_addr[0] = 0xfe;
  const auto six = from_sockaddr(reinterpret_cast<const sockaddr*>(&in6));
  ASSERT_TRUE(six);
  EXPECT_EQ(six->scope, 3u);
  const sockaddr_storage back6 = to_sockaddr(*six);
  EXPECT_EQ(std::memcmp(&back6, &in6, sizeof in6), 0);

  sockaddr other{};
  other.sa_family = AF_UNIX;
  EXPECT_EQ(from_sockaddr(&other).error().code, Errc::kNotSupported);
}

TEST(Sockaddr, ByGidComesBackAsItWent) {
  sockaddr_ib ib{};
  ib.sib_family = AF_IB;
  ib.sib_pkey = htons(0xffff);
  ib.sib_addr.sib_addr8[15] = 7;
  ib.sib_sid = htobe64(0x0000'0000'0106'1c06);
  ib.sib_sid_mask = ~__be64{0};
  const auto* address = reinterpret_cast<const sockaddr*>(&ib);
  const auto found = from_sockaddr(address);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->by_gid);
  EXPECT_EQ(found->port, 0x1c06);
  EXPECT_EQ(found->service, ServiceId{0x1061c06});
  const sockaddr_storage back = to_sockaddr(*found);
  EXPECT_EQ(std::memcmp(&back, &ib, sizeof ib), 0);

  ib.sib_sid_mask = htobe64(0xff);
  EXPECT_EQ(from_sockaddr(address)->service, ServiceId{0x1061c06});  // where to connect to
  EXPECT_EQ(source_from_sockaddr(address)->service, ServiceId{0x06});
  EXPECT_EQ(source_from_sockaddr(address)->port, 0x06);
  ib.sib_pkey = htons(0x8001);
  EXPECT_EQ(from_sockaddr(address).error().code, Errc::kAddressNotFound);
  ib.sib_pkey = 0;
  EXPECT_TRUE(from_sockaddr(address));
}

// Without an engine there are no objects, so every handle is a forged one; nothing is started.
TEST(Border, ForgedHandlesAreErrors) {
  EXPECT_EQ(vb_pd_destroy(1), EINVAL);
  EXPECT_EQ(vb_mr_deregister(0xffffffffffffffff), EINVAL);
  EXPECT_EQ(vb_cq_destroy(0), EINVAL);
  EXPECT_EQ(vb_cq_poll(1, 1, nullptr), -EINVAL);
  EXPECT_EQ(vb_cq_arm(1, 0), EINVAL);
  EXPECT_EQ(vb_channel_destroy(1), EINVAL);
  std::uint64_t cookie = 0;
  EXPECT_EQ(vb_channel_next(1, &cookie), EINVAL);
  EXPECT_EQ(vb_qp_destroy(1), EINVAL);
  const vb_send_wr send{};
  EXPECT_EQ(vb_post_send(1, &send, 0), EINVAL);
  const vb_recv_wr receive{};
  EXPECT_EQ(vb_post_recv(1, &receive), EINVAL);
  EXPECT_EQ(vb_cm_id_destroy(1), EINVAL);
  EXPECT_EQ(vb_cm_listen(1, 1), EINVAL);
  EXPECT_EQ(vb_cm_disconnect(1), EINVAL);
  vb_cm_event event{};
  EXPECT_EQ(vb_cm_next_event(1, &event), EINVAL);
  EXPECT_NE(*vb_last_error(), '\0');
}

}  // namespace
}  // namespace verbena::client
