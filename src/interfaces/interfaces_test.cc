#include "interfaces/interfaces.h"

#include <gtest/gtest.h>

#include "wire/address_text.h"

namespace verbena::interfaces {
namespace {

Interface ethernet() {
  return {.name = "verbena0",
          .index = 2,
          .mtu_bytes = 9000,
          .running = true,
          .hardware_address = std::vector<std::byte>(kEthernetAddressBytes, std::byte{0xa2}),
          .addresses = {{*wire::parse_address("10.31.0.1"), 24},
                        {*wire::parse_address("fd31::1"), 64}}};
}

TEST(Interfaces, TextDescribesEachInterface) {
  Interface ib{.name = "ib0",
               .index = 3,
               .mtu_bytes = 2044,
               .hardware_address = std::vector<std::byte>(kInfinibandAddressBytes, std::byte{1})};
  const std::string text = to_text({ethernet(), ib});
  EXPECT_EQ(text,
            "verbena0 2 9000 running a2a2a2a2a2a2 10.31.0.1/24 fd31::1/64; "
            "ib0 3 2044 down 0101010101010101010101010101010101010101");
  EXPECT_EQ(parse(text), (std::vector{ethernet(), ib}));
}

TEST(Interfaces, HostWithoutInterfacesHasAnEmptyText) {
  EXPECT_EQ(to_text({}), "");
  EXPECT_EQ(parse(""), std::vector<Interface>{});
}

TEST(Interfaces, InvalidTextsAreRefused) {
  for (const char* text :
       {"verbena0", "verbena0 2 9000 running", "verbena0 2 9000 asleep a2a2a2a2a2a2",
        "verbena0 x 9000 running a2a2a2a2a2a2", "verbena0 0 9000 running a2a2a2a2a2a2",
        "verbena0 2 9000 running a2a2", "verbena0 2 9000 running a2a2a2a2a2a",
        "verbena0 2 9000 running a2a2a2a2a2xx", "verbena0 2 9000 running a2a2a2a2a2a2 10.0.0.1",
        "verbena0 2 9000 running a2a2a2a2a2a2 10.0.0.1/33",
        "verbena0 2 9000 running a2a2a2a2a2a2 fd00::1/129",
        "verbena0 2 9000 running a2a2a2a2a2a2 10.0.0/8",
        "sixteen-letters0 2 9000 running a2a2a2a2a2a2"}) {
    EXPECT_FALSE(parse(text)) << text;
  }
}

TEST(Interfaces, DeviceWithALongNameHasAnInterfaceOfAnotherName) {
  EXPECT_EQ(name_for("fifteen-letters", 1), "fifteen-letters");
  EXPECT_EQ(name_for("sixteen-letters0", 1), "rail-1");
}

}  // namespace
}  // namespace verbena::interfaces
