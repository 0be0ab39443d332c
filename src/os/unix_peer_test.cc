#include "os/unix_peer.h"

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>
#include <string_view>

#include "os/fd.h"

namespace verbena::os {
namespace {

// Every process of this test has mapped the C library.
constexpr std::string_view kMapped = "/libc.so";
constexpr std::string_view kNotMapped = "/libno-process-has-mapped-this.so";

struct UnixPair {
  Fd first{}, second{};
};

UnixPair unix_pair() {
  std::array<int, 2> fds{-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()), 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

std::uint64_t inode_of(const Fd& fd) {
  struct stat status {};
  EXPECT_EQ(::fstat(fd.get(), &status), 0);
  return status.st_ino;
}

TEST(UnixPeer, EachEndOfASocketPairIsThePeerOfTheOther) {
  const UnixPair pair = unix_pair();
  EXPECT_EQ(unix_peer_inode(pair.first.get()), inode_of(pair.second));
  EXPECT_EQ(unix_peer_inode(pair.second.get()), inode_of(pair.first));
}

TEST(UnixPeer, UnconnectedSocketsAndOtherDescriptorsHaveNoPeer) {
  const Fd unconnected(::socket(AF_UNIX, SOCK_DGRAM, 0));
  EXPECT_EQ(unix_peer_inode(unconnected.get()), 0U);
  const Fd internet(::socket(AF_INET, SOCK_DGRAM, 0));
  EXPECT_EQ(unix_peer_inode(internet.get()), 0U);
  EXPECT_EQ(unix_peer_inode(-1), 0U);
}

TEST(UnixPeer, TheLibraryOfTheOnlyOwnerIsFound) {
  const UnixPair pair = unix_pair();
  EXPECT_TRUE(all_owners_have_library(inode_of(pair.second), kMapped));
  EXPECT_FALSE(all_owners_have_library(inode_of(pair.second), kNotMapped));
}

TEST(UnixPeer, AClosedSocketHasNoOwnerWithTheLibrary) {
  UnixPair pair = unix_pair();
  const std::uint64_t inode = inode_of(pair.second);
  pair.second.reset();
  EXPECT_FALSE(all_owners_have_library(inode, kMapped));
  EXPECT_FALSE(all_owners_have_library(0, kMapped));
}

TEST(UnixPeer, EachOwnerMustHaveTheLibrary) {
  const UnixPair pair = unix_pair();
  const UnixPair child_stdin = unix_pair();
  const int copy = ::dup(pair.second.get());  // not close-on-exec, so the child inherits it
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, child_stdin.second.get(), STDIN_FILENO);
  std::string name = "cat";
  std::array<char*, 2> arguments{name.data(), nullptr};
  pid_t child = -1;
  // The call returns after the child's exec(), so the child has not mapped this program.
  ASSERT_EQ(::posix_spawnp(&child, "cat", &actions, nullptr, arguments.data(), environ), 0);
  ::posix_spawn_file_actions_destroy(&actions);
  const std::string_view of_this_program = "/os_test";
  EXPECT_TRUE(all_owners_have_library(inode_of(pair.first), of_this_program));
  EXPECT_FALSE(all_owners_have_library(inode_of(pair.second), of_this_program));
  ::shutdown(child_stdin.first.get(), SHUT_WR);
  ::waitpid(child, nullptr, 0);
  ::close(copy);
  EXPECT_TRUE(all_owners_have_library(inode_of(pair.second), of_this_program));
}

}  // namespace
}  // namespace verbena::os
