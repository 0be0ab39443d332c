#include "os/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "gtest/gtest.h"
#include "os/process.h"
#include "os/test_process.h"

namespace verbena::os {
namespace {

constexpr std::size_t kPageBytes = 4096;

TEST(SharedMemory, ChangesAreVisibleInBothMappings) {
  const SharedMemory ours = *create_shared_memory("test", 2 * kPageBytes);
  const Mapping theirs = *map_shared(ours.fd.get(), kPageBytes, 4 * kPageBytes, false);
  ASSERT_EQ(theirs.bytes().size(), 2 * kPageBytes);
  EXPECT_EQ(theirs.bytes()[kPageBytes], std::byte{0});
  ours.mapping.bytes()[kPageBytes] = std::byte{42};
  EXPECT_EQ(theirs.bytes()[kPageBytes], std::byte{42});
}

TEST(SharedMemory, FailsWithoutASignalBeyondTheFileSizeLimit) {
  EXPECT_EQ(run_in_child([] {
              const rlimit limit{kPageBytes, kPageBytes};
              ::setrlimit(RLIMIT_FSIZE, &limit);
              const auto large = create_shared_memory("test", 2 * kPageBytes);
              const auto small = create_shared_memory("test", kPageBytes);
              const auto own = map_private(2 * kPageBytes);
              const bool ok = !large && large.error().detail == EFBIG && small && own &&
                              own->bytes().size() == 2 * kPageBytes;
              ::_exit(ok ? 0 : 1);
            }),
            0);
}

TEST(SharedMemory, SizeCannotChange) {
  const SharedMemory ours = *create_shared_memory("test", kPageBytes);
  EXPECT_EQ(::ftruncate(ours.fd.get(), 0), -1);
  EXPECT_EQ(::ftruncate(ours.fd.get(), 2 * kPageBytes), -1);
  EXPECT_EQ(::fcntl(ours.fd.get(), F_ADD_SEALS, F_SEAL_WRITE), -1);
}

TEST(SharedMemory, RefusesFilesThatCouldShrinkOrHaveAWrongSize) {
  const Fd unsealed(::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), kPageBytes), 0);
  EXPECT_EQ(map_shared(unsealed.get(), 1, kPageBytes, true).error().code, Errc::kMalformed);
  const Fd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(map_shared(file.get(), 1, SIZE_MAX, false).error().code, Errc::kMalformed);
  const SharedMemory ours = *create_shared_memory("test", kPageBytes);
  EXPECT_EQ(map_shared(ours.fd.get(), kPageBytes + 1, SIZE_MAX, true).error().code,
            Errc::kMalformed);
  EXPECT_EQ(map_shared(ours.fd.get(), 0, kPageBytes - 1, true).error().code, Errc::kMalformed);
}

TEST(SharedMemory, IsNotInheritedByAForkedChild) {
  const SharedMemory ours = *create_shared_memory("test", kPageBytes);
  const std::byte* address = ours.mapping.bytes().data();
  EXPECT_TRUE(memory_is_mapped(address, kPageBytes, true));
  EXPECT_EQ(run_in_child([&] { EXPECT_FALSE(memory_is_mapped(address, kPageBytes, false)); }), 0);
}

TEST(SharedMemory, ReleasedPagesReadAsZeroesInAllMappings) {
  const auto ours = *create_partly_mapped_memory("test", 4 * kPageBytes, kPageBytes);
  EXPECT_EQ(ours.mapping.bytes().size(), kPageBytes);
  const auto theirs = *map_shared(ours.fd.get(), 4 * kPageBytes, 4 * kPageBytes, true);
  std::ranges::fill(theirs.bytes(), std::byte{1});
  EXPECT_EQ(resident_bytes(ours.fd), 4 * kPageBytes);
  ASSERT_TRUE(release_pages(ours.fd, kPageBytes, 2 * kPageBytes));
  EXPECT_EQ(resident_bytes(ours.fd), 2 * kPageBytes);
  EXPECT_EQ(ours.mapping.bytes()[0], std::byte{1});
  EXPECT_EQ(theirs.bytes()[kPageBytes], std::byte{});
  EXPECT_EQ(theirs.bytes()[3 * kPageBytes - 1], std::byte{});
  EXPECT_EQ(theirs.bytes()[3 * kPageBytes], std::byte{1});
}

}  // namespace
}  // namespace verbena::os
