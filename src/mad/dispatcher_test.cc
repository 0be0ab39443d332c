#include "mad/dispatcher.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <vector>

#include "base/random.h"

namespace verbena::mad {
namespace {

using wire::MadHeader;
using wire::Method;
using wire::MgmtClass;

constexpr MadHeader kCmSend{.mgmt_class = MgmtClass::kCommunication,
                            .class_version = 2,
                            .method = Method::kSend,
                            .transaction_id = 77,
                            .attribute_id = 0x10};

class DispatcherTest : public testing::Test {
 protected:
  Received receive(const MadHeader& header) {
    bytes = {};
    wire::encode_to(bytes, header);
    bytes[100] = std::byte{0xee};
    return dispatcher.receive(from, bytes);
  }
  // Returns the header of the answer in the result of receive().
  static MadHeader answer_header(const Received& received) {
    const auto& send = std::get<SendMad>(received);
    return wire::decode_exact<MadHeader>(std::span(send.mad).first<wire::kMadHeaderBytes>());
  }

  Dispatcher dispatcher;
  Address from{.path = {.hop_limit = 3}, .remote_qpn = {1}};
  Mad bytes{};
};

TEST_F(DispatcherTest, DeliversCmMessages) {
  const auto received = receive(kCmSend);
  const auto& delivered = std::get<Delivered>(received);
  EXPECT_EQ(delivered.header, kCmSend);
  EXPECT_EQ(delivered.from, from);
  EXPECT_TRUE(delivered.class_version_known);
  EXPECT_EQ(delivered.data().size(), 232u);
  EXPECT_EQ(delivered.data()[100 - 24], std::byte{0xee});
}

TEST_F(DispatcherTest, MarksMessagesOfAnotherClassVersion) {
  MadHeader header = kCmSend;
  header.class_version = 1;
  const auto received = receive(header);
  EXPECT_FALSE(std::get<Delivered>(received).class_version_known);
  EXPECT_EQ(dispatcher.counters().wrong_class_version, 1u);
}

TEST_F(DispatcherTest, DropsWrongLengths) {
  receive(kCmSend);
  std::vector<std::byte> longer(257);
  std::ranges::copy(bytes, longer.begin());
  for (const std::size_t size : {0u, 1u, 24u, 255u, 257u}) {
    EXPECT_TRUE(
        std::holds_alternative<Dropped>(dispatcher.receive(from, std::span(longer).first(size))));
  }
  EXPECT_EQ(dispatcher.counters().wrong_length, 5u);
}

TEST_F(DispatcherTest, DropsUnknownMads) {
  MadHeader header = kCmSend;
  header.base_version = 2;
  EXPECT_TRUE(std::holds_alternative<Dropped>(receive(header)));
  header = kCmSend;
  header.mgmt_class = MgmtClass::kSnmp;
  EXPECT_TRUE(std::holds_alternative<Dropped>(receive(header)));
  header = kCmSend;
  header.response = true;  // a response without a request
  EXPECT_TRUE(std::holds_alternative<Dropped>(receive(header)));
  const auto& counters = dispatcher.counters();
  EXPECT_EQ(counters.wrong_base_version, 1u);
  EXPECT_EQ(counters.unknown_class, 1u);
  EXPECT_EQ(counters.wrong_method, 1u);
  EXPECT_EQ(counters.delivered, 0u);
}

TEST_F(DispatcherTest, AnswersClassPortInfo) {
  MadHeader header = kCmSend;
  header.method = Method::kGet;
  header.attribute_id = wire::kAttributeClassPortInfo;
  const auto received = receive(header);
  const auto& send = std::get<SendMad>(received);
  EXPECT_EQ(send.to, from);
  header.response = true;
  EXPECT_EQ(answer_header(received), header);
  const auto info =
      wire::decode<wire::ClassPortInfo>(std::span(send.mad).subspan(wire::kMadHeaderBytes));
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->class_version, 2);
  EXPECT_EQ(info->capability_mask, 0x2200) << "RC and SIDR";
  EXPECT_EQ(info->resp_time_value, 17);
  EXPECT_EQ(send.mad[100], std::byte{0});
}

TEST_F(DispatcherTest, AnswersOtherRequestsWithAnErrorStatus) {
  MadHeader header = kCmSend;
  header.method = Method::kGet;
  header.attribute_id = 0x99;
  EXPECT_EQ(answer_header(receive(header)).status, wire::mad_status::kMethodAttributeNotSupported);
  header.method = Method::kSet;
  EXPECT_EQ(answer_header(receive(header)).status, wire::mad_status::kMethodAttributeNotSupported);
  EXPECT_EQ(answer_header(receive(header)).method, Method::kGet);  // GetResp answers a Set, too
  header.class_version = 9;
  EXPECT_EQ(answer_header(receive(header)).status, wire::mad_status::kBadVersion);
  header = {.mgmt_class = MgmtClass::kPerformance, .class_version = 1, .method = Method::kGet};
  EXPECT_EQ(answer_header(receive(header)).status, wire::mad_status::kMethodAttributeNotSupported);
  EXPECT_TRUE(answer_header(receive(header)).response);
}

TEST_F(DispatcherTest, CountsEachMadOnce) {
  const auto& c = dispatcher.counters();
  const auto outcomes = [&] {
    return c.delivered + c.wrong_length + c.wrong_base_version + c.unknown_class + c.wrong_method +
           c.class_port_info + c.request_of_other_version;
  };
  std::uint64_t received = 0;
  dispatcher.receive(from, {});
  EXPECT_EQ(outcomes(), ++received);
  for (const std::uint8_t base : std::array<std::uint8_t, 2>{1, 2}) {
    for (const auto mgmt_class : {MgmtClass::kCommunication, MgmtClass::kPerformance}) {
      for (const std::uint8_t version : std::array<std::uint8_t, 2>{1, 2}) {
        for (const bool response : {false, true}) {
          for (const auto method : {Method::kGet, Method::kSet, Method::kSend, Method::kTrap}) {
            for (const std::uint16_t attribute : std::array<std::uint16_t, 3>{0x01, 0x10, 0x99}) {
              receive({.base_version = base,
                       .mgmt_class = mgmt_class,
                       .class_version = version,
                       .response = response,
                       .method = method,
                       .attribute_id = attribute});
              ASSERT_EQ(outcomes(), ++received);
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(c.received, received);
  EXPECT_EQ(c.class_port_info, 1u);
  EXPECT_EQ(c.request_of_other_version, 6u);
}

TEST(TransactionIds, AreUniqueWithOneUpperHalf) {
  Random random(3);
  TransactionIds ids(random);
  std::set<std::uint64_t> seen;
  const std::uint64_t first = ids.next();
  seen.insert(first);
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t id = ids.next();
    EXPECT_TRUE(seen.insert(id).second);
    EXPECT_EQ(id >> 32, first >> 32);
  }
}

}  // namespace
}  // namespace verbena::mad
