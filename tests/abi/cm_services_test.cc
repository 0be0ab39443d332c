#include <infiniband/ib.h>
#include <netdb.h>

#include <string>
#include <vector>

#include "cm_numbers.h"
#include "cm_scene.h"

// Tests how the drop-in librdmacm finds services (RAI_SA).  rdma-core 60 has the two functions
// below for services; Debian's header does not declare them yet.
extern "C" {
int rdma_resolve_addrinfo(rdma_cm_id* id, const char* node, const char* service,
                          const rdma_addrinfo* hints);
int rdma_query_addrinfo(rdma_cm_id* id, rdma_addrinfo** info);
}

namespace {

constexpr int kBySa = 0x10;   // RAI_SA
constexpr int kByDns = 0x20;  // RAI_DNS

class CmServices : public Cm {
 protected:
  void SetUp() override {
    Cm::SetUp();
    hints_.ai_flags = kBySa;
  }
  void TearDown() override {
    fake::state().services.clear();
    fake::state().queried_service.clear();
    fake::state().has_two_devices = false;
    Cm::TearDown();
  }
  static void add_services(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      vb_service service{};
      service.service_id = 0x1060000 + i;
      service.pkey = 0x8001;
      service.gid[15] = static_cast<std::uint8_t>(i + 1);
      fake::state().services.push_back(service);
    }
  }
  rdma_cm_id* create_id(bool is_synchronous) {
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_create_id(is_synchronous ? nullptr : channel_, &id, nullptr, RDMA_PS_TCP), 0);
    return id;
  }
  std::uint32_t next_event() {
    rdma_cm_event* event = nullptr;
    EXPECT_EQ(rdma_get_cm_event(channel_, &event), 0);
    std::uint32_t type = 0;
    std::memcpy(&type, &event->event, sizeof type);
    EXPECT_EQ(rdma_ack_cm_event(event), 0);
    return type;
  }
  // Checks that the list has the first `count` services of add_services(), and frees it.
  static void expect_services(rdma_addrinfo* list, std::size_t count) {
    std::size_t index = 0;
    for (const rdma_addrinfo* info = list; info != nullptr; info = info->ai_next, ++index) {
      sockaddr_ib to{};
      ASSERT_EQ(info->ai_dst_len, sizeof to);
      std::memcpy(&to, info->ai_dst_addr, sizeof to);
      EXPECT_EQ(info->ai_family, AF_IB);
      EXPECT_EQ(be64toh(to.sib_sid), 0x1060000 + index);
      EXPECT_EQ(be16toh(to.sib_pkey), 0x8001);
      EXPECT_EQ(to.sib_addr.sib_raw[15], index + 1);
    }
    EXPECT_EQ(index, count);
    rdma_freeaddrinfo(list);
  }

  rdma_addrinfo hints_{};
};

TEST_F(CmServices, AnEventReportsThatServicesWereFound) {
  add_services(2);
  rdma_cm_id* id = create_id(false);
  rdma_addrinfo* found = nullptr;
  ASSERT_EQ(rdma_resolve_addrinfo(id, nullptr, "store", &hints_), 0);
  EXPECT_EQ(fake::state().queried_service, "store");
  EXPECT_EQ(next_event(), 16u);
  ASSERT_EQ(rdma_query_addrinfo(id, &found), 0);
  EXPECT_EQ(found->ai_port_space, RDMA_PS_TCP);
  EXPECT_EQ(found->ai_qp_type, IBV_QPT_RC);
  expect_services(found, 2);
  ASSERT_EQ(rdma_query_addrinfo(id, &found), 0) << "a second query";
  expect_services(found, 2);
  EXPECT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(CmServices, ANumberIsAServiceIdAndOtherTextIsAName) {
  add_services(1);
  rdma_cm_id* id = create_id(false);
  const auto query_of = [&](const std::string& text) {
    EXPECT_EQ(rdma_resolve_addrinfo(id, nullptr, text.c_str(), &hints_), 0) << text;
    EXPECT_EQ(next_event(), 16u);
    return fake::state().queried_service;
  };
  EXPECT_EQ(query_of("0x10"), "#16");
  EXPECT_EQ(query_of("18446744073709551615"), "#18446744073709551615");
  EXPECT_EQ(query_of("18446744073709551616"), "18446744073709551616") << "more than 64 bits";
  EXPECT_EQ(query_of("-1"), "-1");
  EXPECT_EQ(query_of("10 of them"), "10 of them");
  EXPECT_EQ(query_of(std::string(63, 'x')), std::string(63, 'x'));
  const auto fails_with = [&](const char* node, const char* service) {
    errno = 0;
    EXPECT_EQ(rdma_resolve_addrinfo(id, node, service, &hints_), -1);
    return errno;
  };
  EXPECT_EQ(fails_with(nullptr, std::string(64, 'x').c_str()), EINVAL);
  EXPECT_EQ(fails_with(nullptr, ""), EINVAL);
  EXPECT_EQ(fails_with(nullptr, nullptr), EINVAL);
  EXPECT_EQ(fails_with("10.0.0.1", "store"), EOPNOTSUPP) << "as on Linux";
  hints_.ai_flags = kBySa | kByDns;
  EXPECT_EQ(fails_with(nullptr, "store"), EINVAL);
  EXPECT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(CmServices, SynchronousIdsWaitForTheServices) {
  rdma_cm_id* id = create_id(true);
  rdma_addrinfo* found = nullptr;
  EXPECT_EQ(rdma_resolve_addrinfo(id, nullptr, "store", &hints_), -1);
  EXPECT_EQ(errno, EADDRNOTAVAIL);
  EXPECT_EQ(rdma_query_addrinfo(id, &found), -1);
  EXPECT_EQ(errno, ENOENT);
  add_services(17);  // more than the buffer of the first query to libverbena can store
  ASSERT_EQ(rdma_resolve_addrinfo(id, nullptr, "store", &hints_), 0);
  ASSERT_EQ(rdma_query_addrinfo(id, &found), 0);
  expect_services(found, 17);
  EXPECT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(CmServices, AServiceIsFoundAfterALookupByTheResolver) {
  add_services(1);
  rdma_cm_id* id = create_id(true);
  rdma_addrinfo* found = nullptr;
  ASSERT_EQ(rdma_resolve_addrinfo(id, "127.0.0.1", "7471", nullptr), 0);
  EXPECT_EQ(rdma_resolve_addrinfo(id, nullptr, "store", &hints_), -1);
  EXPECT_EQ(errno, EBUSY) << "the result of the resolver is not taken";
  ASSERT_EQ(rdma_query_addrinfo(id, &found), 0);
  EXPECT_EQ(found->ai_family, AF_INET);
  rdma_freeaddrinfo(found);
  ASSERT_EQ(rdma_resolve_addrinfo(id, nullptr, "store", &hints_), 0);
  ASSERT_EQ(rdma_query_addrinfo(id, &found), 0);
  expect_services(found, 1);
  EXPECT_EQ(rdma_destroy_id(id), 0);
}

TEST_F(CmServices, WithoutAnIdTheFirstInfinibandPortIsQueried) {
  rdma_addrinfo* found = nullptr;
  add_services(3);
  EXPECT_EQ(rdma_getaddrinfo(nullptr, "store", &hints_, &found), -1);
  EXPECT_EQ(errno, ENODEV) << "the host has no such port";
  fake::state().has_two_devices = true;
  ASSERT_EQ(rdma_getaddrinfo(nullptr, "store", &hints_, &found), 0);
  EXPECT_EQ(fake::state().queried_device, 1u);
  EXPECT_EQ(found->ai_port_space, RDMA_PS_IB);
  expect_services(found, 3);
  fake::state().services.clear();
  EXPECT_EQ(rdma_getaddrinfo(nullptr, "store", &hints_, &found), EAI_NONAME);
  EXPECT_EQ(rdma_getaddrinfo(nullptr, "", &hints_, &found), EAI_SERVICE);
  EXPECT_EQ(rdma_getaddrinfo("10.0.0.1", "store", &hints_, &found), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

}  // namespace
