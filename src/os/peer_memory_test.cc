#include "os/peer_memory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "os/process.h"
#include "os/test_process.h"

namespace verbena::os {
namespace {

constexpr std::size_t kPage = 4096;

// Runs a child that has a mark and two pages of memory.  The child waits until it is killed.
class Target {
 public:
  enum class Action : std::uint8_t { kWait, kUnmapSecondPage, kProtectPages, kExec };

  explicit Target(Action action = Action::kWait) {
    void* const pages =
        ::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memory_ = static_cast<std::byte*>(pages);
    int to_parent[2], to_child[2];
    EXPECT_EQ(::pipe(to_parent), 0);
    EXPECT_EQ(::pipe(to_child), 0);
    table_ = *create_shared_memory("test", link::AccessTable::kBytes, Writers::kCreator);
    child_ = ::fork();
    if (child_ == 0) run(action, to_parent[1], to_child[0]);
    ::close(to_parent[1]);
    ::close(to_child[0]);
    from_child_ = Fd(to_parent[0]);
    to_child_ = Fd(to_child[1]);
    EXPECT_EQ(::read(from_child_.get(), &place_, sizeof place_), ssize_t{sizeof place_});
  }
  ~Target() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    ::munmap(memory_, 2 * kPage);
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  // Makes the child carry out its action, and waits until the child has done so.
  void carry_out() {
    ASSERT_EQ(::write(to_child_.get(), "x", 1), 1);
    char done = 0;
    (void)::read(from_child_.get(), &done, 1);  // an exec closes the pipe
  }
  auto open(const MemoryMarkPlace& place) const {
    return ProcessMemory::open(
        child_, place,
        *map_shared(table_.fd.get(), link::AccessTable::kBytes, link::AccessTable::kBytes, false));
  }
  std::unique_ptr<ProcessMemory> open() const { return open(place_).value(); }
  const MemoryMarkPlace& place() const { return place_; }
  // Returns an address in the child's memory.
  std::uint64_t address_at(std::size_t offset) const {
    return reinterpret_cast<std::uintptr_t>(memory_) + offset;
  }
  pid_t pid() const { return child_; }

 private:
  [[noreturn]] void run(Action action, int out, int in) const {
    Random random(static_cast<std::uint64_t>(::getpid()));
    const auto mark = MemoryMark::create(random);
    const MemoryMarkPlace place = mark ? mark->place() : MemoryMarkPlace{};
    (void)::fcntl(out, F_SETFD, FD_CLOEXEC);
    (void)::write(out, &place, sizeof place);
    char command = 0;
    while (::read(in, &command, 1) == 1) {
      if (action == Action::kUnmapSecondPage) ::munmap(memory_ + kPage, kPage);
      if (action == Action::kProtectPages) ::mprotect(memory_, 2 * kPage, PROT_READ);
      if (action == Action::kExec) ::execlp("sleep", "sleep", "1000", nullptr);
      (void)::write(out, "x", 1);
    }
    ::_exit(0);
  }

  std::byte* memory_;
  SharedMemory table_;
  pid_t child_ = 0;
  Fd from_child_, to_child_;
  MemoryMarkPlace place_{};
};

std::array<std::span<std::byte>, 1> single_part(std::span<std::byte> bytes) { return {bytes}; }

// Returns two parts that contain all bytes, or one part if there is only one byte.
std::vector<std::span<std::byte>> parts_of(std::span<std::byte> bytes) {
  const std::size_t half = bytes.size() / 2;
  if (half == 0) return {bytes};
  return {bytes.first(half), bytes.subspan(half)};
}

TEST(PeerMemory, WritesAndReadsPartsInTheirOrder) {
  const Target target;
  const auto memory = target.open();
  for (const std::size_t bytes : {1, 7, 8, 9, 16, 100, 4096, 8192}) {
    SCOPED_TRACE(bytes);
    std::vector<std::byte> out(bytes), in(bytes);
    for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(i * 7 + bytes);
    ASSERT_TRUE(memory->write(target.address_at(8192 - bytes), parts_of(out)));
    ASSERT_TRUE(memory->read(target.address_at(8192 - bytes), parts_of(in)));
    EXPECT_EQ(in, out);
  }
}

TEST(PeerMemory, MemoryThatTheTargetHasUnmappedIsAnError) {
  Target target(Target::Action::kUnmapSecondPage);
  const auto memory = target.open();
  std::array<std::byte, 2 * kPage> bytes{};
  EXPECT_TRUE(memory->write(target.address_at(0), single_part(bytes)));
  target.carry_out();
  EXPECT_FALSE(memory->write(target.address_at(0), single_part(bytes)));
  EXPECT_FALSE(memory->read(target.address_at(0), single_part(bytes)));
  EXPECT_TRUE(memory->write(target.address_at(0), single_part(std::span(bytes).first(kPage))));
}

TEST(PeerMemory, MemoryThatTheTargetHasProtectedIsNotWritten) {
  Target target(Target::Action::kProtectPages);
  const auto memory = target.open();
  std::array<std::byte, 8> bytes{};
  target.carry_out();
  EXPECT_FALSE(memory->write(target.address_at(0), single_part(bytes)));
  EXPECT_TRUE(memory->read(target.address_at(0), single_part(bytes)));
}

TEST(PeerMemory, OwnMemoryThatIsInaccessibleIsAnError) {
  const Target target;
  const auto memory = target.open();
  void* const page = ::mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const std::span inaccessible(static_cast<std::byte*>(page), 8);
  EXPECT_FALSE(memory->write(target.address_at(0), single_part(inaccessible)));
  EXPECT_FALSE(memory->read(target.address_at(0), single_part(inaccessible)));
  ::munmap(page, kPage);
}

TEST(PeerMemory, AddressesNearTheTopOfTheAddressSpaceAreErrors) {
  const Target target;
  const auto memory = target.open();
  std::array<std::byte, 16> bytes{};
  for (const std::uint64_t distance : {1, 8, 15, 16, 17, 4096}) {
    EXPECT_FALSE(memory->write(~std::uint64_t{0} - distance + 1, single_part(bytes)));
    EXPECT_FALSE(memory->read(~std::uint64_t{0} - distance + 1, single_part(bytes)));
  }
}

TEST(PeerMemory, AnotherProcessOrAnotherProgramIsNotAccessed) {
  Target target(Target::Action::kExec);
  const auto memory = target.open();
  std::array<std::byte, 8> bytes{};
  EXPECT_TRUE(memory->read(target.address_at(0), single_part(bytes)));
  EXPECT_TRUE(memory->exists());
  target.carry_out();
  EXPECT_FALSE(memory->write(target.address_at(0), single_part(bytes)));
  EXPECT_FALSE(memory->read(target.address_at(0), single_part(bytes)));
  EXPECT_FALSE(memory->exists());

  const Target other;
  auto wrong_value = other.place();
  wrong_value.value ^= 1;
  EXPECT_EQ(other.open(wrong_value).error().code, Errc::kPermission);
  EXPECT_EQ(other.open(target.place()).error().code, Errc::kPermission);
  EXPECT_EQ(other.open({}).error().code, Errc::kPermission);
}

TEST(PeerMemory, ForkedChildHasNoMark) {
  Random random(7);
  const MemoryMark mark = MemoryMark::create(random).value();
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the address is a number
  const void* const page = reinterpret_cast<void*>(std::uintptr_t{mark.place().address});
  EXPECT_TRUE(memory_is_mapped(page, kPage, true));
  EXPECT_EQ(run_in_child([&] { EXPECT_FALSE(memory_is_mapped(page, kPage, false)); }), 0);
}

TEST(PeerMemory, ProcessOfAnotherUserIsNotAccessible) {
  const Target target;
  constexpr uid_t kNobody = 65534;
  constexpr int kNotAllowed = 77;
  const int status = run_in_child([&] {
    if (::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(kNotAllowed);
    EXPECT_EQ(target.open(target.place()).error().code, Errc::kPermission);
  });
  if (status == kNotAllowed) GTEST_SKIP() << "this process may not change its user id";
  EXPECT_EQ(status, 0);
}

TEST(SharedMemory, DescriptorOfMemoryThatOnlyItsCreatorWritesCannotBeMappedWritable) {
  const SharedMemory ours = *create_shared_memory("test", kPage, Writers::kCreator);
  ours.mapping.bytes()[0] = std::byte{42};
  EXPECT_EQ(map_shared(ours.fd.get(), kPage, kPage, false)->bytes()[0], std::byte{42});
  EXPECT_FALSE(map_shared(ours.fd.get(), kPage, kPage, true));
}

}  // namespace
}  // namespace verbena::os
