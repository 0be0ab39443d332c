#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "hca/test_pair.h"
#include "link/lanes.h"
#include "link/peer_memory.h"

// Provides this layer's tests with two engines that are connected by a wire and by a lane.
namespace verbena::hca::testing {

// Owns the memory of an access table.
struct OwnedTable {
  struct Memory {
    alignas(64) std::array<std::byte, link::AccessTable::kBytes> bytes{};
  };
  std::unique_ptr<Memory> memory = std::make_unique<Memory>();
  link::AccessTable table = *link::AccessTable::attach(memory->bytes);
};

// Simulates access to the memory of the other process.  In the tests, both ends are in one process.
class SimulatedMemory final : public link::PeerMemory {
 public:
  explicit SimulatedMemory(const link::AccessTable& table) : PeerMemory(table) {}

  bool write(std::uint64_t address, std::span<const std::span<std::byte>> from) override {
    return copy(address, from, [](std::byte* theirs, std::span<std::byte> ours) {
      std::memcpy(theirs, ours.data(), ours.size());
    });
  }
  bool read(std::uint64_t address, std::span<const std::span<std::byte>> to) override {
    return copy(address, to, [](std::byte* theirs, std::span<std::byte> ours) {
      std::memcpy(ours.data(), theirs, ours.size());
    });
  }

  bool exists() override { return true; }

  std::size_t copies = 0;
  bool is_unmapped = false;           // the memory is not accessible
  std::function<void()> before_copy;  // runs before each copy

 private:
  template <class Copy>
  bool copy(std::uint64_t address, std::span<const std::span<std::byte>> parts, Copy copy_part) {
    if (before_copy) before_copy();
    if (is_unmapped) return false;
    ++copies;
    for (const std::span<std::byte> part : parts) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): in tables an address is an integer
      copy_part(reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address)), part);
      address += part.size();
    }
    return true;
  }
};

// Connects two hosts by a wire and, from attach() to remove(), by a lane.
struct LanePair : Pair {
  static constexpr link::Lanes::Id kLane = 7;
  struct alignas(4096) Page {
    std::array<std::byte, 4096> bytes{};
  };

  explicit LanePair(const Options& options = {}) : Pair(options) {
    for (auto* lanes : {&lanes_a, &lanes_b}) lanes->set_addresses({gid_of(1), gid_of(2)});
    a.engine.set_lanes(&lanes_a);
    b.engine.set_lanes(&lanes_b);
    wire.lanes = [this] {
      const std::size_t records_a = stopped_a ? 0 : receive_from(lanes_a, a);
      const std::size_t records_b = stopped_b ? 0 : receive_from(lanes_b, b);
      return records_a + records_b != 0;
    };
  }
  // Detaches the lanes and tables from the engines, because the engines are destroyed after them.
  ~LanePair() {
    a.engine.set_lanes(nullptr);
    b.engine.set_lanes(nullptr);
    a.engine.set_access_table(nullptr);
    b.engine.set_access_table(nullptr);
  }

  // Attaches both hosts to the lane.
  void attach(bool direct = false) {
    const auto bytes = std::as_writable_bytes(std::span(pages.get(), kPages));
    const std::vector<std::uint16_t> ranges{0};
    lanes_a.add(kLane, *link::Lane::attach(bytes, link::Lane::Side::kFirst), ranges).value();
    lanes_b.add(kLane, *link::Lane::attach(bytes, link::Lane::Side::kSecond), ranges).value();
    if (direct) allow_direct_access();
  }
  void allow_direct_access() {
    a.engine.set_access_table(&table_a.table);
    b.engine.set_access_table(&table_b.table);
    lanes_a.for_each([this](link::Lanes::Id, link::Lane& lane) {
      lane.set_peer_memory(&memory_of_b);
      lane.allow_access(true);
    });
    lanes_b.for_each([this](link::Lanes::Id, link::Lane& lane) {
      lane.set_peer_memory(&memory_of_a);
      lane.allow_access(true);
    });
  }
  // Removes the lane from both hosts.
  void remove() {
    lanes_a.for_each([this](link::Lanes::Id, link::Lane& lane) { a.engine.detach_lane(lane); });
    lanes_b.for_each([this](link::Lanes::Id, link::Lane& lane) { b.engine.detach_lane(lane); });
    lanes_a.remove(kLane);
    lanes_b.remove(kLane);
  }
  // Delivers the records that wait in the lanes to the host.  Returns the number of records.
  std::size_t receive_from(link::Lanes& lanes, Host& host) const {
    std::size_t count = 0;
    lanes.for_each([&](link::Lanes::Id, link::Lane& lane) {
      lane.receive(64, [&](const auto& record) {
        host.engine.receive(record, wire.now);
        ++count;
      });
      lane.finish();
    });
    return count;
  }

  static constexpr std::size_t kPages = link::Lane::kBytes / sizeof(Page);
  std::unique_ptr<Page[]> pages = std::make_unique<Page[]>(kPages);
  link::Lanes lanes_a, lanes_b;
  OwnedTable table_a, table_b;
  SimulatedMemory memory_of_a{table_a.table}, memory_of_b{table_b.table};
  bool stopped_a = false, stopped_b = false;  // the host does not read its lanes
};

// Connects two hosts that may access each other's memory.  The constructor carries out the first
// request of host a, because the first request of a connection is always sent as packets.
struct DirectPair : LanePair {
  // The tests access the memory of host b at this offset.
  static constexpr std::size_t kRemoteOffset = 2'000'000;

  explicit DirectPair(const Options& options = {}) : LanePair(options) {
    attach(true);
    rdma(WrOpcode::kWrite, 0, 0, kRemoteOffset, 8, 0).value();
    wire.run();
    a.events();
    b.events();
  }
  std::uint64_t count_at_a(Counter counter) const { return a.engine.counters()[counter]; }
  std::uint64_t count_at_b(Counter counter) const { return b.engine.counters()[counter]; }
};

}  // namespace verbena::hca::testing
