#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "cm_scene.h"
#include "yield_processor.h"

// Tests the drop-in librdmacm: ids, their events, and connections.

namespace {

TEST_F(Cm, SynchronousIdsAreResolvedWhenTheCallReturns) {
  rdma_cm_id* id = create_resolved_id();
  ASSERT_NE(id->verbs, nullptr);
  EXPECT_EQ(id->event->event, RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_EQ(id->port_num, 1);
  EXPECT_NE(id->pd, nullptr);
  EXPECT_EQ(id->ps, RDMA_PS_TCP);
  EXPECT_EQ(id->qp_type, IBV_QPT_RC);
  EXPECT_EQ(rdma_get_dst_port(id), htons(7471));
  EXPECT_EQ(id->route.addr.addr.ibaddr.dgid.raw[15], 2);
  ASSERT_EQ(id->route.num_paths, 1);
  EXPECT_EQ(id->route.path_rec->mtu, 3);
  EXPECT_EQ(id->route.path_rec->dgid.raw[15], 2);
  EXPECT_EQ(id->route.path_rec->pkey, htobe16(0xffff));
  EXPECT_EQ(id->route.path_rec->rate, IBV_RATE_100_GBPS);

  int devices = 0;
  ibv_context** list = rdma_get_devices(&devices);
  ASSERT_EQ(devices, 1);
  EXPECT_EQ(list[0], id->verbs);
  EXPECT_EQ(list[1], nullptr);
  rdma_free_devices(list);
  EXPECT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(Cm, APathHasTheRateOfItsPort) {
  constexpr std::uint8_t k1x = 1, k4x = 2, k8x = 4, k12x = 8, k2x = 16;
  constexpr std::uint8_t kSdr = 1, kQdr = 4, kFdr = 16, kEdr = 32, kHdr = 64, kNdr = 128;
  struct Case {
    std::uint8_t width, speed;
    ibv_rate rate;
  };
  for (const Case& one : {Case{k1x, kSdr, IBV_RATE_2_5_GBPS}, Case{k4x, kQdr, IBV_RATE_40_GBPS},
                          Case{k4x, kFdr, IBV_RATE_56_GBPS}, Case{k12x, kFdr, IBV_RATE_168_GBPS},
                          Case{k4x, kEdr, IBV_RATE_100_GBPS}, Case{k12x, kEdr, IBV_RATE_300_GBPS},
                          Case{k2x, kHdr, IBV_RATE_100_GBPS}, Case{k4x, kHdr, IBV_RATE_200_GBPS},
                          Case{k2x, kNdr, IBV_RATE_200_GBPS}, Case{k8x, kNdr, IBV_RATE_800_GBPS}}) {
    fake::state().active_width = one.width;
    fake::state().active_speed = one.speed;
    rdma_cm_id* id = create_resolved_id();
    EXPECT_EQ(id->route.path_rec->rate, one.rate) << +one.width << ' ' << +one.speed;
    EXPECT_EQ(rdma_destroy_id(id), 0);
  }
  fake::state().active_width = k4x;
  fake::state().active_speed = kEdr;
}

TEST_F(Cm, TheStatusOfSynchronousCallsBecomesTheirErrno) {
  rdma_cm_id* id = create_resolved_id();
  rdma_conn_param param{};
  fake::state().connect_answer = make_event(RDMA_CM_EVENT_REJECTED, 28);
  EXPECT_EQ(rdma_connect(id, &param), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  EXPECT_EQ(id->event->status, 28);
  fake::state().connect_answer = make_event(RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
  EXPECT_EQ(rdma_connect(id, &param), -1);
  EXPECT_EQ(errno, ETIMEDOUT);
  EXPECT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(Cm, PrivateDataIsLimited) {
  char data[256] = {};
  rdma_conn_param param{};
  param.private_data = data;
  rdma_cm_id* id = create_resolved_id();
  param.private_data_len = 57;
  EXPECT_EQ(rdma_connect(id, &param), -1);
  EXPECT_EQ(errno, EINVAL);
  param.private_data_len = 56;
  EXPECT_EQ(rdma_connect(id, &param), 0);
  EXPECT_EQ(newest_fake_id().private_data.size(), 56u);
  param.private_data_len = 197;
  EXPECT_EQ(rdma_accept(id, &param), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rdma_reject(id, data, 148), 0);
  EXPECT_EQ(rdma_reject(id, data, 149), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rdma_connect(id, nullptr), -1);  // neither a QP nor a parameter has the QP's number
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rdma_destroy_id(id), 0);

  id = create_resolved_id(RDMA_PS_UDP);
  param.private_data_len = 181;
  EXPECT_EQ(rdma_connect(id, &param), -1);
  param.private_data_len = 180;
  fake::state().connect_answer.qkey = 77;
  EXPECT_EQ(rdma_connect(id, &param), 0);
  EXPECT_EQ(id->event->param.ud.qkey, 77u);  // the peer's Q_Key
  EXPECT_EQ(id->event->param.ud.ah_attr.grh.dgid.raw[15], 2);
  EXPECT_EQ(id->event->param.ud.ah_attr.is_global, 1);
  EXPECT_EQ(rdma_destroy_id(id), 0);
}

// The C API has ids without a port space, but librdmacm must refuse them.
TEST_F(Cm, AnIdMustHaveAPortSpace) {
  rdma_cm_id* id = nullptr;
  EXPECT_EQ(rdma_create_id(channel_, &id, nullptr, static_cast<rdma_port_space>(0)), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(Cm, AChannelThatIsDestroyedBeforeItsIdsEndsWithTheLastId) {
  const std::size_t channels = fake::state().channels.size();
  rdma_event_channel* other = rdma_create_event_channel();
  ASSERT_NE(other, nullptr);
  rdma_cm_id* first = nullptr;
  rdma_cm_id* second = nullptr;
  ASSERT_EQ(rdma_create_id(other, &first, nullptr, RDMA_PS_TCP), 0);
  ASSERT_EQ(rdma_create_id(channel_, &second, nullptr, RDMA_PS_TCP), 0);
  ASSERT_EQ(rdma_migrate_id(second, other), 0);
  rdma_destroy_event_channel(other);
  EXPECT_EQ(rdma_destroy_id(first), 0);
  EXPECT_EQ(fake::state().channels.size(), channels + 1);
  EXPECT_EQ(rdma_migrate_id(second, channel_), 0);
  EXPECT_EQ(fake::state().channels.size(), channels);
  EXPECT_EQ(rdma_destroy_id(second), 0);
}

TEST_F(Cm, BindingSetsDeviceAndPort) {
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_id(channel_, &id, &id, RDMA_PS_TCP), 0);
  EXPECT_EQ(id->context, &id);
  sockaddr_in any = address("0.0.0.0", 0);
  EXPECT_EQ(rdma_bind_addr(id, as_sockaddr(any)), 0);
  EXPECT_EQ(id->verbs, nullptr);
  EXPECT_EQ(ntohs(rdma_get_src_port(id)), 34567);
  sockaddr_in one = address("10.0.0.1", 80);
  EXPECT_EQ(rdma_bind_addr(id, as_sockaddr(one)), 0);
  EXPECT_NE(id->verbs, nullptr);
  sockaddr unknown{};
  unknown.sa_family = AF_UNIX;
  EXPECT_EQ(rdma_bind_addr(id, &unknown), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(Cm, AThreadMayDestroyAnIdWhoseEventsItHasNotAcknowledged) {
  rdma_cm_id* id = nullptr;
  int mark = 0;
  ASSERT_EQ(rdma_create_id(channel_, &id, &mark, RDMA_PS_TCP), 0);
  report_event(newest_fake_id(), make_event(RDMA_CM_EVENT_ADDR_ERROR, -ENODEV));
  report_event(newest_fake_id(), make_event(RDMA_CM_EVENT_CONNECT_ERROR, -ENOMEM));
  // This event is not read before the id is destroyed, so it is dropped.
  report_event(newest_fake_id(), make_event(RDMA_CM_EVENT_DISCONNECTED));
  rdma_cm_event* first = nullptr;
  rdma_cm_event* second = nullptr;
  ASSERT_EQ(rdma_get_cm_event(channel_, &first), 0);
  ASSERT_EQ(rdma_get_cm_event(channel_, &second), 0);

  EXPECT_EQ(rdma_destroy_id(id), 0);  // called by the thread that has the events
  EXPECT_TRUE(fake::state().ids.empty());
  EXPECT_EQ(rdma_ack_cm_event(second), 0);
  EXPECT_EQ(first->id, id);
  EXPECT_EQ(first->id->context, &mark);
  EXPECT_EQ(first->status, -ENODEV);
  std::thread([&] { EXPECT_EQ(rdma_ack_cm_event(first), 0); }).join();
  pollfd readable{.fd = channel_->fd, .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&readable, 1, 0), 0);
}

// The handler of an event may use memory that the program frees after it has destroyed the id, as
// in rping.
TEST_F(Cm, DestroyingAnIdWaitsForAnotherThreadsHandler) {
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_id(channel_, &id, nullptr, RDMA_PS_TCP), 0);
  report_event(newest_fake_id(), make_event(RDMA_CM_EVENT_DISCONNECTED));
  std::atomic<bool> event_read = false;
  std::atomic<bool> acknowledged = false;
  std::thread handler([&] {
    rdma_cm_event* event = nullptr;
    EXPECT_EQ(rdma_get_cm_event(channel_, &event), 0);
    event_read = true;
    for (bool is_destroyed = false; !is_destroyed;) {
      const std::scoped_lock lock(fake::state().mutex);
      is_destroyed = fake::state().ids.empty();
    }
    fake::yield_processor();
    acknowledged = true;
    EXPECT_EQ(rdma_ack_cm_event(event), 0);
  });
  while (!event_read) std::this_thread::yield();
  EXPECT_EQ(rdma_destroy_id(id), 0);
  EXPECT_TRUE(acknowledged);
  handler.join();
}

TEST_F(Cm, IdsOfARequestRemainValidUntilItsEventIsAcknowledged) {
  rdma_cm_id* listener = nullptr;
  int mark = 0;
  ASSERT_EQ(rdma_create_id(channel_, &listener, &mark, RDMA_PS_TCP), 0);
  ASSERT_EQ(rdma_listen(listener, 3), 0);
  request_connection();
  rdma_cm_event* event = nullptr;
  ASSERT_EQ(rdma_get_cm_event(channel_, &event), 0);
  EXPECT_EQ(rdma_destroy_id(event->id), 0);
  EXPECT_EQ(rdma_destroy_id(event->listen_id), 0);
  EXPECT_EQ(event->id->context, &mark);
  EXPECT_EQ(event->listen_id->context, &mark);
  EXPECT_EQ(rdma_ack_cm_event(event), 0);
}

// Any of the threads may be the last one that uses the id, and must then free it.
TEST_F(Cm, IdsMayBeDestroyedWhileThreadsReadTheirEvents) {
  std::atomic<bool> stop = false;
  fcntl(channel_->fd, F_SETFL, O_NONBLOCK);
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      while (!stop) {
        rdma_cm_event* event = nullptr;
        if (rdma_get_cm_event(channel_, &event) != 0) continue;
        EXPECT_EQ(event->id->context, channel_);
        std::this_thread::yield();
        EXPECT_EQ(rdma_ack_cm_event(event), 0);
      }
    });
  }
  for (int i = 0; i < 2000; ++i) {
    rdma_cm_id* id = nullptr;
    ASSERT_EQ(rdma_create_id(channel_, &id, channel_, RDMA_PS_TCP), 0);
    for (int n = 0; n < 3; ++n)
      report_event(newest_fake_id(), make_event(RDMA_CM_EVENT_DISCONNECTED));
    if (i % 2 == 0) std::this_thread::yield();
    ASSERT_EQ(rdma_destroy_id(id), 0);
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
}

TEST_F(Cm, AQpIsNotDestroyedWhileAThreadReadsAnEventOfItsId) {
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_id(channel_, &id, nullptr, RDMA_PS_TCP), 0);
  sockaddr_in own = address("10.0.0.1", 80);
  ASSERT_EQ(rdma_bind_addr(id, as_sockaddr(own)), 0);
  ibv_qp_init_attr attr = small_qp_attr(IBV_QPT_RC);
  ASSERT_EQ(rdma_create_qp(id, nullptr, &attr), 0);
  std::atomic<bool> is_queried = false;
  bool exists = false;
  fake::state().on_qp_query = [&] {
    is_queried = true;
    fake::yield_processor();
    const std::scoped_lock lock(fake::state().mutex);
    exists = !fake::state().qps.empty();
  };
  report_event(newest_fake_id(), make_event(RDMA_CM_EVENT_REJECTED, 28));
  std::thread reader([&] {
    rdma_cm_event* event = nullptr;
    EXPECT_EQ(rdma_get_cm_event(channel_, &event), 0);
    EXPECT_EQ(rdma_ack_cm_event(event), 0);
  });
  while (!is_queried) std::this_thread::yield();
  rdma_destroy_qp(id);
  reader.join();
  EXPECT_TRUE(exists);
  fake::state().on_qp_query = nullptr;
  EXPECT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(Cm, ARequestCreatesAnIdButTheEventOfTheRequestBelongsToTheListener) {
  rdma_cm_id* listener = nullptr;
  int mark = 0;
  ASSERT_EQ(rdma_create_id(channel_, &listener, &mark, RDMA_PS_TCP), 0);
  ASSERT_EQ(rdma_listen(listener, 3), 0);
  request_connection();
  rdma_cm_event* event = nullptr;
  ASSERT_EQ(rdma_get_cm_event(channel_, &event), 0);
  EXPECT_EQ(event->listen_id, listener);
  rdma_cm_id* id = event->id;
  ASSERT_NE(id, listener);
  EXPECT_EQ(id->context, &mark);
  EXPECT_EQ(id->channel, channel_);
  EXPECT_NE(id->verbs, nullptr);
  EXPECT_EQ(rdma_get_dst_port(id), htons(4000));
  EXPECT_EQ(event->param.conn.private_data_len, 56);
  EXPECT_EQ(static_cast<const char*>(event->param.conn.private_data)[0], 'x');
  EXPECT_EQ(rdma_destroy_id(id), 0);  // does not wait, because the event belongs to the listener
  EXPECT_EQ(rdma_ack_cm_event(event), 0);
  EXPECT_EQ(rdma_destroy_id(listener), 0);
}

TEST_F(Cm, ARequestForADestroyedListenerIsRejected) {
  rdma_cm_id* listener = nullptr;
  ASSERT_EQ(rdma_create_id(channel_, &listener, nullptr, RDMA_PS_TCP), 0);
  const fake::Id before = newest_fake_id();
  fake::Event queued{};
  queued.cm = make_event(RDMA_CM_EVENT_CONNECT_REQUEST);
  queued.cm.cookie = before.cookie;
  queued.cm.new_id = 77;
  ASSERT_EQ(rdma_destroy_id(listener), 0);
  fake::state().ids[77].channel = before.channel;
  fake::state().channels.at(before.channel)->push(queued);
  ASSERT_EQ(fcntl(channel_->fd, F_SETFL, O_NONBLOCK), 0);
  rdma_cm_event* event = nullptr;
  EXPECT_EQ(rdma_get_cm_event(channel_, &event), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_FALSE(fake::state().ids.contains(77));
}

// rping -s -P stores the id of each request in the same variable, from which another thread reads
// the id.  So a request must not be reported before the id of the previous request is used.
TEST_F(Cm, ABlockedThreadGetsTheNextRequestOnlyAfterThePreviousIdIsUsed) {
  rdma_cm_id* listener = nullptr;
  ASSERT_EQ(rdma_create_id(channel_, &listener, nullptr, RDMA_PS_TCP), 0);
  for (int i = 0; i < 8; ++i) request_connection();
  std::mutex mutex;
  std::condition_variable changed;
  rdma_cm_id* handed_over_id = nullptr;
  bool all_read = false;
  std::thread reader([&] {
    for (int i = 0; i < 8; ++i) {
      rdma_cm_event* event = nullptr;
      EXPECT_EQ(rdma_get_cm_event(channel_, &event), 0);
      {
        const std::lock_guard lock(mutex);
        EXPECT_EQ(std::exchange(handed_over_id, event->id), nullptr)
            << "request " << i << " is lost";
      }
      changed.notify_one();
      rdma_ack_cm_event(event);
    }
    const std::lock_guard lock(mutex);
    all_read = true;
    changed.notify_one();
  });
  for (int i = 0; i < 8; ++i) {
    rdma_cm_id* id = nullptr;
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return handed_over_id != nullptr || all_read; });
      id = handed_over_id;
    }
    if (id == nullptr) break;  // a request was lost
    fake::yield_processor();
    {
      const std::lock_guard lock(mutex);
      handed_over_id = nullptr;
    }
    // Each of these calls uses the id.
    if (i % 3 == 0) {
      EXPECT_EQ(rdma_reject(id, nullptr, 0), 0);
    }
    ibv_qp_init_attr attr = small_qp_attr(IBV_QPT_RC);
    if (i % 3 == 1) {
      EXPECT_EQ(rdma_create_qp(id, nullptr, &attr), 0);
    }
    if (id->qp != nullptr) rdma_destroy_qp(id);
    EXPECT_EQ(rdma_destroy_id(id), 0);
  }
  reader.join();
  rdma_destroy_id(listener);
}

TEST_F(Cm, RequestsWithUnusedIdsDelayABlockingThreadOnlyOnceAndANonBlockingThreadNever) {
  rdma_cm_id* listener = nullptr;
  ASSERT_EQ(rdma_create_id(channel_, &listener, nullptr, RDMA_PS_TCP), 0);
  const auto read_twenty_requests = [&] {
    const auto start = std::chrono::steady_clock::now();
    std::vector<rdma_cm_id*> ids;
    for (int i = 0; i < 20; ++i) request_connection();
    for (int i = 0; i < 20; ++i) {
      rdma_cm_event* event = nullptr;
      EXPECT_EQ(rdma_get_cm_event(channel_, &event), 0);
      ids.push_back(event->id);
      rdma_ack_cm_event(event);
    }
    for (rdma_cm_id* id : ids) EXPECT_EQ(rdma_destroy_id(id), 0);
    return std::chrono::steady_clock::now() - start;
  };
  const int flags = fcntl(channel_->fd, F_GETFL);
  fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK);
  EXPECT_LT(read_twenty_requests(), std::chrono::seconds(1));
  fcntl(channel_->fd, F_SETFL, flags);
  EXPECT_LT(read_twenty_requests(), std::chrono::seconds(10));
  rdma_destroy_id(listener);
}

TEST_F(Cm, TheQpOfAnIdHasCqsAndItsStateFollowsTheConnection) {
  rdma_cm_id* id = create_resolved_id();
  ibv_qp_init_attr attr = small_qp_attr(IBV_QPT_RC);
  ASSERT_EQ(rdma_create_qp(id, nullptr, &attr), 0);
  EXPECT_EQ(id->qp->state, IBV_QPS_INIT);
  ASSERT_NE(id->send_cq, nullptr);
  EXPECT_EQ(id->send_cq->cq_context, id);
  EXPECT_NE(id->recv_cq, nullptr);
  EXPECT_NE(id->send_cq_channel, nullptr);
  EXPECT_EQ(attr.send_cq, id->send_cq);
  EXPECT_EQ(id->qp->pd, id->pd);
  EXPECT_EQ(rdma_create_qp(id, nullptr, &attr), -1);
  EXPECT_EQ(errno, EINVAL);

  EXPECT_EQ(rdma_connect(id, nullptr), 0);
  EXPECT_EQ(id->qp->state, IBV_QPS_RTS);
  EXPECT_EQ(rdma_disconnect(id), 0);
  EXPECT_EQ(id->qp->state, IBV_QPS_ERR);
  EXPECT_EQ(id->event->event, RDMA_CM_EVENT_DISCONNECTED);

  rdma_destroy_qp(id);
  EXPECT_EQ(id->qp, nullptr);
  EXPECT_EQ(id->send_cq, nullptr);
  EXPECT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(Cm, ADatagramQpIsReadyToSendAfterItsCreation) {
  rdma_cm_id* id = create_resolved_id(RDMA_PS_UDP);
  ibv_qp_init_attr attr = small_qp_attr(IBV_QPT_UD);
  ASSERT_EQ(rdma_create_qp(id, nullptr, &attr), 0);
  EXPECT_EQ(id->qp->state, IBV_QPS_RTS);
  rdma_destroy_ep(id);
}

// DAPL creates a QP on one id, and then accepts a connection with that QP on another id.
TEST_F(Cm, AQpMovesToAnotherIdByAssignment) {
  rdma_cm_id* first = create_resolved_id();
  ibv_qp_init_attr attr = small_qp_attr(IBV_QPT_RC);
  ASSERT_EQ(rdma_create_qp(first, nullptr, &attr), 0);
  fake::Id& fake_of_first = newest_fake_id();
  rdma_cm_id* second = create_resolved_id();
  second->qp = first->qp;
  first->qp = nullptr;
  ASSERT_EQ(rdma_connect(second, nullptr), 0);
  EXPECT_EQ(second->qp->state, IBV_QPS_RTS);
  EXPECT_NE(newest_fake_id().qp, 0u);
  EXPECT_EQ(fake_of_first.qp, 0u);
  ASSERT_EQ(rdma_disconnect(first), 0);
  EXPECT_EQ(second->qp->state, IBV_QPS_RTS);
  rdma_destroy_qp(second);
  rdma_destroy_qp(first);  // destroys the first id's CQs, which did not move with the QP
  EXPECT_EQ(rdma_destroy_id(second), 0);
  EXPECT_EQ(rdma_destroy_id(first), 0);
}

// fio calls ibv_destroy_qp() for a QP of rdma_create_qp().
TEST_F(Cm, TheQpOfAnIdMayBeDestroyedWithVerbs) {
  rdma_cm_id* id = create_resolved_id();
  ibv_cq* cq = ibv_create_cq(id->verbs, 4, nullptr, nullptr, 0);
  ibv_qp_init_attr attr = small_qp_attr(IBV_QPT_RC);
  attr.send_cq = attr.recv_cq = cq;
  ASSERT_EQ(rdma_create_qp(id, nullptr, &attr), 0);
  EXPECT_EQ(id->send_cq, nullptr);  // the id does not store CQs of the program
  EXPECT_EQ(ibv_destroy_qp(id->qp), 0);
  EXPECT_EQ(newest_fake_id().qp, 0u);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(Cm, FailedQpCreationIsUndone) {
  rdma_cm_id* id = create_resolved_id();
  ibv_qp_init_attr attr = small_qp_attr(IBV_QPT_RC);
  fake::state().injected_errors["vb_cm_id_set_qp"] = EINVAL;
  EXPECT_EQ(rdma_create_qp(id, nullptr, &attr), -1);
  EXPECT_EQ(errno, EINVAL);
  fake::state().injected_errors.clear();
  fake::state().injected_errors["vb_qp_create"] = ENOMEM;
  attr = small_qp_attr(IBV_QPT_RC);
  EXPECT_EQ(rdma_create_qp(id, nullptr, &attr), -1);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(id->qp, nullptr);
  EXPECT_EQ(id->send_cq, nullptr);
  EXPECT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(Cm, AnEndpointCreatesAQpForEachRequest) {
  rdma_addrinfo hints{};
  hints.ai_flags = RAI_PASSIVE;
  hints.ai_port_space = RDMA_PS_TCP;
  rdma_addrinfo* res = nullptr;
  ASSERT_EQ(rdma_getaddrinfo(nullptr, "7471", &hints, &res), 0);
  ibv_qp_init_attr attr = small_qp_attr(IBV_QPT_RC);
  rdma_cm_id* listener = nullptr;
  ASSERT_EQ(rdma_create_ep(&listener, res, nullptr, &attr), 0);
  rdma_freeaddrinfo(res);
  ASSERT_EQ(rdma_listen(listener, 1), 0);
  request_connection();
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_get_request(listener, &id), 0);
  EXPECT_NE(id->channel, listener->channel);
  ASSERT_NE(id->qp, nullptr);
  EXPECT_EQ(id->event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
  EXPECT_EQ(rdma_accept(id, nullptr), 0);
  EXPECT_EQ(id->event->event, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(id->qp->state, IBV_QPS_RTS);
  rdma_destroy_ep(id);
  rdma_destroy_ep(listener);
}

TEST_F(Cm, AnActiveEndpointIsReadyToConnect) {
  rdma_addrinfo hints{};
  hints.ai_port_space = RDMA_PS_TCP;
  rdma_addrinfo* res = nullptr;
  ASSERT_EQ(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &res), 0);
  EXPECT_EQ(res->ai_qp_type, IBV_QPT_RC);
  ASSERT_EQ(res->ai_dst_len, sizeof(sockaddr_in));
  // This QP type is ignored, because the rdma_addrinfo has one.
  ibv_qp_init_attr attr = small_qp_attr(IBV_QPT_UD);
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_ep(&id, res, nullptr, &attr), 0);
  EXPECT_EQ(id->qp->qp_type, IBV_QPT_RC);
  rdma_freeaddrinfo(res);
  rdma_destroy_ep(id);
}

TEST_F(Cm, DestroyingAnEndpointDestroysItsQpAndItsSrq) {
  rdma_cm_id* id = create_resolved_id();
  ibv_srq_init_attr srq_attr{};
  srq_attr.attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 0};
  ASSERT_EQ(rdma_create_srq(id, nullptr, &srq_attr), 0);
  ibv_qp_init_attr attr = small_qp_attr(IBV_QPT_RC);
  ASSERT_EQ(rdma_create_qp(id, nullptr, &attr), 0);
  EXPECT_EQ(id->qp->srq, id->srq);
  rdma_destroy_ep(id);
  EXPECT_TRUE(fake::state().qps.empty());
  EXPECT_TRUE(fake::state().srqs.empty());
}

TEST_F(Cm, MigratingMakesAnIdSynchronousAndAsynchronousAgain) {
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_id(channel_, &id, nullptr, RDMA_PS_TCP), 0);
  ASSERT_EQ(rdma_migrate_id(id, nullptr), 0);
  EXPECT_NE(id->channel, channel_);
  sockaddr_in to = address("10.0.0.2", 1);
  EXPECT_EQ(rdma_resolve_addr(id, nullptr, as_sockaddr(to), 10), 0);
  EXPECT_EQ(rdma_migrate_id(id, nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
  ASSERT_EQ(rdma_migrate_id(id, channel_), 0);
  EXPECT_EQ(id->channel, channel_);
  EXPECT_EQ(id->event, nullptr);
  EXPECT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(Cm, NamesResolveToRdmaAddresses) {
  rdma_addrinfo hints{};
  hints.ai_flags = RAI_NUMERICHOST;
  hints.ai_port_space = RDMA_PS_UDP;
  rdma_addrinfo* res = nullptr;
  ASSERT_EQ(rdma_getaddrinfo("::1", "9", &hints, &res), 0);
  EXPECT_EQ(res->ai_family, AF_INET6);
  EXPECT_EQ(res->ai_qp_type, IBV_QPT_UD);
  EXPECT_EQ(res->ai_port_space, RDMA_PS_UDP);
  EXPECT_EQ(res->ai_next, nullptr);
  EXPECT_EQ(res->ai_route_len, 0u);
  rdma_freeaddrinfo(res);
  EXPECT_EQ(rdma_getaddrinfo("no.such.name", "9", &hints, &res), EAI_NONAME);
  EXPECT_EQ(rdma_getaddrinfo(nullptr, nullptr, nullptr, &res), -1);
  EXPECT_EQ(errno, EINVAL);

  hints.ai_flags = RAI_NUMERICHOST | RAI_FAMILY;
  hints.ai_family = 27;  // AF_IB
  hints.ai_port_space = RDMA_PS_TCP;
  ASSERT_EQ(rdma_getaddrinfo("fe80::2", "9", &hints, &res), 0);
  EXPECT_EQ(res->ai_family, 27);
  EXPECT_EQ(res->ai_dst_len, 48u);
  rdma_freeaddrinfo(res);
}

TEST_F(Cm, AThreadThatWaitsForAnEventMayBeCancelled) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer keeps the stack of a cancelled thread poisoned";
#endif
  std::thread waiter([&] {
    rdma_cm_event* event = nullptr;
    rdma_get_cm_event(channel_, &event);
  });
  fake::yield_processor();
  pthread_cancel(waiter.native_handle());
  waiter.join();
}

TEST_F(Cm, EceOptionsCanBeSetOnlyForIdsWithoutAQpOfVerbena) {
  rdma_cm_id* id = create_resolved_id();
  ibv_ece local_ece{.vendor_id = 0x123456, .options = 7, .comp_mask = 0};
  EXPECT_EQ(rdma_set_local_ece(id, &local_ece), 0);
  rdma_conn_param param{};
  EXPECT_EQ(rdma_connect(id, &param), 0);
  EXPECT_EQ(newest_fake_id().ece_vendor_id, 0x123456u);
  EXPECT_EQ(newest_fake_id().ece_options, 7u);
  ibv_ece remote_ece{.vendor_id = 1, .options = 1, .comp_mask = 1};
  EXPECT_EQ(rdma_get_remote_ece(id, &remote_ece), 0);
  EXPECT_EQ(remote_ece.vendor_id | remote_ece.options | remote_ece.comp_mask, 0u);

  const auto invalid = [](auto result) { return result == -1 && errno == EINVAL; };
  for (const ibv_ece bad : {ibv_ece{.vendor_id = 0, .options = 1, .comp_mask = 0},
                            ibv_ece{.vendor_id = 0x1000000, .options = 1, .comp_mask = 0},
                            ibv_ece{.vendor_id = 1, .options = 1, .comp_mask = 1}}) {
    ibv_ece copy = bad;
    EXPECT_TRUE(invalid(rdma_set_local_ece(id, &copy)));
  }
  EXPECT_TRUE(invalid(rdma_set_local_ece(id, nullptr)));
  EXPECT_TRUE(invalid(rdma_get_remote_ece(id, nullptr)));
  char data[256] = {};
  EXPECT_EQ(rdma_reject_ece(id, data, 148), 0);
  EXPECT_EQ(fake::state().reject_reason, 35u);
  EXPECT_TRUE(invalid(rdma_reject_ece(id, data, 149)));
  EXPECT_EQ(rdma_reject(id, data, 1), 0);
  EXPECT_EQ(fake::state().reject_reason, 28u);

  // Verbena's own QPs have no ECE options.
  ibv_qp_init_attr attr{};
  attr.qp_type = IBV_QPT_RC;
  attr.cap = {.max_send_wr = 1,
              .max_recv_wr = 1,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = 0};
  ASSERT_EQ(rdma_create_qp(id, nullptr, &attr), 0);
  EXPECT_TRUE(invalid(rdma_set_local_ece(id, &local_ece)));
  EXPECT_TRUE(invalid(rdma_get_remote_ece(id, &remote_ece)));
  EXPECT_EQ(rdma_connect(id, &param), 0);
  EXPECT_EQ(newest_fake_id().ece_vendor_id, 0u);
  rdma_destroy_qp(id);
  EXPECT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(Cm, CallsForMissingFeaturesFail) {
  rdma_cm_id* id = create_resolved_id();
  ibv_qp_init_attr_ex attr{};
  attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD;
  attr.pd = id->pd;
  const auto not_supported = [](auto result) { return result == -1 && errno == EOPNOTSUPP; };
  EXPECT_TRUE(not_supported(rdma_create_qp_ex(id, &attr)));
  EXPECT_TRUE(not_supported(rsocket(AF_INET, SOCK_STREAM, 0)));
  EXPECT_TRUE(not_supported(rpoll(nullptr, 0, 0)));
  EXPECT_EQ(rdma_destroy_id(id), 0);
}

}  // namespace
