#include "agent/port_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "ipc/counters.h"
#include "os/process.h"

namespace verbena::agent {
namespace {

std::uint64_t value(const std::vector<ipc::NamedCount>& all, const std::string& name) {
  const auto found = std::ranges::find(all, name, &ipc::NamedCount::name);
  EXPECT_NE(found, all.end()) << name;
  return found == all.end() ? 0 : found->value;
}

TEST(PortCounters, AddUpProgramsAndQp1UnderLinuxNames) {
  const CounterSums programs{{"packets_out", 10}, {"bytes_out", 4000}, {"packets_in", 7},
                             {"bytes_in", 800},   {"duplicates", 3},   {"sends", 5},
                             {"receives", 4},     {"timeouts", 2},     {"rnr_naks_out", 1}};
  const CounterSums agent{{"qp1_packets_out", 2}, {"qp1_bytes_out", 512}, {"qp1_duplicates", 0}};
  const auto all = port_counters(programs, agent, 1);
  EXPECT_EQ(value(all, "counters/port_xmit_packets"), 12u);
  EXPECT_EQ(value(all, "counters/port_xmit_data"), 1128u) << "words of 4 bytes";
  EXPECT_EQ(value(all, "counters/port_rcv_data"), 200u);
  EXPECT_EQ(value(all, "hw_counters/sent_pkts"), 12u);
  EXPECT_EQ(value(all, "hw_counters/rcvd_pkts"), 7u);
  EXPECT_EQ(value(all, "hw_counters/duplicate_request"), 3u);
  EXPECT_EQ(value(all, "hw_counters/completer_retry_err"), 2u);
  EXPECT_EQ(value(all, "hw_counters/send_rnr_err"), 1u);
  EXPECT_EQ(value(all, "hw_counters/rdma_sends"), 5u);
  EXPECT_EQ(value(all, "hw_counters/rdma_recvs"), 4u);
  EXPECT_EQ(value(all, "hw_counters/link_downed"), 1u);
}

// Checks every counter that soft-RoCE of Linux 6.1 has (rxe_hw_counters.c).
TEST(PortCounters, IncludeEveryCounterOfSoftRoce) {
  const auto all = port_counters({}, {}, 0);
  for (const char* name : {"sent_pkts", "rcvd_pkts", "duplicate_request", "out_of_seq_request",
                           "rcvd_rnr_err", "send_rnr_err", "rcvd_seq_err", "ack_deferred",
                           "retry_exceeded_err", "retry_rnr_exceeded_err", "completer_retry_err",
                           "send_err", "link_downed", "rdma_sends", "rdma_recvs"}) {
    EXPECT_EQ(value(all, std::string("hw_counters/") + name), 0u);
  }
}

// Makes a directory in memory, and a process that lives until end_process().
class PortFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/dev/shm/port_files_test_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
    ASSERT_EQ(pipe(pipe_), 0);
    child_ = fork();
    if (child_ == 0) {
      close(pipe_[1]);
      char byte = 0;
      const ssize_t bytes = read(pipe_[0], &byte, 1);
      _exit(static_cast<int>(bytes));
    }
    close(pipe_[0]);
  }
  void TearDown() override {
    end_process();
    std::filesystem::remove_all(directory_);
  }
  void end_process() {
    if (child_ == 0) return;
    close(pipe_[1]);
    waitpid(child_, nullptr, 0);
    child_ = 0;
  }
  static os::Fd open_directory(const std::string& path) {
    return os::Fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  static os::Peer self() { return {.pid = ::getpid(), .uid = ::geteuid(), .gid = ::getegid()}; }
  os::Fd process() const { return os::open_pidfd(child_).value(); }
  std::string text(const std::string& file) const {
    std::ifstream in(directory_ + "/" + file);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  asio::io_context loop_{};
  std::string directory_{};
  int pipe_[2]{};
  pid_t child_ = 0;
};

TEST_F(PortFilesTest, WritesValuesWhenTheyChange) {
  PortFiles files(loop_, [] {});
  ASSERT_TRUE(files.add(open_directory(directory_), process(), self(),
                        {{"counters/a", 9}, {"hw_counters/b", 1}}));
  EXPECT_EQ(text("counters/a"), "9\n");
  EXPECT_EQ(text("hw_counters/b"), "1\n");
  EXPECT_EQ(text("hw_counters/lifespan"), "200\n");
  std::ifstream open_file(directory_ + "/counters/a");  // a reader that keeps its file open
  files.refresh({{"counters/a", 12345}, {"hw_counters/b", 1}});
  EXPECT_EQ(text("counters/a"), "12345\n");
  EXPECT_EQ(text("hw_counters/b"), "1\n");
  std::uint64_t number = 0;
  open_file >> number;
  EXPECT_EQ(number, 12345u);
}

TEST_F(PortFilesTest, ReplacesALongerValueOfAnEarlierAgent) {
  PortFiles earlier_files(loop_, [] {});
  ASSERT_TRUE(
      earlier_files.add(open_directory(directory_), process(), self(), {{"counters/a", 100000}}));
  PortFiles later_files(loop_, [] {});
  ASSERT_TRUE(later_files.add(open_directory(directory_), process(), self(), {{"counters/a", 7}}));
  EXPECT_EQ(text("counters/a"), "7\n");
}

TEST_F(PortFilesTest, ReleasesTheDirectoryWhenItsProcessEnds) {
  bool is_removed = false;
  PortFiles files(loop_, [&] { is_removed = files.empty(); });
  ASSERT_TRUE(files.add(open_directory(directory_), process(), self(), {}));
  loop_.poll();
  EXPECT_FALSE(files.empty());
  end_process();
  loop_.restart();
  loop_.run_one();
  EXPECT_TRUE(is_removed);
}

TEST_F(PortFilesTest, DoesNotWriteToLinksPipesOrOtherFileSystems) {
  PortFiles files(loop_, [] {});
  EXPECT_EQ(files.add(open_directory("/proc"), process(), self(), {}).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(files.add(os::Fd(), process(), self(), {}).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(files.add(open_directory(directory_), os::Fd(), self(), {}).error().code,
            Errc::kInvalidArgument);
  std::filesystem::create_directory(directory_ + "/elsewhere");
  std::filesystem::create_directory_symlink("elsewhere", directory_ + "/counters");
  EXPECT_FALSE(files.add(open_directory(directory_), process(), self(), {{"counters/a", 1}}));
  std::filesystem::remove(directory_ + "/counters");

  ASSERT_TRUE(files.add(open_directory(directory_), process(), self(), {{"counters/a", 1}}));
  std::ofstream(directory_ + "/elsewhere/mine") << "mine";
  std::filesystem::remove(directory_ + "/counters/a");
  std::filesystem::create_symlink("../elsewhere/mine", directory_ + "/counters/a");
  ASSERT_EQ(mkfifo((directory_ + "/counters/b").c_str(), 0600), 0);
  files.refresh({{"counters/a", 2}, {"counters/b", 2}});  // does not wait for a reader of the pipe
  EXPECT_EQ(text("elsewhere/mine"), "mine");
}

TEST_F(PortFilesTest, LimitsTheNumberOfDirectories) {
  PortFiles files(loop_, [] {});
  for (std::size_t i = 0; i < PortFiles::kDirectoriesMax; ++i) {
    ASSERT_TRUE(files.add(open_directory(directory_), process(), self(), {})) << i;
  }
  EXPECT_EQ(files.add(open_directory(directory_), process(), self(), {}).error().code,
            Errc::kNoResources);
}

}  // namespace
}  // namespace verbena::agent
