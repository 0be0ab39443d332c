#include "agent/capture.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "wire/ip.h"

namespace verbena::agent {
namespace {

using namespace std::chrono_literals;

constexpr Time kStart{1s};

link::CaptureRecord record(Duration at, std::uint8_t mark) {
  return {kStart + at, link::Direction::kOut, {std::byte{mark}}};
}

std::string marks(const std::vector<link::CaptureRecord>& records) {
  std::string text;
  for (const auto& r : records) text += static_cast<char>(r.frame[0]);
  return text;
}

TEST(CaptureMerge, SortsByTimeAndKeepsTheOrderOfEqualTimes) {
  CaptureMerge merge;
  merge.add(record(3ms, 'c'));
  merge.add(record(1ms, 'a'));
  merge.add(record(3ms, 'd'));
  merge.add(record(2ms, 'b'));
  EXPECT_EQ(marks(merge.take(kStart + 2ms)), "ab");
  merge.add(record(1ms, 'l'));  // older than 'c' and 'd', so it comes next
  EXPECT_EQ(marks(merge.take(kNever)), "lcd");
  EXPECT_EQ(merge.waiting_bytes(), 0u);
}

// Captures into a memfd.  The test acts as the programs, which write to their rings.
class CaptureTest : public testing::Test {
 protected:
  CaptureTest() : file_(memfd_create("capture", MFD_CLOEXEC)) {}

  Capture start(std::uint64_t wall_clock_offset_ns = 0) {
    return {os::duplicate_fd(file_.get()).value(), wall_clock_offset_ns, kStart};
  }
  // Acts as a program: maps the ring and writes records to it.
  struct Program {
    os::Mapping memory;
    link::CaptureRing ring;
    void send(Duration at, std::uint8_t mark) {
      std::array<std::byte, 40> datagram{};
      datagram[16] = std::byte{mark};
      const link::Address address{.source = wire::ipv4_gid(0x7f000001),
                                  .destination = wire::ipv4_gid(0x7f000001),
                                  .source_port = 0xc000};
      ring.write(kStart + at, link::Direction::kOut, address, 0, datagram);
    }
  };
  static Program join(Capture& capture, Capture::Program id) {
    const int fd = capture.join(id, kStart).value();
    auto memory =
        os::map_shared(fd, link::CaptureRing::kBytes, link::CaptureRing::kBytes, true).value();
    const link::CaptureRing ring(memory.bytes());
    return {std::move(memory), ring};
  }
  // Returns the marks of the packets in the file, in order.
  std::string packets() {
    std::string text;
    const std::vector<std::byte> bytes = contents();
    for (std::size_t at = 0; at + 12 <= bytes.size(); at += word(bytes, at + 4)) {
      if (word(bytes, at) == 6) text += static_cast<char>(bytes[at + 28 + 42 + 16]);
    }
    return text;
  }
  // Returns isb_ifdrop, or -1 if the file has no statistics yet.
  int dropped() {
    const std::vector<std::byte> bytes = contents();
    for (std::size_t at = 0; at + 12 <= bytes.size(); at += word(bytes, at + 4)) {
      if (word(bytes, at) == 5) return static_cast<int>(word(bytes, at + 20 + 3 * 12 + 4));
    }
    return -1;
  }
  std::vector<std::byte> contents() {
    std::vector<std::byte> bytes(static_cast<std::size_t>(lseek(file_.get(), 0, SEEK_END)));
    EXPECT_EQ(pread(file_.get(), bytes.data(), bytes.size(), 0), std::ssize(bytes));
    return bytes;
  }
  static std::uint32_t word(const std::vector<std::byte>& bytes, std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t i = 4; i-- > 0;) {
      value = value << 8 | std::to_integer<std::uint32_t>(bytes.at(at + i));
    }
    return value;
  }

  os::Fd file_;
};

TEST_F(CaptureTest, TickWritesSettledRecordsInOrder) {
  Capture capture = start();
  Program first = join(capture, 1);
  Program second = join(capture, 2);
  first.send(2ms, 'b');
  second.send(1ms, 'a');
  first.send(30ms, 'd');
  capture.tick(kStart + 35ms);
  EXPECT_EQ(packets(), "ab");
  second.send(29ms, 'c');  // written late, though its time is earlier
  capture.tick(kStart + 60ms);
  EXPECT_EQ(packets(), "abcd");
}

TEST_F(CaptureTest, FlushWritesAllRecords) {
  Capture capture = start();
  Program first = join(capture, 1);
  first.send(1ms, 'a');
  capture.add({kStart + 2ms, link::Direction::kIn, std::vector<std::byte>(82, std::byte{'m'})},
              kStart + 2ms);
  first.send(3ms, 'b');
  capture.flush(kStart + 3ms);
  EXPECT_EQ(packets(), "amb");
  EXPECT_EQ(dropped(), -1) << "the statistics are written at the end";
}

TEST_F(CaptureTest, FlushKeepsTheOrderWhileOthersRecord) {
  Capture capture = start();
  Program first = join(capture, 1);
  Program second = join(capture, 2);
  first.send(10ms, 'b');
  capture.flush(kStart + 10ms);  // `first` is about to end
  second.send(9ms, 'a');         // `second` read the clock before the flush
  capture.leave(1, kStart + 11ms);
  capture.flush(kStart + 12ms);
  EXPECT_EQ(packets(), "ab");
}

TEST_F(CaptureTest, LeaveTakesTheRecordsThatAreInTheRing) {
  Capture capture = start();
  Program first = join(capture, 1);
  first.send(1ms, 'a');
  capture.leave(1, kStart + 1ms);
  EXPECT_FALSE(capture.has(1));
  capture.finish(kStart + 1ms);
  EXPECT_EQ(packets(), "a");
  EXPECT_EQ(dropped(), 0);
}

TEST_F(CaptureTest, CountsDropsOfAFullRingAlsoAfterItsProgramLeft) {
  Capture capture = start();
  Program first = join(capture, 1);
  const std::size_t more_than_fits = link::CaptureRing::kBytes / 96;
  for (std::size_t i = 0; i < more_than_fits; ++i) first.send(1ms, 'x');
  EXPECT_TRUE(first.ring.is_filling_up());
  const auto lost = first.ring.dropped();
  EXPECT_GT(lost, 0u);
  EXPECT_TRUE(capture.tick(kStart + 1ms)) << "the caller must call tick() again soon";
  capture.leave(1, kStart + 2ms);
  capture.finish(kStart + 2ms);
  EXPECT_EQ(dropped(), static_cast<int>(lost));
  EXPECT_EQ(packets().size(), more_than_fits - lost);
}

TEST_F(CaptureTest, ClampsImpossibleTimes) {
  Capture capture = start();
  Program first = join(capture, 1);
  first.send(-5s, 'a');
  first.send(std::chrono::hours(1000), 'b');
  capture.tick(kStart + 1ms);
  capture.tick(kStart + 50ms);
  EXPECT_EQ(packets(), "ab");
}

TEST_F(CaptureTest, CorruptRingDoesNotAffectOthers) {
  Capture capture = start();
  Program bad = join(capture, 1);
  Program good = join(capture, 2);
  bad.send(1ms, 'x');
  std::fill_n(bad.memory.bytes().begin(), 8, std::byte{0xff});  // the ring's tail
  good.send(2ms, 'a');
  capture.finish(kStart + 3ms);
  EXPECT_EQ(packets(), "a");
}

TEST_F(CaptureTest, CapinfosReadsTheFile) {
  if (std::system("capinfos --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no capinfos";
  Capture capture = start(1'700'000'000'000'000'000);
  Program first = join(capture, 1);
  first.send(1ms, 'a');
  first.send(2ms, 'b');
  capture.finish(kStart + 3ms);
  const std::string path = testing::TempDir() + "verbena_capture_test.pcapng";
  std::FILE* file = std::fopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  const auto bytes = contents();
  std::fwrite(bytes.data(), 1, bytes.size(), file);
  std::fclose(file);
  std::FILE* pipe = popen(("capinfos -Mcta " + path).c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::array<char, 4096> text{};
  const std::size_t bytes_read = std::fread(text.data(), 1, text.size() - 1, pipe);
  pclose(pipe);
  std::remove(path.c_str());
  const std::string output(text.data(), bytes_read);
  EXPECT_NE(output.find("pcapng"), std::string::npos) << output;
  EXPECT_NE(output.find("Number of packets:   2"), std::string::npos) << output;
  EXPECT_NE(output.find("2023-11-14"), std::string::npos) << output;
}

}  // namespace
}  // namespace verbena::agent
