#include "wire/smp.h"

namespace verbena::wire {
namespace {

// Returns the big-endian number with this index in the data.
template <class Number>
Number number_at(const SmpData& data, std::size_t index) {
  Number value = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    value = static_cast<Number>(value << (sizeof(Number) > 1 ? 8 : 0) |
                                std::to_integer<Number>(data[index * sizeof(Number) + i]));
  }
  return value;
}

template <class Number>
void set_number(SmpData& data, std::size_t index, Number value) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    data[index * sizeof(Number) + i] =
        static_cast<std::byte>(value >> 8 * (sizeof(Number) - 1 - i) & 0xff);
  }
}

}  // namespace

GuidBlock decode_guids(const SmpData& data) {
  GuidBlock block;
  for (std::size_t i = 0; i < block.size(); ++i) block[i].value = number_at<std::uint64_t>(data, i);
  return block;
}
SmpData encode_guids(const GuidBlock& block) {
  SmpData data{};
  for (std::size_t i = 0; i < block.size(); ++i) set_number(data, i, block[i].value);
  return data;
}

PkeyBlock decode_pkeys(const SmpData& data) {
  PkeyBlock block;
  for (std::size_t i = 0; i < block.size(); ++i) block[i].value = number_at<std::uint16_t>(data, i);
  return block;
}
SmpData encode_pkeys(const PkeyBlock& block) {
  SmpData data{};
  for (std::size_t i = 0; i < block.size(); ++i) set_number(data, i, block[i].value);
  return data;
}

SlToVl decode_sl_to_vl(const SmpData& data) {
  SlToVl table;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto pair = std::to_integer<std::uint8_t>(data[i / 2]);
    table[i] = i % 2 == 0 ? pair >> 4 : pair & 15;
  }
  return table;
}
SmpData encode_sl_to_vl(const SlToVl& table) {
  SmpData data{};
  for (std::size_t i = 0; i < table.size(); ++i) {
    data[i / 2] |= static_cast<std::byte>((table[i] & 15) << (i % 2 == 0 ? 4 : 0));
  }
  return data;
}

VlArbitrationBlock decode_vl_arbitration(const SmpData& data) {
  VlArbitrationBlock block;
  for (std::size_t i = 0; i < block.size(); ++i) {
    block[i] = {.virtual_lane = std::to_integer<std::uint8_t>(data[2 * i] & std::byte{15}),
                .weight = std::to_integer<std::uint8_t>(data[2 * i + 1])};
  }
  return block;
}
SmpData encode_vl_arbitration(const VlArbitrationBlock& block) {
  SmpData data{};
  for (std::size_t i = 0; i < block.size(); ++i) {
    data[2 * i] = static_cast<std::byte>(block[i].virtual_lane & 15);
    data[2 * i + 1] = static_cast<std::byte>(block[i].weight);
  }
  return data;
}

LftBlock decode_lft(const SmpData& data) {
  LftBlock block;
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = number_at<std::uint8_t>(data, i);
  return block;
}
SmpData encode_lft(const LftBlock& block) {
  SmpData data{};
  for (std::size_t i = 0; i < block.size(); ++i) set_number(data, i, block[i]);
  return data;
}

MftBlock decode_mft(const SmpData& data) {
  MftBlock block;
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = number_at<std::uint16_t>(data, i);
  return block;
}
SmpData encode_mft(const MftBlock& block) {
  SmpData data{};
  for (std::size_t i = 0; i < block.size(); ++i) set_number(data, i, block[i]);
  return data;
}

}  // namespace verbena::wire
