#include "cli/sa_services.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "wire/sa.h"

namespace verbena::cli {
namespace {

ipc::Service listed_service(std::string_view name, std::uint32_t lease_seconds) {
  ipc::Service service{.service_id = {0x1061bbd}, .pkey = {0xffff}, .lease_seconds = lease_seconds};
  service.gid.bytes[0] = std::byte{0xfe};
  service.gid.bytes[1] = std::byte{0x80};
  service.gid.bytes[15] = std::byte{0x21};
  service.data[63] = std::byte{200};
  std::memcpy(service.name.data(), name.data(), name.size());
  return service;
}

TEST(SaServices, EachServiceHasALine) {
  const std::string longest(64, 'x');
  ipc::ServicesFound found{.services = {listed_service("store", 3600),
                                        listed_service("a\033", wire::ServiceRecord::kLeaseForever),
                                        listed_service(longest, 30)}};
  EXPECT_EQ(as_text(ipc::ServicesFound{.services = {found.services[0]}}),
            "NAME   SERVICE_ID          GID       P_KEY   LEASE\n"
            "store  0x0000000001061bbd  fe80::21  0xffff  1 h 0 min\n");
  found.omitted = 3;
  const std::string text = as_text(found);
  EXPECT_NE(text.find("\na\\x1b "), std::string::npos) << text;
  EXPECT_NE(text.find(" forever\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n" + longest + " "), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("\nand 3 more\n")) << text;
}

TEST(SaServices, JsonHasAllFieldsOfAService) {
  const auto json = nlohmann::json::parse(
      as_json(ipc::ServicesFound{.services = {listed_service("store", 30)}, .omitted = 1}));
  const auto& service = json["services"][0];
  EXPECT_EQ(service["name"], "store");
  EXPECT_EQ(service["service_id"], 0x1061bbd);
  EXPECT_EQ(service["gid"], "fe80::21");
  EXPECT_EQ(service["pkey"], 0xffff);
  EXPECT_EQ(service["lease_seconds"], 30);
  EXPECT_EQ(service["data"].size(), 64u);
  EXPECT_EQ(service["data"][63], 200);
  EXPECT_EQ(json["left_out"], 1);
}

}  // namespace
}  // namespace verbena::cli
