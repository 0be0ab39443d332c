#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <poll.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>

#include "verbs_scene.h"
#include "yield_processor.h"

// Tests the drop-in libibverbs: devices, domains, memory, completions and events.

namespace {

TEST_F(Verbs, TheDeviceIsListedWithItsGuidInNetworkOrder) {
  int devices = -1;
  ibv_device** list = ibv_get_device_list(&devices);
  ASSERT_EQ(devices, 1);
  EXPECT_EQ(list[1], nullptr);
  EXPECT_STREQ(ibv_get_device_name(list[0]), "verbena0");
  EXPECT_STREQ(list[0]->dev_name, "uverbs0");
  EXPECT_STREQ(list[0]->ibdev_path, "/sys/class/infiniband/verbena0");
  EXPECT_EQ(be64toh(ibv_get_device_guid(list[0])), 0x0011223344556677u);
  // libmlx5 and libefa compare this pointer with their own operations.
  void* ops = nullptr;
  std::memcpy(&ops, reinterpret_cast<const char*>(list[0]) + 664, sizeof ops);
  EXPECT_NE(ops, nullptr);
  ibv_free_device_list(list);
}

TEST_F(Verbs, WithoutAnAgentTheDeviceListFails) {
  fake::state().injected_errors["vb_device_query"] = ECONNREFUSED;
  int devices = -1;
  errno = 0;
  EXPECT_EQ(ibv_get_device_list(&devices), nullptr);
  EXPECT_EQ(errno, ECONNREFUSED);
  EXPECT_EQ(devices, 0);
}

TEST_F(Verbs, ALibraryOfAnotherBuildIsRefused) {
  fake::state().build_id = "of yesterday";
  EXPECT_EQ(ibv_get_device_list(nullptr), nullptr);
  EXPECT_EQ(errno, ELIBBAD);
  fake::state().build_id.clear();
}

TEST_F(Verbs, TheShorterPortStructureOfOldProgramsIsNotWrittenPastItsEnd) {
  struct {
    ibv_port_attr attr;
  } port;
  std::memset(&port, 0xaa, sizeof port);
  using Old = int (*)(ibv_context*, std::uint8_t, void*);
  const auto old_query_port = reinterpret_cast<Old>(dlsym(RTLD_DEFAULT, "ibv_query_port"));
  ASSERT_EQ(old_query_port(context_, 1, &port), 0);
  EXPECT_EQ(port.attr.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(port.attr.flags, IBV_QPF_GRH_REQUIRED);
  EXPECT_EQ(port.attr.port_cap_flags2, 0xaaaa);
}

TEST_F(Verbs, TheOnlyPortIsEthernet) {
  ibv_port_attr attr;
  std::memset(&attr, 0xaa, sizeof attr);
  ASSERT_EQ(ibv_query_port(context_, 1, &attr), 0);
  EXPECT_EQ(attr.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(attr.gid_tbl_len, 4);
  EXPECT_EQ(attr.lid, 0);
  EXPECT_EQ(attr.port_cap_flags2, 0);
  EXPECT_EQ(ibv_query_port(context_, 2, &attr), EINVAL);
}

TEST_F(Verbs, DeviceAttributesFitIntoInts) {
  ibv_device_attr_ex attr{};
  ASSERT_EQ(ibv_query_device_ex(context_, nullptr, &attr), 0);
  EXPECT_EQ(attr.orig_attr.max_cqe, INT32_MAX);
  EXPECT_EQ(attr.orig_attr.max_qp, 1000);
  EXPECT_EQ(attr.phys_port_cnt_ex, 1u);
}

TEST_F(Verbs, QueriesOfTheGidTableHandleEmptyEntriesAndItsEnd) {
  ibv_gid gid{};
  EXPECT_EQ(ibv_query_gid(context_, 1, 0, &gid), 0);
  EXPECT_EQ(gid.raw[0], 0xfe);
  EXPECT_EQ(ibv_query_gid(context_, 1, 1, &gid), 0);  // an empty entry is all zero
  EXPECT_EQ(gid.global.subnet_prefix, 0u);
  EXPECT_EQ(ibv_query_gid(context_, 1, 4, &gid), -1);
  EXPECT_EQ(errno, EINVAL);

  ibv_gid_entry entry{};
  EXPECT_EQ(ibv_query_gid_ex(context_, 1, 1, &entry, 0), ENODATA);
  EXPECT_EQ(ibv_query_gid_ex(context_, 1, 2, &entry, 0), 0);
  EXPECT_EQ(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
  EXPECT_EQ(entry.ndev_ifindex, 2u);

  ibv_gid_entry entries[4];
  EXPECT_EQ(ibv_query_gid_table(context_, entries, 4, 0), 3);
  EXPECT_EQ(entries[1].gid_index, 2u);
  EXPECT_EQ(ibv_query_gid_table(context_, entries, 2, 0), -EINVAL);
}

TEST_F(Verbs, PkeysAreFoundInNetworkOrder) {
  __be16 pkey = 0;
  EXPECT_EQ(ibv_query_pkey(context_, 1, 0, &pkey), 0);
  EXPECT_EQ(pkey, htobe16(0xffff));
  EXPECT_EQ(ibv_get_pkey_index(context_, 1, htobe16(0xffff)), 0);
  EXPECT_EQ(ibv_get_pkey_index(context_, 1, htobe16(0x7fff)), -1);
}

TEST_F(Verbs, OptionalAccessFlagsAreIgnored) {
  char memory[64];
  unsigned int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
  ibv_mr* mr = ibv_reg_mr(pd_, memory, sizeof memory, access);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(fake::state().mr_access, IBV_ACCESS_LOCAL_WRITE);
  EXPECT_EQ(mr->lkey, 17u);
  EXPECT_EQ(mr->rkey, 18u);
  EXPECT_EQ(mr->addr, memory);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(Verbs, CompletionVectorMustExist) {
  EXPECT_EQ(ibv_create_cq(context_, 8, nullptr, nullptr, 1), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_create_cq(context_, 0, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(Verbs, APollReturnsAtMostTheRequestedNumberOfCompletions) {
  ibv_cq* cq = ibv_create_cq(context_, 100, nullptr, nullptr, 0);
  EXPECT_EQ(cq->cqe, 101);  // the actual size
  for (std::uint64_t i = 0; i < 50; ++i) {
    vb_wc wc{};
    wc.wr_id = i;
    wc.opcode = IBV_WC_RECV;
    wc.wc_flags = IBV_WC_WITH_IMM;
    wc.imm = 0x01020304;
    fake_cq(cq).completions.push_back(wc);
  }
  ibv_wc wc[64];
  ASSERT_EQ(ibv_poll_cq(cq, 40, wc), 40);
  EXPECT_EQ(wc[39].wr_id, 39u);
  EXPECT_EQ(wc[39].imm_data, htobe32(0x01020304));
  EXPECT_EQ(ibv_poll_cq(cq, 64, wc), 10);
  EXPECT_EQ(ibv_poll_cq(cq, 64, wc), 0);
  EXPECT_EQ(ibv_resize_cq(cq, 0), EINVAL);
  EXPECT_EQ(ibv_resize_cq(cq, 4), 0);
  EXPECT_EQ(cq->cqe, 5);  // the actual size
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, DestroyingACqWaitsUntilItsEventsAreAcknowledged) {
  ibv_comp_channel* channel = ibv_create_comp_channel(context_);
  int mark = 0;
  ibv_cq* cq = ibv_create_cq(context_, 8, &mark, channel, 0);
  EXPECT_EQ(ibv_destroy_comp_channel(channel), EBUSY);
  for (int i = 0; i < 3; ++i) push_completion_event(cq);

  pollfd readable{.fd = channel->fd, .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&readable, 1, 0), 1);
  EXPECT_EQ(readable.revents, POLLIN);
  ibv_cq* found = nullptr;
  void* cq_context = nullptr;
  for (int i = 0; i < 2; ++i) {  // the third event is never read, so it needs no acknowledgement
    ASSERT_EQ(ibv_get_cq_event(channel, &found, &cq_context), 0);
    EXPECT_EQ(found, cq);
    EXPECT_EQ(cq_context, &mark);
  }
  ibv_ack_cq_events(cq, 1);

  std::atomic<bool> acknowledged = false;
  std::thread destroyer([&] {
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
    EXPECT_TRUE(acknowledged);
  });
  for (bool is_destroyed = false; !is_destroyed;) {
    const std::scoped_lock lock(fake::state().mutex);
    is_destroyed = fake::state().cqs.empty();
  }
  fake::yield_processor();
  acknowledged = true;
  ibv_ack_cq_events(cq, 1);
  destroyer.join();
  EXPECT_EQ(poll(&readable, 1, 0), 0);
  EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

TEST_F(Verbs, AnEventOfADestroyedCqIsDropped) {
  ibv_comp_channel* channel = ibv_create_comp_channel(context_);
  ibv_cq* cq = ibv_create_cq(context_, 8, nullptr, channel, 0);
  fake::Event event{};
  event.cookie = fake_cq(cq).cookie;
  fake::Queue& queue = *fake::state().channels.at(fake_cq(cq).channel);
  ASSERT_EQ(ibv_destroy_cq(cq), 0);
  queue.push(event);  // as if another thread had read the event before the CQ was destroyed
  ASSERT_EQ(fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
  void* cq_context = nullptr;
  EXPECT_EQ(ibv_get_cq_event(channel, &cq, &cq_context), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

TEST_F(Verbs, DestroyingAQpWaitsForItsAsyncEvent) {
  ibv_cq* cq = ibv_create_cq(context_, 8, nullptr, nullptr, 0);
  ibv_qp* qp = create_qp(cq, IBV_QPT_RC);
  fake::Event event{};
  event.async = {
      .type = IBV_EVENT_COMM_EST, .cookie = fake_qp(qp).init.cookie, .device = 0, .port = 0};
  fake::Queue& events = *fake::state().contexts.at(fake_qp(qp).init.context);
  events.push(event);
  event.async = {.type = IBV_EVENT_PORT_ERR, .cookie = 0, .device = 0, .port = 1};
  events.push(event);

  ibv_async_event received{};
  ASSERT_EQ(ibv_get_async_event(context_, &received), 0);
  EXPECT_EQ(received.event_type, IBV_EVENT_COMM_EST);
  EXPECT_EQ(received.element.qp, qp);
  ibv_async_event port{};
  ASSERT_EQ(ibv_get_async_event(context_, &port), 0);
  EXPECT_EQ(port.event_type, IBV_EVENT_PORT_ERR);
  EXPECT_EQ(port.element.port_num, 1);
  ibv_ack_async_event(&port);

  std::atomic<bool> acknowledged = false;
  std::thread destroyer([&] {
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_TRUE(acknowledged);
  });
  for (bool is_destroyed = false; !is_destroyed;) {
    const std::scoped_lock lock(fake::state().mutex);
    is_destroyed = fake::state().qps.empty();
  }
  fake::yield_processor();
  acknowledged = true;
  ibv_ack_async_event(&received);
  destroyer.join();
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST_F(Verbs, EachContextHasItsOwnDescriptorAndEvents) {
  ibv_context* other = ibv_open_device(context_->device);
  ASSERT_NE(other, nullptr);
  EXPECT_NE(other->async_fd, context_->async_fd);
  ibv_pd* pd = ibv_alloc_pd(other);
  ibv_cq* cq = ibv_create_cq(other, 8, nullptr, nullptr, 0);
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = cq;
  attr.qp_type = IBV_QPT_RC;
  ibv_qp* qp = ibv_create_qp(pd, &attr);
  ibv_srq_init_attr srq_attr{.srq_context = nullptr,
                             .attr = {.max_wr = 1, .max_sge = 1, .srq_limit = 0}};
  ibv_srq* srq = ibv_create_srq(pd, &srq_attr);
  ASSERT_NE(qp, nullptr);
  ASSERT_NE(srq, nullptr);
  const vb_handle other_context = fake_qp(qp).init.context;
  EXPECT_EQ(fake_cq(cq).context, other_context);
  EXPECT_EQ(fake::state().srqs.begin()->second.context, other_context);
  fake::Queue& events = *fake::state().contexts.at(other_context);
  EXPECT_EQ(events.fd(), other->async_fd);
  fake::Event event{};
  event.async = {
      .type = IBV_EVENT_COMM_EST, .cookie = fake_qp(qp).init.cookie, .device = 0, .port = 0};
  events.push(event);
  ASSERT_EQ(fcntl(context_->async_fd, F_SETFL, O_NONBLOCK), 0);
  ibv_async_event received{};
  EXPECT_EQ(ibv_get_async_event(context_, &received), -1);
  EXPECT_EQ(errno, EAGAIN);
  ASSERT_EQ(ibv_get_async_event(other, &received), 0);
  EXPECT_EQ(received.element.qp, qp);
  ibv_ack_async_event(&received);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  EXPECT_EQ(ibv_close_device(other), 0);
  EXPECT_FALSE(fake::state().contexts.contains(other_context))
      << "closing the context must destroy its queue of events";
}

TEST_F(Verbs, AParentDomainCanBeUsedInPlaceOfItsProtectionDomain) {
  ibv_td_init_attr td_attr{};
  ibv_td* td = ibv_alloc_td(context_, &td_attr);
  ASSERT_NE(td, nullptr);
  ibv_parent_domain_init_attr attr{};
  attr.pd = pd_;
  attr.td = td;
  ibv_pd* domain = ibv_alloc_parent_domain(context_, &attr);
  ASSERT_NE(domain, nullptr);
  EXPECT_EQ(ibv_dealloc_td(td), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(pd_), EBUSY);
  ibv_cq_init_attr_ex cq_attr{};
  cq_attr.cqe = 8;
  cq_attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
  cq_attr.parent_domain = pd_;  // pd_ is not a parent domain
  EXPECT_EQ(ibv_create_cq_ex(context_, &cq_attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  cq_attr.parent_domain = domain;
  ibv_cq_ex* cq = ibv_create_cq_ex(context_, &cq_attr);
  ASSERT_NE(cq, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(domain), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
  attr.pd = domain;
  EXPECT_EQ(ibv_alloc_parent_domain(context_, &attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_dealloc_pd(domain), 0);
  EXPECT_EQ(ibv_dealloc_td(td), 0);
}

TEST_F(Verbs, AQpKeepsItsParentDomainAndBindsWindowsOfItsProtectionDomain) {
  ibv_parent_domain_init_attr attr{};
  attr.pd = pd_;
  ibv_pd* domain = ibv_alloc_parent_domain(context_, &attr);
  ASSERT_NE(domain, nullptr);
  ibv_cq* cq = ibv_create_cq(context_, 8, nullptr, nullptr, 0);
  ibv_qp_init_attr qp_attr{};
  qp_attr.send_cq = qp_attr.recv_cq = cq;
  qp_attr.qp_type = IBV_QPT_RC;
  ibv_qp* qp = ibv_create_qp(domain, &qp_attr);
  ASSERT_NE(qp, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(domain), EBUSY);
  char memory[64];
  ibv_mr* mr = ibv_reg_mr(pd_, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
  ibv_mw* mw = ibv_alloc_mw(pd_, IBV_MW_TYPE_1);
  ibv_mw_bind bind{};
  bind.bind_info = {.mr = mr, .addr = 0, .length = 8, .mw_access_flags = IBV_ACCESS_REMOTE_READ};
  EXPECT_EQ(ibv_bind_mw(qp, mw, &bind), 0);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_EQ(ibv_dealloc_pd(domain), 0);
}

TEST_F(Verbs, ReregisteringChangesOnlyTheAttributesThatItsFlagsSelect) {
  char memory[64];
  ibv_mr* mr = ibv_reg_mr(pd_, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
  ibv_pd* other = ibv_alloc_pd(context_);
  ASSERT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD, other,
                         memory + 8, 16, 0),
            0);
  EXPECT_EQ(mr->pd, other);
  EXPECT_EQ(mr->addr, memory + 8);
  EXPECT_EQ(mr->length, 16u);
  EXPECT_EQ(fake::state().rereg.length, 16u);
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, nullptr, 16, 0),
            IBV_REREG_MR_ERR_INPUT);
  fake::state().injected_errors["vb_mr_reregister"] = EFAULT;
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd_, nullptr, 0, 0), IBV_REREG_MR_ERR_CMD);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(ibv_rereg_mr(mr, 0x100, nullptr, nullptr, 0, 0), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(mr->pd, other);  // the PD has not changed

  // The PD is not read if it does not change.
  fake::state().injected_errors.clear();
  auto* const invalid_pd = reinterpret_cast<ibv_pd*>(memory + 1);
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, invalid_pd, nullptr, 0, 0), 0);
  EXPECT_EQ(fake::state().rereg.pd, 0u);
  EXPECT_EQ(mr->pd, other);

  ibv_sge sge{.addr = 1, .length = 2, .lkey = 3};
  EXPECT_EQ(
      ibv_advise_mr(other, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1),
      0);
  EXPECT_EQ(fake::state().prefetched.at(0).lkey, 3u);
  EXPECT_EQ(ibv_advise_mr(other, IBV_ADVISE_MR_ADVICE_PREFETCH, 8, &sge, 1), EINVAL);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_dealloc_pd(other), 0);
}

TEST_F(Verbs, CallsForMissingFeaturesFail) {
  ibv_cq_init_attr_ex cq_attr{};
  cq_attr.cqe = 8;
  cq_attr.wc_flags = IBV_WC_EX_WITH_CVLAN;
  EXPECT_EQ(ibv_create_cq_ex(context_, &cq_attr), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_qp_init_attr_ex qp_attr{};
  qp_attr.qp_type = IBV_QPT_UD;
  qp_attr.pd = pd_;
  qp_attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  qp_attr.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ;
  EXPECT_EQ(ibv_create_qp_ex(context_, &qp_attr), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(ibv_import_device(3), nullptr);
  // Functions with the symbol version of 2006 (IBVERBS_1.0) also fail with an errno.
  using Open = void* (*)(void*);
  const auto open_1_0 =
      reinterpret_cast<Open>(dlvsym(RTLD_DEFAULT, "ibv_open_device", "IBVERBS_1.0"));
  ASSERT_NE(open_1_0, nullptr);
  errno = 0;
  EXPECT_EQ(open_1_0(nullptr), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(Verbs, TheBoardIdIsReadable) {
  using Read = int (*)(const char*, const char*, char*, std::size_t);
  const auto read = reinterpret_cast<Read>(dlsym(RTLD_DEFAULT, "ibv_read_sysfs_file"));
  char text[64];
  EXPECT_EQ(read("/sys/class/infiniband/verbena0", "board_id", text, sizeof text), 8);
  EXPECT_STREQ(text, "verbena0");
  EXPECT_EQ(read("/sys/class/infiniband/verbena0", "nothing", text, sizeof text), -1);
  EXPECT_EQ(read("/sys/class/infiniband/other0", "board_id", text, sizeof text), -1);
}

// rping cancels its thread inside ibv_get_cq_event().
TEST_F(Verbs, AThreadThatWaitsForAnEventMayBeCancelled) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer keeps the stack of a cancelled thread poisoned";
#endif
  ibv_comp_channel* channel = ibv_create_comp_channel(context_);
  std::thread for_completion([&] {
    ibv_cq* cq = nullptr;
    void* cq_context = nullptr;
    ibv_get_cq_event(channel, &cq, &cq_context);
  });
  std::thread for_async([&] {
    ibv_async_event event{};
    ibv_get_async_event(context_, &event);
  });
  fake::yield_processor();
  pthread_cancel(for_completion.native_handle());
  pthread_cancel(for_async.native_handle());
  for_completion.join();
  for_async.join();
  EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

}  // namespace
