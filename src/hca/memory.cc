#include "hca/memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>

namespace verbena::hca {
namespace {

constexpr std::uint64_t kAddressMax = ~std::uint64_t{0};

constexpr std::uint32_t index_of(std::uint32_t key) { return key >> 8; }

std::byte* pointer(std::uint64_t address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): in verbs an address is an integer
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}

// Splits the range [offset, offset + bytes) of the elements into the parts that are in each
// element.  Calls copy(memory, position of the part in the range) for each part, but skip(position,
// length) for a part in a null region.  copy() returns false if the memory is not accessible.
template <class Copy, class Skip>
CopyFault for_each_part(const Memory& memory, const Pd& pd, std::span<const Sge> sges,
                        std::uint64_t offset, std::size_t bytes, std::uint32_t needed, Copy copy,
                        Skip skip) {
  std::size_t position = 0;
  for (const Sge& sge : sges) {
    if (position == bytes) break;
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    const std::size_t part = std::min<std::uint64_t>(sge.length - offset, bytes - position);
    if (sge.address > kAddressMax - offset) return CopyFault::kProtection;
    if (const auto found = memory.find(pd, sge.lkey, sge.address + offset, part, needed)) {
      if (!copy(*found, position)) return CopyFault::kProtection;
    } else if (memory.is_null_region(pd, sge.lkey)) {
      skip(position, part);
    } else {
      return CopyFault::kProtection;
    }
    position += part;
    offset = 0;
  }
  return position == bytes ? CopyFault::kNone : CopyFault::kTooLong;
}

}  // namespace

Result<void> Memory::check_region(std::uint64_t address, std::uint64_t length, std::uint64_t iova,
                                  std::uint32_t access_flags) {
  using namespace access;
  // Bits 20 to 29 are hints that a device may ignore (IBV_ACCESS_OPTIONAL_RANGE).  kZeroBased is
  // already reflected in `iova`, and huge pages make no difference here.
  constexpr std::uint32_t kHints = 0x3ff00000, kHugePages = 1u << 7;
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

std::uint32_t Memory::unused_key() {
  for (;;) {
    const std::uint32_t key = random_.next32();
    const std::uint32_t index = index_of(key);
    if (index != 0 && regions_.find(index) == nullptr && windows_.find(index) == nullptr)
      return key;
  }
}

// Does not publish regions without remote rights, such as null regions, because peers cannot access
// them.
bool Memory::publish(const MemoryRegion& region) const {
  constexpr std::uint32_t kRemote = access::kRemoteWrite | access::kRemoteRead;
  if (access_table_ == nullptr || (region.access_flags & kRemote) == 0) return true;
  return access_table_->publish(link::RegionRow{.key = region.key,
                                                .access_flags = region.access_flags & kRemote,
                                                .address = region.address,
                                                .length = region.length,
                                                .iova = region.iova,
                                                .domain = domain_of(region.pd)});
}

bool Memory::add(MemoryRegion& region) {
  region.key = unused_key();
  {
    const std::unique_lock lock(regions_mutex_);
    regions_.insert(index_of(region.key), region);
  }
  return publish(region);
}

void Memory::remove(MemoryRegion& region) {
  if (access_table_ != nullptr) access_table_->remove_region(region.key);
  const std::unique_lock lock(regions_mutex_);
  generation_.fetch_add(1, std::memory_order_release);
  regions_.erase(index_of(region.key));
}

bool Memory::replace(MemoryRegion& region, Pd& pd, std::uint64_t address, std::uint64_t length,
                     std::uint64_t iova, std::uint32_t access_flags) {
  const std::uint32_t key = region.key;
  if (access_table_ != nullptr) access_table_->remove_region(key);
  {
    const std::unique_lock lock(regions_mutex_);
    generation_.fetch_add(1, std::memory_order_release);
    std::destroy_at(&region);
    std::construct_at(&region, pd, address, length, iova, access_flags)->key = key;
  }
  return publish(region);
}

void Memory::add(MemoryWindow& window) {
  window.key = unused_key();
  windows_.insert(index_of(window.key), window);
}

void Memory::remove(MemoryWindow& window) {
  unbind(window);
  windows_.erase(index_of(window.key));
}

MemoryRegion* Memory::region_of(std::uint32_t key) const {
  MemoryRegion* const region = regions_.find(index_of(key));
  return region != nullptr && region->key == key ? region : nullptr;
}

void Memory::unbind(MemoryWindow& window) {
  if (window.region != nullptr) --window.region->windows;
  window.region = nullptr;
}

bool Memory::bind(const Pd& pd, QpHandle qp, std::uint32_t r_key, const WindowBinding& binding) {
  using namespace access;
  constexpr std::uint32_t kWrites = kRemoteWrite | kRemoteAtomic;
  MemoryWindow* const window = windows_.find(index_of(r_key));
  if (window == nullptr || &window->pd != &pd) return false;
  const bool is_type_2 = window->type == WindowType::kTwo;
  if (is_type_2 && (window->region != nullptr || binding.length == 0)) return false;
  if (binding.length == 0) {
    unbind(*window);
    window->key = r_key;
    return true;
  }
  // Programs pass local write along with the remote rights.  A window ignores local write.
  const std::uint32_t known_flags =
      kLocalWrite | kWrites | kRemoteRead | (is_type_2 ? kZeroBased : 0);
  if ((binding.access_flags & ~known_flags) != 0) return false;
  // A window may grant rights that its region lacks, but a window for writing needs a region with
  // local write.
  const std::uint32_t needed =
      kWindowBind | ((binding.access_flags & kWrites) != 0 ? kLocalWrite : 0);
  const auto part = find(pd, binding.lkey, binding.address, binding.length, needed);
  if (!part) return false;
  unbind(*window);
  window->key = r_key;
  window->region = region_of(binding.lkey);
  ++window->region->windows;
  window->qp = qp;
  window->iova = (binding.access_flags & kZeroBased) != 0 ? 0 : binding.address;
  window->memory = part->data();
  window->length = binding.length;
  window->access_flags = binding.access_flags;
  return true;
}

bool Memory::invalidate(const Pd& pd, QpHandle qp, std::uint32_t r_key) {
  MemoryWindow* const window = windows_.find(index_of(r_key));
  if (window == nullptr || window->type != WindowType::kTwo || window->region == nullptr) {
    return false;
  }
  if (window->key != r_key || &window->pd != &pd || window->qp != qp) return false;
  unbind(*window);
  return true;
}

std::optional<std::span<std::byte>> Memory::find(const Pd& pd, std::uint32_t key,
                                                 std::uint64_t iova, std::uint64_t length,
                                                 std::uint32_t needed) const {
  const MemoryRegion* region = region_of(key);
  if (region == nullptr || &region->pd != &pd) return std::nullopt;
  if ((region->access_flags & needed) != needed || iova < region->iova) return std::nullopt;
  if ((region->access_flags & MemoryRegion::kNull) != 0) return std::nullopt;
  const std::uint64_t begin = iova - region->iova;
  if (begin > region->length || length > region->length - begin) return std::nullopt;
  return std::span(pointer(region->address + begin), static_cast<std::size_t>(length));
}

std::optional<std::span<std::byte>> Memory::find_remote(const Pd& pd, QpHandle qp,
                                                        std::uint32_t r_key, std::uint64_t iova,
                                                        std::uint64_t length,
                                                        std::uint32_t needed) const {
  const MemoryWindow* const window = windows_.find(index_of(r_key));
  if (window == nullptr) return find(pd, r_key, iova, length, needed);
  if (window->key != r_key || window->region == nullptr || &window->pd != &pd) return std::nullopt;
  if (window->type == WindowType::kTwo && window->qp != qp) return std::nullopt;
  if ((window->access_flags & needed) != needed || iova < window->iova) return std::nullopt;
  const std::uint64_t begin = iova - window->iova;
  if (begin > window->length || length > window->length - begin) return std::nullopt;
  return std::span(window->memory + begin, static_cast<std::size_t>(length));
}

bool Memory::is_null_region(const Pd& pd, std::uint32_t key) const {
  const MemoryRegion* const region = region_of(key);
  return region != nullptr && &region->pd == &pd &&
         (region->access_flags & MemoryRegion::kNull) != 0;
}

bool Memory::are_valid(const Pd& pd, std::span<const Sge> sges, std::uint32_t needed) const {
  return std::ranges::all_of(sges, [&](const Sge& sge) {
    return sge.length == 0 || find(pd, sge.lkey, sge.address, sge.length, needed).has_value() ||
           is_null_region(pd, sge.lkey);
  });
}

CopyFault Memory::gather(const Pd& pd, std::span<const Sge> sges, std::uint64_t offset,
                         std::span<std::byte> out) const {
  return for_each_part(
      *this, pd, sges, offset, out.size(), 0,
      [&](std::span<const std::byte> from, std::size_t at) {
        return read(from, out.subspan(at, from.size()));
      },
      [out](std::size_t at, std::size_t length) { std::memset(out.data() + at, 0, length); });
}

CopyFault Memory::scatter(const Pd& pd, std::span<const Sge> sges, std::uint64_t offset,
                          std::span<const std::byte> in) const {
  return for_each_part(
      *this, pd, sges, offset, in.size(), access::kLocalWrite,
      [&](std::span<std::byte> to, std::size_t at) {
        const std::span from = in.subspan(at, to.size());
        return touch(to, true, [to, from] { std::memcpy(to.data(), from.data(), to.size()); });
      },
      [](std::size_t, std::size_t) {});
}

bool Memory::copy_for_post(const Pd& pd, std::span<const Sge> sges,
                           std::span<std::byte> out) const {
  std::byte* to = out.data();
  for (const Sge& sge : sges) {
    if (sge.length == 0) continue;
    std::optional<std::span<std::byte>> part;
    {
      // The lock does not cover the copy, because a page fault may take long.
      const std::shared_lock lock(regions_mutex_);
      part = find(pd, sge.lkey, sge.address, sge.length, 0);
    }
    if (!part || !read(*part, {to, part->size()})) return false;
    to += part->size();
  }
  return true;
}

bool Memory::write(std::span<std::byte> to, std::span<const std::byte> from) const {
  return touch(to, true, [to, from] { copy_in_order(to, from); });
}

bool Memory::read(std::span<const std::byte> from, std::span<std::byte> to) const {
  return touch(from, false, [to, from] { std::memcpy(to.data(), from.data(), from.size()); });
}

void copy_in_order(std::span<std::byte> to, std::span<const std::byte> from) {
  VB_CHECK(to.size() == from.size());
  if (to.empty()) return;
  const std::size_t bytes = to.size();
  std::byte* const end = to.data() + bytes;
  if (bytes >= 8 && reinterpret_cast<std::uintptr_t>(end) % 8 == 0) {
    std::memcpy(to.data(), from.data(), bytes - 8);
    std::uint64_t last_word = 0;
    std::memcpy(&last_word, from.data() + bytes - 8, 8);
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(end - 8))
        .store(last_word, std::memory_order_release);
  } else {
    std::memcpy(to.data(), from.data(), bytes - 1);
    std::atomic_ref(*(end - 1)).store(from.back(), std::memory_order_release);
  }
}

}  // namespace verbena::hca
