#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace verbena::subnet {

// Names the counters of a port's PMA (vol1 16.1.3.5, 16.1.4).
enum class Count : std::uint8_t {
  kSymbolErrors,
  kLinkErrorRecoveries,
  kLinkDowned,
  kRcvErrors,
  kRcvRemotePhysicalErrors,
  kRcvSwitchRelayErrors,
  kXmitDiscards,
  kXmitConstraintErrors,
  kRcvConstraintErrors,
  kLocalLinkIntegrityErrors,
  kExcessiveBufferOverrunErrors,
  kVl15Dropped,
  kXmitData,
  kRcvData,
  kXmitPackets,
  kRcvPackets,
  kXmitWait,
  kUnicastXmitPackets,
  kUnicastRcvPackets,
  kMulticastXmitPackets,
  kMulticastRcvPackets,
  kQp1Dropped,
  kLocalPhysicalErrors,
  kMalformedPackets,
  kBufferOverruns,
  kDlidMappingErrors,
  kVlMappingErrors,
  kLoopingErrors,
  kInactiveDiscards,
  kNeighborMtuDiscards,
  kSwitchLifetimeDiscards,
  kSwitchHoqLifetimeDiscards,
  kCount,  // the number of counters
};

// Names the two views of the counters: the PMA attributes with narrow fields, and
// PortCountersExtended.  The method Set() on one view does not change the other.
enum class CountView : std::uint8_t { kNarrow, kExtended, kCount };

// Holds the counters of a port.  The totals never decrease.  A Set stores a base for the view; the
// value of a counter is its total minus this base.
class Counts {
 public:
  void add(Count count, std::uint64_t n = 1) { totals_[std::to_underlying(count)] += n; }

  // Returns the value of a counter, but not more than the maximum of its field (vol1 16.1.3.5).
  std::uint64_t value(CountView view, Count count, std::uint64_t max) const {
    return std::min(totals_[std::to_underlying(count)] - base(view, count), max);
  }
  void set(CountView view, Count count, std::uint64_t value) {
    bases_[std::to_underlying(view)][std::to_underlying(count)] =
        totals_[std::to_underlying(count)] - value;
  }

 private:
  static constexpr std::size_t kCounts = std::to_underlying(Count::kCount);
  using Values = std::array<std::uint64_t, kCounts>;

  std::uint64_t base(CountView view, Count count) const {
    return bases_[std::to_underlying(view)][std::to_underlying(count)];
  }

  Values totals_{};
  std::array<Values, std::to_underlying(CountView::kCount)> bases_{};
};

}  // namespace verbena::subnet
