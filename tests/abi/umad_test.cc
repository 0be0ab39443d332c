// Uses libibumad as programs do.  The MAD service of the node runs in a thread of this process.

#include <endian.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/umad.h>
#include <infiniband/umad_str.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "madservice/service.h"
#include "os/agent_name.h"
#include "os/clock.h"
#include "os/system_call.h"
#include "verbena_build.h"
#include "wire/rmpp.h"

namespace verbena {
namespace {

constexpr const char* kNode = "H1";

// Runs a subnet of two HCAs with a cable between them, and the MAD service of the first HCA.
class Fabric {
 public:
  Fabric() {
    subnet::Topology topology;
    topology.connect({.node = topology.add_hca(kNode), .port = 1},
                     {.node = topology.add_hca("H2"), .port = 1});
    subnet::set_missing_guids(topology);
    net_.emplace(std::move(topology));
    service_.emplace(loop_, *net_, VB_BUILD_ID, [this] { deliver_mads(); });
    const std::string fabric = "abi-test-" + std::to_string(::getpid());
    ::setenv("VERBENA_FABRIC", fabric.c_str(), 1);
    ::setenv("VERBENA_NODE", kNode, 1);
    const auto name = os::mad_socket_name({.fabric = fabric, .host = kNode});
    VB_CHECK(name && service_->serve(*name, 0, "verbena0"));
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~Fabric() {
    if (thread_.joinable()) stop();
  }
  void stop() {
    asio::post(loop_, [this] { loop_.stop(); });
    thread_.join();
    service_.reset();
  }

 private:
  void deliver_mads() {
    while (const auto delivery = net_->next_delivery()) {
      if (const auto mad = net_->as_mad(*delivery)) service_->receive(*mad);
    }
  }

  asio::io_context loop_{1};
  std::optional<subnet::Subnet> net_{};
  std::optional<madservice::Service> service_{};
  std::thread thread_{};
};

class UmadTest : public testing::Test {
 protected:
  void SetUp() override {
    fd = umad_open_port("verbena0", 1);
    ASSERT_GE(fd, 0);
  }
  void TearDown() override { umad_close_port(fd); }

  // Holds a buffer of a program: the header of libibumad, and a MAD.
  struct Buffer {
    explicit Buffer(std::size_t mad_bytes) : bytes(umad_size() + mad_bytes) {}
    void* umad() { return bytes.data(); }
    std::span<std::byte> mad() { return std::span(bytes).subspan(umad_size()); }
    wire::MadHeader header() {
      return wire::decode_exact<wire::MadHeader>(mad().first<wire::kMadHeaderBytes>());
    }
    std::vector<std::byte> bytes;
  };

  static Buffer smp(wire::Method method, std::uint16_t attribute, std::uint32_t id) {
    Buffer buffer(wire::kMadBytes);
    wire::encode_to(buffer.mad().first<wire::kMadHeaderBytes>(),
                    wire::MadHeader{.mgmt_class = wire::MgmtClass::kSubnetManagementDirected,
                                    .class_version = 1,
                                    .method = method,
                                    .transaction_id = id,
                                    .attribute_id = attribute});
    std::memset(buffer.mad().data() + 32, 0xff, 4);  // DrSLID and DrDLID
    umad_set_addr(buffer.umad(), 0xffff, 0, 0, 0);
    return buffer;
  }
  int fd = -1;
};

TEST_F(UmadTest, ProgramSeesTheDeviceAndPortOfTheNode) {
  char names[UMAD_MAX_DEVICES][UMAD_CA_NAME_LEN];
  ASSERT_EQ(umad_get_cas_names(names, UMAD_MAX_DEVICES), 1);
  EXPECT_STREQ(names[0], "verbena0");
  umad_ca_t ca;
  ASSERT_EQ(umad_get_ca(nullptr, &ca), 0);
  EXPECT_EQ(ca.numports, 1);
  EXPECT_EQ(ca.node_type, 1U);
  ASSERT_NE(ca.ports[1], nullptr);
  EXPECT_STREQ(ca.ports[1]->link_layer, "InfiniBand");
  EXPECT_GT(ca.ports[1]->pkeys_size, 0U);
  EXPECT_EQ(ca.ports[1]->pkeys[0], 0xffff);
  __be64 guids[2];
  EXPECT_EQ(umad_get_ca_portguids("verbena0", guids, 2), 2);
  EXPECT_EQ(guids[1], ca.ports[1]->port_guid);
  EXPECT_EQ(umad_get_ca_portguids("verbena0", guids, 1), -ENOMEM);
  EXPECT_EQ(umad_release_ca(&ca), 0);
  EXPECT_EQ(umad_get_ca("mlx5_0", &ca), -ENOENT);
  EXPECT_EQ(umad_open_port("mlx5_0", 1), -EINVAL);
  EXPECT_EQ(umad_open_port("verbena0", 2), -EINVAL);
  umad_device_node* list = umad_get_ca_device_list();
  ASSERT_NE(list, nullptr);
  EXPECT_STREQ(list->ca_name, "verbena0");
  EXPECT_EQ(list->next, nullptr);
  umad_free_ca_device_list(list);
}

TEST_F(UmadTest, DescriptorIsReadableOnlyWhileAMadIsQueued) {
  const int agent = umad_register(fd, 0x81, 1, 0, nullptr);
  ASSERT_GE(agent, 0);
  pollfd poll_fd{.fd = umad_get_fd(fd), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&poll_fd, 1, 0), 0);
  EXPECT_EQ(umad_poll(fd, 0), -ETIMEDOUT);
  Buffer request = smp(wire::Method::kGet, 0x11, 9);
  ASSERT_EQ(umad_send(fd, agent, request.umad(), wire::kMadBytes, 1000, 0), 0);
  ASSERT_EQ(::poll(&poll_fd, 1, 5000), 1);
  EXPECT_EQ(poll_fd.revents, POLLIN);
  Buffer answer(wire::kMadBytes);
  int length = wire::kMadBytes;
  EXPECT_EQ(umad_recv(fd, answer.umad(), &length, 0), agent);
  EXPECT_EQ(length, 256);
  EXPECT_EQ(::poll(&poll_fd, 1, 0), 0);
  length = wire::kMadBytes;
  EXPECT_EQ(umad_recv(fd, answer.umad(), &length, 0), -EAGAIN);
  EXPECT_EQ(umad_recv(fd, answer.umad(), &length, 1), -ETIMEDOUT);
}

TEST_F(UmadTest, InvalidCallsFailAsOnLinux) {
  EXPECT_EQ(umad_register(fd, 0x81, 9, 0, nullptr), -EPERM);
  EXPECT_EQ(umad_register_oui(fd, 0x04, 0, nullptr, nullptr), -EINVAL);
  EXPECT_EQ(umad_unregister(fd, 31), -1);
  EXPECT_EQ(errno, EINVAL);
  Buffer request = smp(wire::Method::kGet, 0x11, 9);
  EXPECT_EQ(umad_send(fd, 31, request.umad(), wire::kMadBytes, 1000, 0), -EIO);
  EXPECT_EQ(errno, EINVAL);
  const int agent = umad_register(fd, 0x81, 1, 0, nullptr);
  EXPECT_EQ(umad_send(fd, agent, request.umad(), 35, 1000, 0), -EIO);
  EXPECT_EQ(umad_send(fd, agent, request.umad(), -1, 1000, 0), -EIO);
  umad_reg_attr unknown_flags{};
  unknown_flags.mgmt_class = 4;
  unknown_flags.mgmt_class_version = 1;
  unknown_flags.flags = 8;
  std::uint32_t id = 0;
  EXPECT_EQ(umad_register2(fd, &unknown_flags, &id), EINVAL);
  EXPECT_EQ(unknown_flags.flags, 0U);
}

TEST_F(UmadTest, AnOpenIssmFileSetsIsSmInTheCapabilityMaskOfThePort) {
  constexpr std::uint32_t kIsSm = 2;
  const auto is_sm = [] {
    umad_port_t port;
    EXPECT_EQ(umad_get_port("verbena0", 1, &port), 0);
    umad_release_port(&port);
    return (be32toh(port.capmask) & kIsSm) != 0;
  };
  // The service may learn that the file is open only after open() has returned.
  const auto changes_to = [&](bool wanted) {
    const Time deadline = os::now() + std::chrono::seconds(10);
    while (is_sm() != wanted && os::now() < deadline) std::this_thread::yield();
    return is_sm() == wanted;
  };
  char path[256];
  ASSERT_EQ(umad_get_issm_path("verbena0", 1, path, sizeof path), 0);
  EXPECT_FALSE(is_sm());
  const int file = ::open(path, O_NONBLOCK);
  ASSERT_GE(file, 0);
  EXPECT_TRUE(changes_to(true));
  ::close(file);
  EXPECT_TRUE(changes_to(false));
}

// A program may close the descriptor of umad_get_fd().  Then a port that is opened later may get a
// descriptor with the same number.  That port must work, too.
TEST_F(UmadTest, PortsCanBeOpenedAfterADescriptorWasClosed) {
  // Makes a plain system call, because ThreadSanitizer has not seen how the descriptor was created,
  // and would report close().
  ASSERT_EQ(os::system_call(SYS_close, fd), 0);
  std::vector<int> ports;
  for (int i = 0; i < 8; ++i) ports.push_back(umad_open_port("verbena0", 1));
  for (const int port : ports) {
    EXPECT_GE(umad_register(port, 0x81, 1, 0, nullptr), 0) << port;
    EXPECT_NE(::fcntl(port, F_GETFD), -1) << port;
    EXPECT_EQ(umad_close_port(port), 0);
  }
}

TEST_F(UmadTest, ThreadThatWaitsForAMadCanBeCancelled) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer keeps the stack of a cancelled thread poisoned";
#endif
  pthread_t thread{};
  const auto wait = [](void* port) -> void* {
    Buffer buffer(wire::kMadBytes);
    int length = wire::kMadBytes;
    umad_recv(*static_cast<int*>(port), buffer.umad(), &length, -1);
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, nullptr, wait, &fd), 0);
  ASSERT_EQ(pthread_cancel(thread), 0);
  void* result = nullptr;
  ASSERT_EQ(pthread_join(thread, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
}

TEST(UmadStringTest, NamesAreTheSameAsInDebiansLibibumad) {
  EXPECT_STREQ(umad_class_str(3), "SubnAdm");
  EXPECT_STREQ(umad_class_str(0x32), "Vendor");
  EXPECT_STREQ(umad_method_str(3, 0x92), "GetTableResp");
  EXPECT_STREQ(umad_method_str(1, 0x81), "GetResp");
  EXPECT_STREQ(umad_attribute_str(0x81, htobe16(0x15)), "PortInfo");
  EXPECT_STREQ(umad_attribute_str(3, htobe16(0x35)), "PathRecord");
  EXPECT_STREQ(umad_common_mad_status_str(htobe16(1)), "Busy");
  EXPECT_STREQ(umad_sa_mad_status_str(htobe16(0x300)), "No Records");
}

// This test is the last one, because it ends the fabric while a port is open.
TEST(UmadFabricTest, ReceivingOnAPortWaitsForItsTimeoutAfterTheFabricHasEnded) {
  auto fabric = std::make_unique<Fabric>();
  const int fd = umad_open_port(nullptr, 0);
  ASSERT_GE(fd, 0);
  fabric.reset();
  std::vector<std::byte> buffer(umad_size() + wire::kMadBytes);
  int length = wire::kMadBytes;
  EXPECT_EQ(umad_recv(fd, buffer.data(), &length, 20), -ETIMEDOUT);
  EXPECT_EQ(umad_register(fd, 0x81, 1, 0, nullptr), -EPERM);
  EXPECT_EQ(umad_close_port(fd), 0);
  EXPECT_EQ(umad_open_port(nullptr, 0), -EOPNOTSUPP);
}

}  // namespace
}  // namespace verbena

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  auto fabric = std::make_unique<verbena::Fabric>();
  // The last test makes a fabric of its own.  So this fabric must end before that test.
  struct FabricEnder : testing::EmptyTestEventListener {
    explicit FabricEnder(std::unique_ptr<verbena::Fabric>& running_fabric)
        : fabric(running_fabric) {}
    void OnTestSuiteStart(const testing::TestSuite& suite) override {
      if (std::strcmp(suite.name(), "UmadFabricTest") == 0) fabric.reset();
    }
    std::unique_ptr<verbena::Fabric>& fabric;
  };
  testing::UnitTest::GetInstance()->listeners().Append(new FabricEnder(fabric));
  return RUN_ALL_TESTS();
}
