#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "wire/drop.h"

// Encodes and decodes messages.  A message is a struct of host-order members with a table.  The
// table has the place of each member on the wire, in the notation of the specification.  encode()
// and decode() use the same table, so they cannot disagree:
//
//   struct Deth {
//     Qkey qkey{};
//     Qpn source_qpn{};
//     static consteval auto layout() {
//       return wire::layout<8>(field<&Deth::qkey>({.byte = 0, .bits = 32}),
//                              field<&Deth::source_qpn>({.byte = 5, .bits = 24}));
//     }
//   };
//
// Members may be unsigned numbers, bool, enums, the types of base/strong.h, arrays of std::byte,
// and other messages.  A table does not compile if fields overlap, exceed the message or do not fit
// their members.  Bits without a field are reserved: encode() writes zeros, and decode() ignores
// them.
namespace verbena::wire {

// Describes the place of a field: its first byte, its first bit in that byte (0 is the most
// significant), and its width in bits.
struct Place {
  std::size_t byte{};
  std::size_t bit{};
  std::size_t bits{};

  constexpr std::size_t first_bit() const { return byte * 8 + bit; }
};

template <auto Member>
struct Field {
  Place place;
};

template <auto Member>
consteval Field<Member> field(Place place) {
  return {place};
}

// Holds the places of the members.  The members are template parameters, because a std::tuple of
// fields would double the compile time of all layers that use this file.
template <std::size_t Bytes, auto... Members>
struct Table {
  static constexpr std::size_t kBytes = Bytes;
  std::array<Place, sizeof...(Members)> places{};
};

template <class M>
inline constexpr auto kTable = M::layout();

// kSize is the number of bytes of a message on the wire.
template <class M>
inline constexpr std::size_t kSize = decltype(M::layout())::kBytes;

template <class T>
concept Message = requires {
  T::layout();
};

namespace table {

template <class M, class T>
T type_of(T M::*);
template <auto Member>
using MemberType = decltype(type_of(Member));

template <class T>
concept StrongNumber = requires {
  typename T::Representation;
};
template <class T>
concept WrappedBytes = requires(T t) {
  t.bytes.size();
};
template <class T, class Bare = std::remove_cvref_t<T>>
concept ByteArray = std::same_as<Bare, std::array<std::byte, std::tuple_size<Bare>::value>>;

// Returns the maximum number of bits of a field with type T.  The field of a byte array or of a
// message must have exactly this number of bits.
template <class T>
consteval std::size_t max_bits() {
  if constexpr (std::same_as<T, bool>) {
    return 1;
  } else if constexpr (Message<T>) {
    return kSize<T> * 8;
  } else {
    return sizeof(T) * 8;
  }
}

template <class T>
inline constexpr bool kHasFixedWidth = Message<T> || WrappedBytes<T> || ByteArray<T>;

// Marks the bits of every field of a table, including the fields of nested messages.
template <std::size_t Bits, std::size_t Bytes, auto... Members>
consteval void mark_bits(std::array<bool, Bits>& used_bits, std::size_t base,
                         const Table<Bytes, Members...>& fields);

template <class T, std::size_t Bits>
consteval void mark_field(std::array<bool, Bits>& used_bits, std::size_t base, Place place) {
  const std::size_t begin = base + place.first_bit();
  if (place.bits == 0 || begin + place.bits > Bits) throw "field outside the message";
  if (place.bits > max_bits<T>()) throw "field wider than its member";
  if (kHasFixedWidth<T> && (place.bits != max_bits<T>() || place.bit != 0)) throw "field cut short";
  if constexpr (Message<T>) {
    mark_bits(used_bits, begin, T::layout());
  } else {
    for (std::size_t i = begin; i < begin + place.bits; ++i) {
      if (used_bits[i]) throw "fields overlap";
      used_bits[i] = true;
    }
  }
}

template <std::size_t Bits, std::size_t Bytes, auto... Members>
consteval void mark_bits(std::array<bool, Bits>& used_bits, std::size_t base,
                         const Table<Bytes, Members...>& fields) {
  std::size_t i = 0;
  (mark_field<MemberType<Members>>(used_bits, base, fields.places[i++]), ...);
}

// Holds an encoded message as 64-bit words.  The most significant byte of a word comes first on the
// wire.  Every place is known at compile time.  So a field costs a shift and a mask, and a word
// costs one byte swap.
template <std::size_t Bytes>
using Words = std::array<std::uint64_t, (Bytes + 7) / 8>;

constexpr std::uint64_t swap_to_wire(std::uint64_t word) {
  return std::endian::native == std::endian::little ? std::byteswap(word) : word;
}

template <std::size_t Bytes>
constexpr Words<Bytes> load_words(const std::byte* in) {
  Words<Bytes> words{};
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::array<std::byte, 8> bytes{};
    std::copy_n(in + i * 8, std::min<std::size_t>(8, Bytes - i * 8), bytes.begin());
    words[i] = swap_to_wire(std::bit_cast<std::uint64_t>(bytes));
  }
  return words;
}

template <std::size_t Bytes>
constexpr void store_words(std::byte* out, const Words<Bytes>& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto bytes = std::bit_cast<std::array<std::byte, 8>>(swap_to_wire(words[i]));
    std::copy_n(bytes.begin(), std::min<std::size_t>(8, Bytes - i * 8), out + i * 8);
  }
}

// Reads and writes up to 64 consecutive bits, which are in one word or in two.
template <std::size_t Begin, std::size_t Bits>
struct BitRange {
  static constexpr std::size_t kWord = Begin / 64;
  static constexpr std::size_t kEnd = Begin % 64 + Bits;  // counted from the first word's top bit
  static constexpr std::size_t kSecondBits = kEnd > 64 ? kEnd - 64 : 0;  // bits in the second word
  static constexpr std::uint64_t kMask = ~std::uint64_t{0} >> (64 - Bits);

  static constexpr std::uint64_t get(const auto& words) {
    if constexpr (kSecondBits != 0) {
      return (words[kWord] << kSecondBits | words[kWord + 1] >> (64 - kSecondBits)) & kMask;
    } else {
      return words[kWord] >> (64 - kEnd) & kMask;
    }
  }
  // REQUIRES: the bits of the range are zero.
  static constexpr void set(auto& words, std::uint64_t value) {
    const std::uint64_t v = value & kMask;
    if constexpr (kSecondBits != 0) {
      words[kWord] |= v >> kSecondBits;
      words[kWord + 1] |= v << (64 - kSecondBits);
    } else {
      words[kWord] |= v << (64 - kEnd);
    }
  }
};

// Calls visit<first bit, bits>(member) for each member that is not a message.  If a member is a
// message, visits the members of that message instead.
template <std::size_t Begin, std::size_t Bits, class T>
constexpr void visit_leaf(T& member, auto& visit);

template <std::size_t Base, Message M, class Self>
constexpr void visit_leaves(Self& message, auto& visit) {
  [&]<std::size_t Bytes, auto... Members, std::size_t... I>(const Table<Bytes, Members...>&,
                                                            std::index_sequence<I...>) {
    (visit_leaf<Base + kTable<M>.places[I].first_bit(), kTable<M>.places[I].bits>(message.*Members,
                                                                                  visit),
     ...);
  }
  (kTable<M>, std::make_index_sequence<kTable<M>.places.size()>());
}

template <std::size_t Begin, std::size_t Bits, class T>
constexpr void visit_leaf(T& member, auto& visit) {
  if constexpr (Message<T>) {
    visit_leaves<Begin, std::remove_const_t<T>>(member, visit);
  } else if constexpr (WrappedBytes<T>) {
    visit.template operator()<Begin, Bits>(member.bytes);
  } else if constexpr (StrongNumber<T>) {
    visit.template operator()<Begin, Bits>(member.value);
  } else {
    visit.template operator()<Begin, Bits>(member);
  }
}

}  // namespace table

// Creates the table of a message with this size, and checks it at compile time.
template <std::size_t Bytes, auto... Members>
consteval auto layout(Field<Members>... fields) {
  const Table<Bytes, Members...> result{.places = {fields.place...}};
  std::array<bool, Bytes * 8> used_bits{};
  table::mark_bits(used_bits, 0, result);
  return result;
}

// Encodes a message.  If a member has more bits than its place, encode() discards the upper bits.
template <Message M>
constexpr std::array<std::byte, kSize<M>> encode(const M& message) {
  table::Words<kSize<M>> words{};
  std::array<std::byte, kSize<M>> out;
  const auto encode_number = [&]<std::size_t Begin, std::size_t Bits>(const auto& member) {
    if constexpr (!table::ByteArray<decltype(member)>) {
      table::BitRange<Begin, Bits>::set(words, static_cast<std::uint64_t>(member));
    }
  };
  const auto copy_array = [&]<std::size_t Begin, std::size_t Bits>(const auto& member) {
    if constexpr (table::ByteArray<decltype(member)>) {
      std::copy_n(member.begin(), Bits / 8, out.begin() + Begin / 8);
    }
  };
  table::visit_leaves<0, M>(message, encode_number);
  table::store_words<kSize<M>>(out.data(), words);
  table::visit_leaves<0, M>(message, copy_array);
  return out;
}

// Writes the first kSize<M> bytes of `out`.
template <Message M>
constexpr void encode_to(std::span<std::byte> out, const M& message) {
  VB_CHECK(out.size() >= kSize<M>);
  const auto bytes = encode(message);
  std::copy_n(bytes.begin(), bytes.size(), out.begin());
}

// Decodes a message whose length the caller has checked.
template <Message M>
constexpr M decode_exact(std::span<const std::byte, kSize<M>> in) {
  M message{};
  const auto words = table::load_words<kSize<M>>(in.data());
  const auto decode_member = [&]<std::size_t Begin, std::size_t Bits>(auto& member) {
    using T = std::remove_reference_t<decltype(member)>;
    if constexpr (table::ByteArray<T>) {
      std::copy_n(in.begin() + Begin / 8, Bits / 8, member.begin());
    } else {
      member = static_cast<T>(table::BitRange<Begin, Bits>::get(words));
    }
  };
  table::visit_leaves<0, M>(message, decode_member);
  return message;
}

// Decodes the first kSize<M> bytes of `in`.  If there are fewer bytes, fails with kMalformed and
// Drop::kTooShort.
template <Message M>
constexpr Result<M> decode(std::span<const std::byte> in) {
  if (in.size() < kSize<M>) return drop(Drop::kTooShort);
  return decode_exact<M>(in.first<kSize<M>>());
}

}  // namespace verbena::wire
