#include "hca/memory.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace verbena::hca {
namespace {

constexpr std::uint64_t kAddressMax = ~std::uint64_t{0};

std::byte* pointer(std::uint64_t address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): verbs name memory by number
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}

// Calls copy(bytes of one element, position in the packet) for every stretch of the range.
template <class Copy>
CopyFault for_stretches(const Memory& memory, const Pd& pd, std::span<const Sge> sges,
                        std::uint64_t offset, std::size_t bytes, std::uint32_t needed, Copy copy) {
  std::size_t done = 0;
  for (const Sge& sge : sges) {
    if (done == bytes) break;
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    const std::size_t part = std::min<std::uint64_t>(sge.length - offset, bytes - done);
    if (sge.address > kAddressMax - offset) return CopyFault::kProtection;
    const auto found = memory.find(pd, sge.lkey, sge.address + offset, part, needed);
    if (!found) return CopyFault::kProtection;
    copy(*found, done);
    done += part;
    offset = 0;
  }
  return done == bytes ? CopyFault::kNone : CopyFault::kTooLong;
}

}  // namespace

Result<void> Memory::check(std::uint64_t address, std::uint64_t length, std::uint64_t iova,
                           std::uint32_t access_flags) {
  using namespace access;
  // Bits 20 to 29 are hints that a device may ignore (IBV_ACCESS_OPTIONAL_RANGE); of the others,
  // zero-based is a matter of `iova`, huge pages one of nobody's.
  constexpr std::uint32_t kHints = 0x3ff00000, kZeroBased = 1u << 5, kHugePages = 1u << 7;
  constexpr std::uint32_t kKnown = kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic |
                                   kWindowBind | kOnDemand | kHints | kZeroBased | kHugePages;
  if (length == 0) return fail(Errc::kInvalidArgument, "a memory region needs a length");
  if (address > kAddressMax - (length - 1) || iova > kAddressMax - (length - 1)) {
    return fail(Errc::kInvalidArgument, "the memory region wraps around the address space");
  }
  if ((access_flags & ~kKnown) != 0) {
    return fail(Errc::kNotSupported, "unknown access flags of a memory region");
  }
  if ((access_flags & (kRemoteWrite | kRemoteAtomic)) != 0 && (access_flags & kLocalWrite) == 0) {
    return fail(Errc::kInvalidArgument, "remote write and atomic need local write");
  }
  return {};
}

void Memory::add(MemoryRegion& region) {
  do {
    region.key = random_.next32();
  } while (region.key == 0 || regions_.find(region.key) != nullptr);
  regions_.insert(region.key, region);
}

void Memory::remove(MemoryRegion& region) { regions_.erase(region.key); }

std::optional<std::span<std::byte>> Memory::find(const Pd& pd, std::uint32_t key,
                                                 std::uint64_t iova, std::uint64_t length,
                                                 std::uint32_t needed) const {
  const MemoryRegion* region = regions_.find(key);
  if (region == nullptr || &region->pd != &pd) return std::nullopt;
  if ((region->access_flags & needed) != needed || iova < region->iova) return std::nullopt;
  const std::uint64_t begin = iova - region->iova;
  if (begin > region->length || length > region->length - begin) return std::nullopt;
  const std::span found(pointer(region->address + begin), static_cast<std::size_t>(length));
  if ((region->access_flags & access::kOnDemand) != 0 && is_there_ != nullptr) {
    const bool writes = (needed & (access::kLocalWrite | access::kRemoteWrite)) != 0;
    if (!is_there_(found.data(), found.size(), writes)) return std::nullopt;
  }
  return found;
}

bool Memory::valid(const Pd& pd, std::span<const Sge> sges, std::uint32_t needed) const {
  return std::ranges::all_of(sges, [&](const Sge& sge) {
    return sge.length == 0 || find(pd, sge.lkey, sge.address, sge.length, needed).has_value();
  });
}

CopyFault Memory::gather(const Pd& pd, std::span<const Sge> sges, std::uint64_t offset,
                         std::span<std::byte> out) const {
  return for_stretches(*this, pd, sges, offset, out.size(), 0,
                       [out](std::span<const std::byte> from, std::size_t at) {
                         std::memcpy(out.data() + at, from.data(), from.size());
                       });
}

CopyFault Memory::scatter(const Pd& pd, std::span<const Sge> sges, std::uint64_t offset,
                          std::span<const std::byte> in) const {
  return for_stretches(*this, pd, sges, offset, in.size(), access::kLocalWrite,
                       [in](std::span<std::byte> to, std::size_t at) {
                         std::memcpy(to.data(), in.data() + at, to.size());
                       });
}

void copy_in_order(std::span<std::byte> to, std::span<const std::byte> from) {
  VB_CHECK(to.size() == from.size());
  if (to.empty()) return;
  const std::size_t bytes = to.size();
  std::byte* const end = to.data() + bytes;
  if (bytes >= 8 && reinterpret_cast<std::uintptr_t>(end) % 8 == 0) {
    std::memcpy(to.data(), from.data(), bytes - 8);
    std::uint64_t last = 0;
    std::memcpy(&last, from.data() + bytes - 8, 8);
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(end - 8))
        .store(last, std::memory_order_release);
  } else {
    std::memcpy(to.data(), from.data(), bytes - 1);
    std::atomic_ref(*(end - 1)).store(from.back(), std::memory_order_release);
  }
}

}  // namespace verbena::hca
