// Tests the drop-in libraries on a host with two devices, of which the second has two ports.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "fake_c_api.h"

namespace {

constexpr int kFirst = 0, kSecond = 1;

class Devices : public testing::Test {
 protected:
  void SetUp() override {
    fake::state().has_two_devices = true;
    int count = 0;
    list_ = ibv_get_device_list(&count);
    ASSERT_EQ(count, 2);
    for (const int i : {kFirst, kSecond}) contexts_[i] = ibv_open_device(list_[i]);
  }
  void TearDown() override {
    for (ibv_context* context : contexts_) ibv_close_device(context);
    ibv_free_device_list(list_);
    fake::state().has_two_devices = false;
  }

  ibv_device** list_ = nullptr;
  ibv_context* contexts_[2]{};
};

TEST_F(Devices, AreListedWithTheirNames) {
  EXPECT_STREQ(ibv_get_device_name(list_[kFirst]), "verbena0");
  EXPECT_STREQ(ibv_get_device_name(list_[kSecond]), "mlx5_7");
  EXPECT_STREQ(list_[kSecond]->dev_name, "uverbs1");
  EXPECT_EQ(list_[2], nullptr);
  EXPECT_NE(ibv_get_device_guid(list_[kFirst]), ibv_get_device_guid(list_[kSecond]));
  ibv_device** again = ibv_get_device_list(nullptr);
  EXPECT_EQ(again[kSecond], list_[kSecond]) << "each list has the same device objects";
  ibv_free_device_list(again);
}

TEST_F(Devices, AnswerQueriesOfTheirOwnPorts) {
  ibv_device_attr device{};
  ASSERT_EQ(ibv_query_device(contexts_[kSecond], &device), 0);
  EXPECT_EQ(device.phys_port_cnt, 2);
  EXPECT_EQ(device.max_pkeys, 2);
  ibv_port_attr port{};
  EXPECT_EQ(ibv_query_port(contexts_[kFirst], 2, &port), EINVAL);
  EXPECT_EQ(ibv_query_port(contexts_[kSecond], 3, &port), EINVAL);
  ASSERT_EQ(ibv_query_port(contexts_[kFirst], 1, &port), 0);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(port.flags & IBV_QPF_GRH_REQUIRED, IBV_QPF_GRH_REQUIRED);
  EXPECT_EQ(port.lid, 0);
  ASSERT_EQ(ibv_query_port(contexts_[kSecond], 2, &port), 0);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_INFINIBAND);
  EXPECT_EQ(port.flags & IBV_QPF_GRH_REQUIRED, 0);
  EXPECT_EQ(port.lid, 16);
  EXPECT_EQ(port.lmc, 2);
  EXPECT_EQ(port.sm_lid, 3);
  EXPECT_EQ(port.sm_sl, 5);
}

TEST_F(Devices, HaveAGidTableAndAPkeyTableForEachPort) {
  ibv_gid gid{};
  for (std::uint8_t port = 1; port <= 2; ++port) {
    const auto own_pkey = static_cast<std::uint16_t>(0x8000 + port);
    ASSERT_EQ(ibv_query_gid(contexts_[kSecond], port, 0, &gid), 0);
    EXPECT_EQ(gid.raw[15], port == 1 ? 0xa : 0xb);
    __be16 pkey = 0;
    ASSERT_EQ(ibv_query_pkey(contexts_[kSecond], port, 1, &pkey), 0);
    EXPECT_EQ(ntohs(pkey), own_pkey);
    EXPECT_EQ(ibv_get_pkey_index(contexts_[kSecond], port, htons(own_pkey)), 1);
  }
  EXPECT_EQ(ibv_get_pkey_index(contexts_[kFirst], 1, htons(0x8001)), -1);
  ibv_gid_entry entries[8]{};
  ASSERT_EQ(ibv_query_gid_table(contexts_[kSecond], entries, 8, 0), 2);
  EXPECT_EQ(entries[0].port_num, 1u);
  EXPECT_EQ(entries[1].port_num, 2u);
  EXPECT_EQ(entries[1].gid_type, IBV_GID_TYPE_IB);
}

TEST_F(Devices, CreateQueuePairsOnTheDeviceOfTheirContext) {
  for (const int i : {kFirst, kSecond}) {
    ibv_pd* pd = ibv_alloc_pd(contexts_[i]);
    ibv_cq* cq = ibv_create_cq(contexts_[i], 4, nullptr, nullptr, 0);
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.cap = {.max_send_wr = 1,
                .max_recv_wr = 1,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 0};
    init.qp_type = IBV_QPT_UD;
    ibv_qp* qp = ibv_create_qp(pd, &init);
    ASSERT_NE(qp, nullptr);
    EXPECT_EQ(fake::state().qps.rbegin()->second.init.device, static_cast<std::uint32_t>(i));
    ibv_destroy_qp(qp);
    ibv_destroy_cq(cq);
    ibv_dealloc_pd(pd);
  }
}

TEST_F(Devices, AcceptAddressesByLidOnlyOnInfiniband) {
  ibv_ah_attr attr{};
  attr.dlid = 0x123;
  attr.sl = 4;
  attr.src_path_bits = 3;
  attr.port_num = 2;
  ibv_pd* pd = ibv_alloc_pd(contexts_[kSecond]);
  ibv_ah* ah = ibv_create_ah(pd, &attr);
  ASSERT_NE(ah, nullptr);
  const vb_ah_attr& created_attr = fake::state().ah;
  EXPECT_EQ(fake::state().ah_device, 1u);
  EXPECT_EQ(created_attr.dlid, 0x123);
  EXPECT_EQ(created_attr.sl, 4);
  EXPECT_EQ(created_attr.src_path_bits, 3);
  EXPECT_EQ(created_attr.port_num, 2);
  EXPECT_EQ(created_attr.is_global, 0);
  ibv_destroy_ah(ah);
  ibv_dealloc_pd(pd);

  ibv_pd* ethernet = ibv_alloc_pd(contexts_[kFirst]);
  attr.port_num = 1;
  errno = 0;
  EXPECT_EQ(ibv_create_ah(ethernet, &attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_dealloc_pd(ethernet);
}

TEST_F(Devices, ReportTheLidsOfDatagrams) {
  ibv_cq* cq = ibv_create_cq(contexts_[kSecond], 4, nullptr, nullptr, 0);
  vb_wc wc{};
  wc.slid = 0x321;
  wc.sl = 6;
  wc.dlid_path_bits = 2;
  fake::state().cqs.rbegin()->second.completions.push_back(wc);
  ibv_wc received{};
  ASSERT_EQ(ibv_poll_cq(cq, 1, &received), 1);
  EXPECT_EQ(received.slid, 0x321);
  EXPECT_EQ(received.sl, 6);
  EXPECT_EQ(received.dlid_path_bits, 2);
  // A reply goes back to the sender by the same path.
  ibv_ah_attr reply{};
  ASSERT_EQ(ibv_init_ah_from_wc(contexts_[kSecond], 2, &received, nullptr, &reply), 0);
  EXPECT_EQ(reply.dlid, 0x321);
  EXPECT_EQ(reply.sl, 6);
  EXPECT_EQ(reply.src_path_bits, 2);
  EXPECT_EQ(reply.port_num, 2);
  ibv_destroy_cq(cq);
}

TEST_F(Devices, ReturnThePathThatWasSetForAQueuePair) {
  ibv_pd* pd = ibv_alloc_pd(contexts_[kSecond]);
  ibv_cq* cq = ibv_create_cq(contexts_[kSecond], 4, nullptr, nullptr, 0);
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq;
  init.cap.max_send_wr = init.cap.max_recv_wr = 1;
  init.qp_type = IBV_QPT_RC;
  ibv_qp* qp = ibv_create_qp(pd, &init);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.ah_attr.dlid = 0x42;
  attr.ah_attr.sl = 7;
  attr.ah_attr.src_path_bits = 1;
  attr.ah_attr.port_num = 2;
  ASSERT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV), 0);
  ibv_qp_attr found{};
  ASSERT_EQ(ibv_query_qp(qp, &found, IBV_QP_AV, &init), 0);
  EXPECT_EQ(found.ah_attr.dlid, 0x42);
  EXPECT_EQ(found.ah_attr.sl, 7);
  EXPECT_EQ(found.ah_attr.src_path_bits, 1);
  EXPECT_EQ(found.ah_attr.port_num, 2);
  EXPECT_EQ(found.ah_attr.is_global, 0);
  ibv_destroy_qp(qp);
  ibv_destroy_cq(cq);
  ibv_dealloc_pd(pd);
}

TEST_F(Devices, ReportEventsWithTheNumberOfThePort) {
  const auto& devices = fake::state().context_devices;
  // The newest two contexts are those of this test.
  EXPECT_EQ(devices.rbegin()->second, 1u);
  EXPECT_EQ(std::next(devices.rbegin())->second, 0u);
  fake::Event event{};
  event.async = {.type = IBV_EVENT_PORT_ERR, .cookie = 0, .device = 1, .port = 2};
  fake::state().contexts.at(devices.rbegin()->first)->push(event);
  ibv_async_event received{};
  ASSERT_EQ(ibv_get_async_event(contexts_[kSecond], &received), 0);
  EXPECT_EQ(received.event_type, IBV_EVENT_PORT_ERR);
  EXPECT_EQ(received.element.port_num, 2);
  ibv_ack_async_event(&received);
}

// Returns the IP address of the port, as the fake C API expects it.
sockaddr_in address_of(unsigned device, unsigned port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_addr.s_addr = htonl(0x0a000000 | device << 8 | port);
  return out;
}

TEST_F(Devices, BindingAnIdSetsTheDeviceAndPortOfItsAddress) {
  rdma_event_channel* channel = rdma_create_event_channel();
  struct PortOfDevice {
    unsigned device, port;
  };
  for (const auto [device, port] : {PortOfDevice{0, 1}, PortOfDevice{1, 1}, PortOfDevice{1, 2}}) {
    rdma_cm_id* id = nullptr;
    ASSERT_EQ(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP), 0);
    sockaddr_in address = address_of(device, port);
    ASSERT_EQ(rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&address)), 0);
    ASSERT_NE(id->verbs, nullptr);
    EXPECT_EQ(id->verbs->device, list_[device]);
    EXPECT_EQ(id->port_num, port);
    EXPECT_EQ(id->pd->context, id->verbs);
    rdma_destroy_id(id);
  }
  rdma_destroy_event_channel(channel);
}

TEST_F(Devices, PathRecordsOfInfinibandHaveLids) {
  rdma_event_channel* channel = rdma_create_event_channel();
  rdma_cm_id* id = nullptr;
  ASSERT_EQ(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP), 0);
  sockaddr_in address = address_of(1, 2);
  rdma_cm_event* event = nullptr;
  ASSERT_EQ(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&address), 100), 0);
  ASSERT_EQ(rdma_get_cm_event(channel, &event), 0);
  rdma_ack_cm_event(event);
  ASSERT_EQ(rdma_resolve_route(id, 100), 0);
  ASSERT_EQ(rdma_get_cm_event(channel, &event), 0);
  rdma_ack_cm_event(event);
  ASSERT_EQ(id->route.num_paths, 1);
  EXPECT_EQ(ntohs(id->route.path_rec->slid), 16);
  EXPECT_EQ(ntohs(id->route.path_rec->dlid), 0x55);
  EXPECT_EQ(id->route.path_rec->sl, 3);
  EXPECT_EQ(id->port_num, 2);
  rdma_destroy_id(id);
  rdma_destroy_event_channel(channel);
}

// Datagrams to a peer on InfiniBand need the peer's LID.  They need a GRH only if a router is on
// the path.
TEST_F(Devices, DatagramAddressesOfInfinibandHaveLids) {
  rdma_event_channel* channel = rdma_create_event_channel();
  const auto establish = [&](unsigned device, unsigned port) {
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_create_id(channel, &id, nullptr, RDMA_PS_IPOIB), 0);
    sockaddr_in address = address_of(device, port);
    rdma_cm_event* event = nullptr;
    EXPECT_EQ(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&address), 100), 0);
    EXPECT_EQ(rdma_get_cm_event(channel, &event), 0);
    rdma_ack_cm_event(event);
    fake::state().ids.at(fake::state().newest_id).addresses.slid += 2;  // path bits 2
    vb_cm_event answer{};
    answer.type = RDMA_CM_EVENT_ESTABLISHED;
    answer.qp_num = 9;
    answer.qkey = 11;
    fake::state().connect_answer = answer;
    rdma_conn_param param{};
    EXPECT_EQ(rdma_connect(id, &param), 0);
    EXPECT_EQ(rdma_get_cm_event(channel, &event), 0);
    const rdma_ud_param found = event->param.ud;
    rdma_ack_cm_event(event);
    rdma_destroy_id(id);
    return found;
  };
  const rdma_ud_param subnet = establish(1, 2);
  EXPECT_EQ(subnet.qp_num, 9u);
  EXPECT_EQ(subnet.qkey, 11u);
  EXPECT_EQ(subnet.ah_attr.dlid, 0x55);
  EXPECT_EQ(subnet.ah_attr.sl, 3);
  EXPECT_EQ(subnet.ah_attr.src_path_bits, 2);
  EXPECT_EQ(subnet.ah_attr.port_num, 2);
  EXPECT_EQ(subnet.ah_attr.is_global, 0);
  const rdma_ud_param ethernet = establish(0, 1);
  EXPECT_EQ(ethernet.ah_attr.dlid, 0);
  EXPECT_EQ(ethernet.ah_attr.src_path_bits, 0);
  EXPECT_EQ(ethernet.ah_attr.port_num, 1);
  EXPECT_EQ(ethernet.ah_attr.is_global, 1);
  fake::state().connect_answer.qp_num = fake::state().connect_answer.qkey = 0;
  rdma_destroy_event_channel(channel);
}

TEST_F(Devices, AreTheSameInVerbsAndInTheConnectionManager) {
  int count = 0;
  ibv_context** all = rdma_get_devices(&count);
  ASSERT_EQ(count, 2);
  EXPECT_EQ(all[0]->device, list_[0]);
  EXPECT_EQ(all[1]->device, list_[1]);
  EXPECT_EQ(all[2], nullptr);
  rdma_free_devices(all);
}

}  // namespace
