#include "agent/pcapng.h"

#include <algorithm>

#include "base/error.h"

namespace verbena::agent::pcapng {
namespace {

constexpr std::uint32_t kSectionHeader = 0x0a0d0d0a;
constexpr std::uint32_t kInterfaceDescription = 1;
constexpr std::uint32_t kInterfaceStatistics = 5;
constexpr std::uint32_t kEnhancedPacket = 6;

constexpr std::uint32_t kByteOrderMagic = 0x1a2b3c4d;
constexpr std::uint16_t kLinkTypeEthernet = 1;
constexpr std::uint16_t kLinkTypeErf = 197;
constexpr std::uint8_t kNanoseconds = 9;  // if_tsresol: 10^-9 s

// These are the option codes.
constexpr std::uint16_t kComment = 1;      // opt_comment, in any block
constexpr std::uint16_t kApplication = 4;  // shb_userappl
constexpr std::uint16_t kName = 2;         // if_name
constexpr std::uint16_t kResolution = 9;   // if_tsresol
constexpr std::uint16_t kFlags = 2;        // epb_flags
constexpr std::uint16_t kStart = 2;        // isb_starttime
constexpr std::uint16_t kEnd = 3;          // isb_endtime
constexpr std::uint16_t kReceived = 4;     // isb_ifrecv
constexpr std::uint16_t kDropped = 5;      // isb_ifdrop

// Builds a block.  The constructor appends the type and a placeholder for the length; the
// destructor appends the length and fills it in at the beginning.
class Block {
 public:
  Block(Bytes& out, std::uint32_t type) : out_(out), begin_(out.size()) {
    number(type);
    number(std::uint32_t{0});
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() {
    const auto length = static_cast<std::uint32_t>(out_.size() - begin_ + 4);
    number(length);
    for (std::size_t i = 0; i < 4; ++i) out_[begin_ + 4 + i] = out_[out_.size() - 4 + i];
  }

  template <class T>
  void number(T value) {
    for (std::size_t i = 0; i < sizeof value; ++i) {
      out_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> 8 * i));
    }
  }
  // Appends bytes, padded to 32-bit words.
  void bytes(std::span<const std::byte> value) {
    out_.insert(out_.end(), value.begin(), value.end());
    out_.resize(out_.size() + (4 - value.size() % 4) % 4);
  }
  // Appends a time stamp, upper half first.
  void time(std::uint64_t ns) {
    number(static_cast<std::uint32_t>(ns >> 32));
    number(static_cast<std::uint32_t>(ns));
  }
  void option(std::uint16_t code, std::size_t length) {
    number(code);
    number(static_cast<std::uint16_t>(length));
  }
  void text_option(std::uint16_t code, std::string_view text) {
    text = text.substr(0, 0xffff);
    option(code, text.size());
    bytes(std::as_bytes(std::span(text)));
  }
  void end_of_options() { option(0, 0); }

 private:
  Bytes& out_;
  std::size_t begin_;
};

}  // namespace

void section_header(Bytes& out, std::string_view application, std::string_view comment) {
  Block block(out, kSectionHeader);
  block.number(kByteOrderMagic);
  block.number(std::uint16_t{1});  // version 1.0
  block.number(std::uint16_t{0});
  block.number(~std::uint64_t{0});  // length of the section: not specified
  block.text_option(kApplication, application);
  block.text_option(kComment, comment);
  block.end_of_options();
}

void interface_description(Bytes& out, std::string_view name, LinkLayer link_layer) {
  Block block(out, kInterfaceDescription);
  block.number(link_layer == LinkLayer::kInfiniband ? kLinkTypeErf : kLinkTypeEthernet);
  block.number(std::uint16_t{0});
  block.number(std::uint32_t{0});  // no limit on the length of a packet
  block.text_option(kName, name);
  block.option(kResolution, 1);
  block.number(std::uint32_t{kNanoseconds});
  block.end_of_options();
}

void enhanced_packet(Bytes& out, std::uint64_t time_ns, link::Direction direction,
                     std::span<const std::byte> frame, std::uint32_t interface) {
  const auto length = static_cast<std::uint32_t>(frame.size());
  Block block(out, kEnhancedPacket);
  block.number(interface);
  block.time(time_ns);
  block.number(length);
  block.number(length);
  block.bytes(frame);
  block.option(kFlags, 4);
  block.number(static_cast<std::uint32_t>(direction));
  block.end_of_options();
}

Bytes erf_infiniband(std::uint64_t time_ns, std::span<const std::byte> lrh_to_vcrc) {
  constexpr std::size_t kHeaderBytes = 16;
  constexpr std::uint8_t kTypeInfiniband = 21;
  constexpr std::uint8_t kVaryingLength = 1 << 2;
  constexpr std::uint64_t kNsPerSecond = 1'000'000'000;
  Bytes record;
  record.reserve(kHeaderBytes + lrh_to_vcrc.size());
  const auto big_endian = [&](std::size_t value) {
    record.push_back(static_cast<std::byte>(value >> 8));
    record.push_back(static_cast<std::byte>(value));
  };
  // The time stamp alone is little-endian: seconds with 32 bits of fraction.
  const std::uint64_t time =
      time_ns / kNsPerSecond << 32 | (time_ns % kNsPerSecond << 32) / kNsPerSecond;
  for (std::size_t i = 0; i < sizeof time; ++i) {
    record.push_back(static_cast<std::byte>(time >> 8 * i));
  }
  record.push_back(std::byte{kTypeInfiniband});
  record.push_back(std::byte{kVaryingLength});
  big_endian(kHeaderBytes + lrh_to_vcrc.size());
  big_endian(0);  // no packets were lost in between
  big_endian(lrh_to_vcrc.size());
  record.insert(record.end(), lrh_to_vcrc.begin(), lrh_to_vcrc.end());
  return record;
}

void interface_statistics(Bytes& out, const Statistics& statistics) {
  Block block(out, kInterfaceStatistics);
  block.number(statistics.interface);
  block.time(statistics.end_ns);
  block.option(kStart, 8);
  block.time(statistics.start_ns);
  block.option(kEnd, 8);
  block.time(statistics.end_ns);
  block.option(kReceived, 8);
  block.number(statistics.received);
  block.option(kDropped, 8);
  block.number(statistics.dropped);
  block.end_of_options();
}

}  // namespace verbena::agent::pcapng
