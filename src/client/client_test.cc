#include <endian.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/ib.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_cma.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "client/batch.h"
#include "client/channels.h"
#include "client/sockaddr.h"
#include "verbena/c_api_requests.h"
#include "wire/ip.h"

namespace verbena::client {
namespace {

// Returns the poll(2) events of the descriptor, without POLLOUT.
short ready(int fd) {
  pollfd one{.fd = fd, .events = POLLIN | POLLOUT, .revents = 0};
  (void)::poll(&one, 1, 0);
  return static_cast<short>(one.revents & ~POLLOUT);
}

CompletionChannelHandle channel_with_cq(Channels& channels, std::uint64_t cookie,
                                        std::uint64_t& object) {
  const auto channel = *channels.create_completion();
  object = *channels.add_object({.channel = channel, .cookie = cookie});
  return channel;
}

TEST(Batch, PostsOfOtherThreadsAreSentWithinAFewPackets) {
  constexpr int kPackets = 2000, kPostedAt = 37;
  std::vector<int> packets(kPackets);
  int packets_taken = 0, sent_at = 0;
  bool posted = false;
  take_batch(
      packets, [&](int) { posted |= ++packets_taken == kPostedAt; }, [&] { return posted; },
      [&] {
        EXPECT_EQ(sent_at, 0) << "send() was called although nothing was posted";
        sent_at = packets_taken;
        posted = false;
      });
  EXPECT_EQ(packets_taken, kPackets);
  EXPECT_GE(sent_at, kPostedAt);
  EXPECT_LE(sent_at, kPostedAt + static_cast<int>(kPacketsPerCheck));
}

TEST(Channels, TheDescriptorIsReadableExactlyWhileEventsWait) {
  Channels channels;
  std::uint64_t object = 0;
  const auto handle = channel_with_cq(channels, 42, object);
  CompletionChannel& channel = *channels.completion(handle);
  EXPECT_EQ(ready(channel.fd()), 0);
  channels.dispatch(process::CqNotice{object});
  channels.dispatch(process::CqNotice{object});
  EXPECT_EQ(ready(channel.fd()), POLLIN);
  CqEvent event;
  EXPECT_EQ(channel.next(event), 0);
  EXPECT_EQ(event.cookie, 42u);
  EXPECT_EQ(ready(channel.fd()), POLLIN);
  EXPECT_EQ(channel.next(event), 0);
  EXPECT_EQ(ready(channel.fd()), 0);
  ASSERT_EQ(fcntl(channel.fd(), F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(channel.next(event), EAGAIN);
}

TEST(Channels, DestroyingACqRemovesItsEvents) {
  Channels channels;
  std::uint64_t object = 0;
  const auto handle = channel_with_cq(channels, 42, object);
  channels.dispatch(process::CqNotice{object});
  EXPECT_EQ(channels.destroy_completion(handle).error().code, Errc::kBusy);
  channels.remove_object(object);
  EXPECT_EQ(ready(channels.completion(handle)->fd()), 0);
  // An event that the engine made before the removal may arrive after it.
  channels.dispatch(process::CqNotice{object});
  EXPECT_EQ(ready(channels.completion(handle)->fd()), 0);
  EXPECT_TRUE(channels.destroy_completion(handle));
  EXPECT_EQ(channels.destroy_completion(handle).error().code, Errc::kBadHandle);
}

TEST(Channels, AWaitingReaderGetsTheEventOfAnotherThread) {
  Channels channels;
  std::uint64_t object = 0;
  const auto handle = channel_with_cq(channels, 42, object);
  std::thread poster([&] { channels.dispatch(process::CqNotice{object}); });
  CqEvent event;
  EXPECT_EQ(channels.completion(handle)->next(event), 0);
  EXPECT_EQ(event.cookie, 42u);
  poster.join();
}

// Several readers wait while writers push entries and withdraw some of them.
TEST(Channels, ConcurrentReadersAndWritersLoseNoEvent) {
  constexpr std::uint64_t kPushes = 20000, kWithdrawEvery = 7, kLast = 0;
  CompletionChannel channel(*os::EventFd::create());
  std::atomic<std::uint64_t> events = 0;
  const auto read = [&] {
    for (CqEvent event; channel.next(event) == 0 && event.object != kLast;) ++events;
  };
  const auto push = [&] {
    for (std::uint64_t i = 1; i <= kPushes; ++i) {
      channel.push({.object = i});
      if (i % kWithdrawEvery != 0) continue;
      events += channel.withdraw(i).size();
    }
  };
  std::vector<std::thread> readers, writers;
  for (int i = 0; i < 3; ++i) readers.emplace_back(read);
  for (int i = 0; i < 2; ++i) writers.emplace_back(push);
  for (std::thread& writer : writers) writer.join();
  for (std::size_t i = 0; i < readers.size(); ++i) channel.push({.object = kLast});
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(events, 2 * kPushes);
  EXPECT_EQ(ready(channel.fd()), 0) << "the descriptor is readable, but the queue is empty";
  channel.push({.object = 1});
  EXPECT_EQ(ready(channel.fd()), POLLIN);
}

TEST(Channels, AThreadThatReadsADestroyedChannelFindsNothing) {
  Channels channels;
  const auto handle = *channels.create_cm();
  const auto channel_in_use = channels.cm(handle);
  ASSERT_EQ(::fcntl(channel_in_use->fd(), F_SETFL, O_NONBLOCK), 0);
  ASSERT_TRUE(channels.destroy_cm(handle));
  EXPECT_EQ(channels.cm(handle), nullptr);
  process::CmNotice notice;
  EXPECT_EQ(channel_in_use->next(notice), EAGAIN);
  const auto completions = *channels.create_completion();
  const auto completions_in_use = channels.completion(completions);
  ASSERT_EQ(::fcntl(completions_in_use->fd(), F_SETFL, O_NONBLOCK), 0);
  ASSERT_TRUE(channels.destroy_completion(completions));
  CqEvent event;
  EXPECT_EQ(completions_in_use->next(event), EAGAIN);
}

TEST(Channels, MigratingAnIdMovesItsEvents) {
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

TEST(Channels, AChannelMayHideEventsOfUnansweredRequests) {
  Channels channels;
  const auto other_channel = *channels.create_cm();
  const auto hiding_channel = *channels.create_cm();
  ASSERT_TRUE(channels.hide_lost_requests(hiding_channel));
  ASSERT_TRUE(channels.add_id({1}, other_channel));
  ASSERT_TRUE(channels.add_id({2}, hiding_channel));
  for (const process::ConnectionHandle listener : {process::ConnectionHandle{1}, {2}}) {
    const process::ConnectionHandle new_id{listener.value + 10};
    channels.dispatch(process::CmNotice{.id = listener, .new_id = new_id});
    channels.dispatch(process::CmNotice{.id = new_id, .unanswered = true});
  }
  EXPECT_EQ(channels.cm(other_channel)->withdraw_if([](const auto&) { return true; }).size(), 2u);
  EXPECT_EQ(channels.cm(hiding_channel)->withdraw_if([](const auto&) { return true; }).size(), 1u);
  EXPECT_EQ(ready(channels.cm(hiding_channel)->fd()), 0);
  channels.dispatch(process::CmNotice{.id = {12}});  // the program had answered this request
  EXPECT_NE(ready(channels.cm(hiding_channel)->fd()), 0);
  EXPECT_EQ(channels.hide_lost_requests({99}).error().code, Errc::kBadHandle);
}

TEST(Channels, MigratingAListenerMovesItsRequestsAndTheirEvents) {
  Channels channels;
  const auto from = *channels.create_cm();
  const auto to = *channels.create_cm();
  ASSERT_TRUE(channels.add_id({1}, from));
  ASSERT_TRUE(channels.add_id({7}, from));
  channels.dispatch(process::CmNotice{.id = {1}, .new_id = {2}});
  channels.dispatch(process::CmNotice{.id = {7}});
  channels.dispatch(process::CmNotice{.id = {2}});  // the request of the peer has timed out
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

TEST(Channels, RemovingAListenerReturnsItsUnreadRequests) {
  Channels channels;
  const auto channel = *channels.create_cm();
  ASSERT_TRUE(channels.add_id({1}, channel));
  channels.dispatch(process::CmNotice{.id = {1}, .new_id = {2}});
  const auto unread = channels.remove_id({1});
  ASSERT_EQ(unread.size(), 1u);
  EXPECT_EQ(unread[0].new_id, process::ConnectionHandle{2});
  EXPECT_TRUE(channels.destroy_cm(channel)) << "both ids were removed";
}

TEST(Channels, RemovingAListenerDropsTheEventsOfItsUnreadRequests) {
  Channels channels;
  const auto channel = *channels.create_cm();
  ASSERT_TRUE(channels.add_id({1}, channel));
  channels.dispatch(process::CmNotice{.id = {1}, .new_id = {2}});
  channels.dispatch(process::CmNotice{.id = {2}});  // the request of the peer has timed out
  EXPECT_EQ(channels.remove_id({1}).size(), 1u);
  EXPECT_EQ(ready(channels.cm(channel)->fd()), 0)
      << "the descriptor is readable, but the queue is empty";
}

constexpr std::uint32_t kCommEst = 4, kDeviceFatal = 8, kPortActive = 9, kPortErr = 10;
constexpr std::uint32_t kSrqLimitReached = 15, kGidChange = 18;

// Takes all waiting events of the context and returns their types.
std::vector<std::uint32_t> types_in(Channels& channels, ContextHandle context) {
  std::vector<std::uint32_t> types;
  for (AsyncEvent event; channels.context(context)->try_next(event);) types.push_back(event.type);
  return types;
}

TEST(Channels, AnAsynchronousEventDoesNotOutliveItsQp) {
  Channels channels;
  const auto context = *channels.create_context();
  const std::uint64_t removed = *channels.add_object({.context = context, .cookie = 9});
  const std::uint64_t remaining = *channels.add_object({.context = context, .cookie = 10});
  channels.dispatch(process::AsyncNotice{.type = kCommEst, .cookie = removed});
  channels.dispatch(process::AsyncNotice{.type = kCommEst, .cookie = remaining});
  channels.dispatch(process::AsyncNotice{.type = kDeviceFatal});
  channels.remove_object(removed);
  // An event that the engine made before the removal may arrive after it.
  channels.dispatch(process::AsyncNotice{.type = kCommEst, .cookie = removed});
  AsyncEvent event;
  EXPECT_EQ(channels.context(context)->next(event), 0);
  EXPECT_EQ(event.cookie, 10u);
  EXPECT_EQ(channels.context(context)->next(event), 0);
  EXPECT_EQ(event.type, kDeviceFatal);
  EXPECT_EQ(ready(channels.context(context)->fd()), 0);
}

TEST(Channels, ObjectEventsGoToTheirContextAndPortEventsToAll) {
  Channels channels;
  const auto one = *channels.create_context();
  const auto other = *channels.create_context();
  EXPECT_NE(channels.context(one)->fd(), channels.context(other)->fd());
  const std::uint64_t qp = *channels.add_object({.context = one, .cookie = 5});
  const std::uint64_t srq = *channels.add_object({.context = other, .cookie = 5});
  channels.dispatch(process::AsyncNotice{.type = kCommEst, .cookie = qp});
  channels.dispatch(process::AsyncNotice{.type = kSrqLimitReached, .cookie = srq});
  channels.dispatch(process::AsyncNotice{.type = kPortErr});
  channels.dispatch(process::AsyncNotice{.type = kDeviceFatal});
  EXPECT_EQ(types_in(channels, one), (std::vector{kCommEst, kPortErr, kDeviceFatal}));
  EXPECT_EQ(types_in(channels, other), (std::vector{kSrqLimitReached, kPortErr, kDeviceFatal}));
}

TEST(Channels, PortEventsGoToTheContextsOfTheirDevice) {
  Channels channels;
  const auto first = *channels.create_context(0);
  const auto second = *channels.create_context(1);
  const auto all = *channels.create_context(VB_ALL_DEVICES);
  channels.dispatch(process::AsyncNotice{.type = kPortErr, .port = {0, 1}});
  channels.dispatch(process::AsyncNotice{.type = kPortErr, .port = {1, 1}});
  channels.dispatch(process::AsyncNotice{.type = kPortErr, .port = {1, 2}});
  // The next event replaces the last one.
  channels.dispatch(process::AsyncNotice{.type = kPortErr, .port = {1, 2}});
  channels.dispatch(process::AsyncNotice{.type = kDeviceFatal});
  const auto ports_in = [&](ContextHandle context) {
    std::vector<PortId> ports;
    for (AsyncEvent event; channels.context(context)->try_next(event);) {
      if (event.type == kPortErr) ports.push_back(event.port);
    }
    return ports;
  };
  EXPECT_EQ(ports_in(first), (std::vector<PortId>{{0, 1}}));
  EXPECT_EQ(ports_in(second), (std::vector<PortId>{{1, 1}, {1, 2}}));
  EXPECT_EQ(ports_in(all), (std::vector<PortId>{{0, 1}, {1, 1}, {1, 2}}));
}

TEST(Channels, AClosedContextGetsNoEventsAndItsObjectsRemain) {
  Channels channels;
  const auto context = *channels.create_context();
  const auto channel_in_use = channels.context(context);  // as in a thread that is about to wait
  const std::uint64_t qp = *channels.add_object({.context = context, .cookie = 5});
  ASSERT_TRUE(channels.destroy_context(context));
  EXPECT_EQ(channels.destroy_context(context).error().code, Errc::kBadHandle);
  const auto next = *channels.create_context();
  channels.dispatch(process::AsyncNotice{.type = kCommEst, .cookie = qp});
  EXPECT_EQ(types_in(channels, next), std::vector<std::uint32_t>())
      << "the event is for an object of another context";
  EXPECT_EQ(ready(channel_in_use->fd()), 0);
  EXPECT_EQ(channels.target_of(qp).cookie, 5u);
  channels.remove_object(qp);
  EXPECT_EQ(channels.target_of(qp).cookie, 0u);
}

TEST(Channels, UnreadPortEventsDoNotPileUp) {
  Channels channels;
  const auto context = *channels.create_context();
  for (int flaps = 0; flaps < 100; ++flaps) {
    for (const std::uint32_t type : {kPortActive, kGidChange, kDeviceFatal, kPortErr}) {
      channels.dispatch(process::AsyncNotice{.type = type});
    }
  }
  EXPECT_EQ(types_in(channels, context),
            (std::vector{kPortActive, kGidChange, kDeviceFatal, kPortErr}));
  EXPECT_EQ(ready(channels.context(context)->fd()), 0);
}

TEST(Sockaddr, IpAddressesSurviveARoundTrip) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(7174);
  in.sin_addr.s_addr = htonl(0x0a000001);
  const auto ipv4 = from_sockaddr(reinterpret_cast<const sockaddr*>(&in));
  ASSERT_TRUE(ipv4);
  EXPECT_EQ(ipv4->ip, wire::ipv4_gid(0x0a000001));
  EXPECT_EQ(ipv4->port, 7174);
  const sockaddr_storage back = to_sockaddr(*ipv4);
  EXPECT_EQ(std::memcmp(&back, &in, sizeof in), 0);

  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(1);
  in6.sin6_scope_id = 3;
  in6.sin6_addr.s6_addr[0] = 0xfe;
  const auto ipv6 = from_sockaddr(reinterpret_cast<const sockaddr*>(&in6));
  ASSERT_TRUE(ipv6);
  EXPECT_EQ(ipv6->scope, 3u);
  const sockaddr_storage back6 = to_sockaddr(*ipv6);
  EXPECT_EQ(std::memcmp(&back6, &in6, sizeof in6), 0);

  sockaddr other{};
  other.sa_family = AF_UNIX;
  EXPECT_EQ(from_sockaddr(&other).error().code, Errc::kNotSupported);
}

TEST(Sockaddr, IbAddressesSurviveARoundTrip) {
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
  EXPECT_EQ(from_sockaddr(address)->service, ServiceId{0x1061c06});  // not masked
  EXPECT_EQ(source_from_sockaddr(address)->service, ServiceId{0x06});
  EXPECT_EQ(source_from_sockaddr(address)->port, 0x06);
  ib.sib_pkey = htons(0x8001);
  EXPECT_EQ(from_sockaddr(address).error().code, Errc::kAddressNotFound);
  EXPECT_EQ(group_from_sockaddr(address)->ip, found->ip) << "a group is in the partition of the id";
  EXPECT_TRUE(group_from_sockaddr(address)->by_gid);
  ib.sib_pkey = 0;
  EXPECT_TRUE(from_sockaddr(address));
}

// Without a Client there are no objects, so every handle is invalid.  The calls do not start an
// agent.
TEST(CApi, OptionsHaveTheErrorsOfTheKernel) {
  const int value = 0;
  const auto set = [&](int level, int option, std::size_t bytes) {
    return vb_cm_set_option(1, level, option, &value, bytes);
  };
  EXPECT_EQ(set(RDMA_OPTION_ID, 99, 4), ENOSYS);
  EXPECT_EQ(set(RDMA_OPTION_IB, 99, 4), ENOSYS);
  EXPECT_EQ(set(77, RDMA_OPTION_ID_TOS, 1), ENOSYS);
  for (const int option : {RDMA_OPTION_ID_TOS, RDMA_OPTION_ID_ACK_TIMEOUT}) {
    EXPECT_EQ(set(RDMA_OPTION_ID, option, 4), EINVAL);
    EXPECT_STREQ(vb_last_error(), "the option has a value of another length");
  }
  for (const int option : {RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_AFONLY}) {
    EXPECT_EQ(set(RDMA_OPTION_ID, option, 1), EINVAL);
    EXPECT_STREQ(vb_last_error(), "the option has a value of another length");
  }
}

TEST(CApi, ForgedHandlesAreErrors) {
  EXPECT_EQ(vb_pd_destroy(1), EINVAL);
  EXPECT_EQ(vb_mr_deregister(0xffffffffffffffff), EINVAL);
  EXPECT_EQ(vb_cq_destroy(0), EINVAL);
  EXPECT_EQ(vb_cq_poll(1, 1, nullptr), -EINVAL);
  EXPECT_EQ(vb_cq_arm(1, 0), EINVAL);
  EXPECT_EQ(vb_channel_destroy(1), EINVAL);
  std::uint64_t cookie = 0;
  EXPECT_EQ(vb_channel_next(1, &cookie), EINVAL);
  EXPECT_EQ(vb_context_destroy(1), EINVAL);
  vb_async_event async{};
  EXPECT_EQ(vb_async_next(1, &async), EINVAL);
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

TEST(CApi, ARefusedRequestHasItsStatusAndItsText) {
  vb_handle queue = 0;
  int fd = -1;
  ASSERT_EQ(vb_requests_create(&queue, &fd), 0);
  vb_pd_args args{};
  args.pd = 1;
  for (const vb_handle handle : {queue, queue + 1}) {
    vb_request request{};
    request.command = VB_PD_DESTROY;
    request.arguments = &args;
    EXPECT_EQ(vb_submit(handle, &request), EINVAL);
    EXPECT_EQ(request.status, EINVAL);
    EXPECT_STREQ(request.text, handle == queue ? "no such object" : "no such request queue");
  }
  EXPECT_EQ(vb_requests_destroy(queue), 0);
}

}  // namespace
}  // namespace verbena::client
