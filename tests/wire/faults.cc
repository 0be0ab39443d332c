#include "faults.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace verbena::wire_bench {
namespace {

constexpr std::size_t kEthernetBytes = 14;
constexpr std::size_t kUdpBytes = 8;
constexpr std::uint16_t kRocePort = 4791;

std::uint16_t read_be16(std::span<const std::byte> bytes, std::size_t at) {
  return static_cast<std::uint16_t>(std::to_integer<unsigned>(bytes[at]) << 8 |
                                    std::to_integer<unsigned>(bytes[at + 1]));
}

std::optional<unsigned> parse_unsigned(std::string_view text) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Parses a percentage such as "12.5".
std::optional<Ratio> parse_percent(std::string_view text) {
  const auto point = text.find('.');
  const auto integer = parse_unsigned(text.substr(0, point));
  if (!integer || *integer > 100) return std::nullopt;
  unsigned hundredths = *integer * 100;
  if (point != std::string_view::npos) {
    const std::string_view digits = text.substr(point + 1);
    const auto fraction = parse_unsigned(digits);
    if (!fraction || digits.size() > 2) return std::nullopt;
    hundredths += digits.size() == 1 ? *fraction * 10 : *fraction;
  }
  if (hundredths > 10'000) return std::nullopt;
  return Ratio{hundredths, 10'000};
}

std::optional<Duration> parse_milliseconds(std::string_view text) {
  const auto value = parse_unsigned(text);
  if (!value || *value > 600'000) return std::nullopt;
  return std::chrono::milliseconds(*value);
}

bool parse_word(std::string_view key, std::string_view value, Faults& out) {
  const auto store = [](auto parsed, auto& field) {
    if (parsed) field = *parsed;
    return parsed.has_value();
  };
  if (key == "loss") return store(parse_percent(value), out.loss);
  if (key == "duplicate") return store(parse_percent(value), out.duplicate);
  if (key == "reorder") return store(parse_percent(value), out.reorder);
  if (key == "corrupt") return store(parse_percent(value), out.corrupt);
  if (key == "burst") return store(parse_unsigned(value), out.burst) && out.burst > 0;
  if (key == "delay") return store(parse_milliseconds(value), out.delay);
  if (key == "jitter") return store(parse_milliseconds(value), out.jitter);
  if (key == "tcp") {
    out.hits_tcp = value == "1";
    return out.hits_tcp || value == "0";
  }
  if (key != "cut") return false;
  const auto slash = value.find('/');
  return slash != std::string_view::npos &&
         store(parse_milliseconds(value.substr(0, slash)), out.cut) &&
         store(parse_milliseconds(value.substr(slash + 1)), out.uncut);
}

}  // namespace

std::optional<Faults> parse_faults(std::string_view text, std::string& problem) {
  Faults out;
  while (!text.empty()) {
    const auto space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    text = space == std::string_view::npos ? "" : text.substr(space + 1);
    if (word.empty()) continue;
    const auto equals = word.find('=');
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : word.substr(equals + 1);
    if (!parse_word(word.substr(0, equals), value, out)) {
      problem = "not a fault: '" + std::string(word) +
                "' (loss, duplicate, reorder, corrupt: percent; burst: frames; delay, jitter, "
                "cut=ON/OFF: milliseconds; tcp=1)";
      return std::nullopt;
    }
  }
  return out;
}

std::size_t roce_payload(std::span<const std::byte> frame) {
  constexpr std::size_t kIpv6Bytes = 40;
  constexpr std::byte kUdp{17};
  if (frame.size() < kEthernetBytes + 20 + kUdpBytes) return 0;
  std::size_t udp = 0;
  const std::uint16_t type = read_be16(frame, 12);
  if (type == 0x0800 && frame[kEthernetBytes + 9] == kUdp) {
    // Only the first fragment has the UDP header.
    if ((read_be16(frame, kEthernetBytes + 6) & 0x1fff) != 0) return 0;
    udp = kEthernetBytes + 4 * std::to_integer<std::size_t>(frame[kEthernetBytes] & std::byte{15});
  } else if (type == 0x86dd && frame[kEthernetBytes + 6] == kUdp) {
    udp = kEthernetBytes + kIpv6Bytes;
  }
  if (udp == 0 || frame.size() < udp + kUdpBytes || read_be16(frame, udp + 2) != kRocePort)
    return 0;
  return udp + kUdpBytes;
}

bool is_tcp(std::span<const std::byte> frame) {
  constexpr std::byte kTcp{6};
  if (frame.size() < kEthernetBytes + 20) return false;
  const std::uint16_t type = read_be16(frame, 12);
  return (type == 0x0800 && frame[kEthernetBytes + 9] == kTcp) ||
         (type == 0x86dd && frame[kEthernetBytes + 6] == kTcp);
}

void Direction::set_faults(const Faults& faults, Time now) {
  faults_ = faults;
  cut_began_ = now;
  remaining_losses_ = remaining_corruptions_ = 0;
}

bool Direction::is_cut(Time now) const {
  if (faults_.cut == Duration{}) return false;
  return (now - cut_began_) % (faults_.cut + faults_.uncut) < faults_.cut;
}

bool Direction::draw_fault(Ratio ratio, unsigned& remaining) {
  if (remaining == 0 && random_.chance(run_start_probability(ratio, faults_.burst)))
    remaining = faults_.burst;
  if (remaining == 0) return false;
  --remaining;
  return true;
}

// Flips one to three bits of the UDP payload.  Removes the UDP checksum.  Otherwise the kernel
// would drop the frame because of a wrong checksum, and nobody would check the ICRC.
void Direction::corrupt(std::vector<std::byte>& frame, std::size_t payload) {
  frame[payload - 2] = frame[payload - 1] = std::byte{0};
  const std::uint64_t bits = (frame.size() - payload) * 8;
  for (std::uint64_t remaining = 1 + random_.below(3); remaining > 0 && bits > 0; --remaining) {
    const std::uint64_t bit = random_.below(bits);
    frame[payload + bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
  }
}

void Direction::queue_frame(std::vector<std::byte> frame, Time due) {
  if (delayed_.size() >= kDelayedMax) {
    ++counts_.overflowed;
    return;
  }
  delayed_.emplace(std::pair(due, next_number_++), std::move(frame));
}

void Direction::accept(std::span<const std::byte> frame, Time now) {
  std::vector<std::byte> copy(frame.begin(), frame.end());
  const std::size_t payload = roce_payload(frame);
  if (payload == 0 && !(faults_.hits_tcp && is_tcp(frame))) {
    ++counts_.others;
    return queue_frame(std::move(copy), now);
  }
  ++counts_.frames;
  // Draws every fault for each frame, even if another fault loses the frame.  So the loss of a
  // frame does not change which faults hit the frames after it.
  const bool lost = draw_fault(faults_.loss, remaining_losses_);
  const bool corrupted = draw_fault(faults_.corrupt, remaining_corruptions_);
  const bool duplicated = random_.chance(faults_.duplicate);
  const bool reordered = random_.chance(faults_.reorder);
  const auto jitter = static_cast<std::uint64_t>(faults_.jitter.count());
  const Duration delay =
      faults_.delay + Duration(static_cast<Duration::rep>(random_.below(jitter + 1)));
  if (is_cut(now)) {
    ++counts_.cut;
    return;
  }
  // A receiver drops a corrupt TCP segment because of its checksum, so the segment counts as lost.
  if (lost || (corrupted && payload == 0)) {
    ++counts_.lost;
    return;
  }
  if (corrupted) {
    ++counts_.corrupted;
    corrupt(copy, payload);
  }
  last_due_ = std::max(last_due_, now + delay);
  if (duplicated) {
    ++counts_.duplicated;
    queue_frame(copy, last_due_);
  }
  if (reordered) ++counts_.reordered;
  queue_frame(std::move(copy), last_due_ + (reordered ? kReorderDelay : Duration{}));
}

std::optional<std::vector<std::byte>> Direction::next_due_frame(Time now) {
  if (deadline() > now) return std::nullopt;
  return std::move(delayed_.extract(delayed_.begin()).mapped());
}

}  // namespace verbena::wire_bench
