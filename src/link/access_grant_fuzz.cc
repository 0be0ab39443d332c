// The input contains requests, and words that a hostile process writes to its own access table.
// Checks that grant() always returns, and that no granted address range wraps.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "base/error.h"
#include "link/access_grant.h"
#include "sim/fuzz_input.h"

namespace verbena::link {
namespace {

struct Memory {
  alignas(64) std::array<std::byte, AccessTable::kBytes> bytes{};
};

// Writes a row of each kind at a position where a reader looks for the row, or one word at any
// position.
void write_row_or_word(AccessTable& table, Memory& memory, sim::FuzzInput& input) {
  if (input.take<std::uint8_t>() % 4 != 0) {
    const auto place = input.take<std::uint32_t>() % (AccessTable::kBytes / 8) * 8;
    const auto value = input.take<std::uint64_t>();
    std::memcpy(memory.bytes.data() + place, &value, sizeof value);
    return;
  }
  (void)table.publish(RegionRow{.key = input.take<std::uint8_t>(),
                                .access_flags = input.take<std::uint8_t>(),
                                .address = input.take<std::uint64_t>(),
                                .length = input.take<std::uint64_t>(),
                                .iova = input.take<std::uint64_t>()});
  (void)table.publish(QpRow{.qpn = input.take<std::uint8_t>(),
                            .generation = input.take<std::uint8_t>(),
                            .access_flags = input.take<std::uint8_t>(),
                            .pkey = input.take<std::uint16_t>(),
                            .expected_psn = input.take<std::uint32_t>()});
}

void run(sim::FuzzInput input) {
  static const std::unique_ptr<Memory> memory = std::make_unique<Memory>();
  std::memset(memory->bytes.data(), 0, memory->bytes.size());
  AccessTable table = *AccessTable::attach(memory->bytes);
  while (!input.empty()) {
    write_row_or_word(table, *memory, input);
    const AccessRequest request{.target = Qpn{input.take<std::uint8_t>()},
                                .pkey = Pkey{input.take<std::uint16_t>()},
                                .generation = input.take<std::uint8_t>(),
                                .first_psn = Psn{input.take<std::uint32_t>() & kMask24},
                                .psns = input.take<std::uint32_t>(),
                                .access_flags = input.take<std::uint8_t>(),
                                .r_key = input.take<std::uint8_t>(),
                                .remote_address = input.take<std::uint64_t>(),
                                .length = input.take<std::uint32_t>()};
    const auto granted = grant(table, request);
    if (!granted) continue;
    VB_CHECK(request.length != 0 && request.psns != 0);
    VB_CHECK(granted->address <= ~std::uint64_t{0} - (request.length - 1));
  }
}

}  // namespace
}  // namespace verbena::link

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::link::run(verbena::sim::FuzzInput(std::span(data, size)));
  return 0;
}
