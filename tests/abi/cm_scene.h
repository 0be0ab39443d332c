#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>

#include <cstdint>
#include <cstring>

#include "fake_c_api.h"

// Defines the fixture for tests of the drop-in librdmacm: an event channel, and functions by which
// the fake libverbena reports events.

inline sockaddr_in address(const char* ip, std::uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_port = htons(port);
  inet_pton(AF_INET, ip, &out.sin_addr);
  return out;
}

inline sockaddr* as_sockaddr(sockaddr_in& addr) { return reinterpret_cast<sockaddr*>(&addr); }

inline fake::Id& newest_fake_id() { return fake::state().ids.at(fake::state().newest_id); }

// Adds an event of the id to the id's channel.
inline void report_event(const fake::Id& id, vb_cm_event event) {
  event.cookie = id.cookie;
  fake::Event queued{};
  queued.cm = event;
  fake::state().channels.at(id.channel)->push(queued);
}

inline vb_cm_event make_event(rdma_cm_event_type type, int status = 0) {
  vb_cm_event event{};
  event.type = type;
  event.status = status;
  return event;
}

// Queues a connection request for the newest id.  Returns the handle of the id of the request.
inline vb_handle request_connection() {
  fake::State& library = fake::state();
  vb_cm_event event = make_event(RDMA_CM_EVENT_CONNECT_REQUEST);
  event.new_id = ++library.last_handle;
  event.new_ps = RDMA_PS_TCP;
  event.new_qp_type = IBV_QPT_RC;
  event.private_data[0] = 'x';
  event.private_data_len = 56;
  fake::Id id{};
  id.channel = newest_fake_id().channel;
  id.addresses.bound = 1;
  sockaddr_in peer = address("10.0.0.9", 4000);
  std::memcpy(&id.addresses.dst, &peer, sizeof peer);
  library.ids[event.new_id] = id;
  report_event(newest_fake_id(), event);
  return event.new_id;
}

class Cm : public ::testing::Test {
 protected:
  void SetUp() override {
    channel_ = rdma_create_event_channel();
    ASSERT_NE(channel_, nullptr);
  }
  void TearDown() override {
    rdma_destroy_event_channel(channel_);
    fake::state().injected_errors.clear();
    fake::state().connect_answer = make_event(RDMA_CM_EVENT_ESTABLISHED);
    EXPECT_TRUE(fake::state().ids.empty());
    EXPECT_TRUE(fake::state().qps.empty());
    EXPECT_TRUE(fake::state().cqs.empty());
    EXPECT_TRUE(fake::state().srqs.empty());
    EXPECT_TRUE(fake::state().channels.empty());
  }

  // Creates a synchronous id whose route is resolved.
  rdma_cm_id* create_resolved_id(rdma_port_space ps = RDMA_PS_TCP) {
    rdma_cm_id* id = nullptr;
    sockaddr_in to = address("10.0.0.2", 7471);
    EXPECT_EQ(rdma_create_id(nullptr, &id, nullptr, ps), 0);
    EXPECT_EQ(rdma_resolve_addr(id, nullptr, as_sockaddr(to), 100), 0);
    EXPECT_EQ(rdma_resolve_route(id, 100), 0);
    return id;
  }
  static ibv_qp_init_attr small_qp_attr(ibv_qp_type type) {
    ibv_qp_init_attr attr{};
    attr.cap.max_send_wr = attr.cap.max_recv_wr = 4;
    attr.qp_type = type;
    return attr;
  }

  rdma_event_channel* channel_ = nullptr;
};
