#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

// Pairs counters with the names that tools show.  A table lies beside the counters that it names,
// so that each pair is written once.  static_assert(names_every_counter(table)) refuses a counter
// without a name.
namespace verbena {

// Names one value of an enumeration.  The last value of the enumeration must be kCount, which is
// not a counter.
template <class Enum>
struct CounterName {
  Enum counter;
  const char* name;
};

// Names one counter in a struct of counters.
template <class Counters>
struct MemberName {
  std::uint64_t Counters::*member;
  const char* name;
};

namespace detail {
template <class Table>
consteval bool names_differ(const Table& table) {
  for (std::size_t i = 0; i < table.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (std::string_view(table[i].name) == table[j].name) return false;
    }
  }
  return true;
}
}  // namespace detail

// Returns true if the table has each value of the enumeration, in the same order, and all names
// differ.
template <class Enum, std::size_t Size>
consteval bool names_every_counter(const std::array<CounterName<Enum>, Size>& table) {
  if (Size != static_cast<std::size_t>(Enum::kCount)) return false;
  for (std::size_t i = 0; i < Size; ++i) {
    if (static_cast<std::size_t>(table[i].counter) != i) return false;
  }
  return detail::names_differ(table);
}

// Returns true if the table has each counter of the struct, and all names differ.  The struct must
// hold nothing but counters.
template <class Counters, std::size_t Size>
consteval bool names_every_counter(const std::array<MemberName<Counters>, Size>& table) {
  if (sizeof(Counters) != Size * sizeof(std::uint64_t)) return false;
  for (std::size_t i = 0; i < Size; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (table[i].member == table[j].member) return false;
    }
  }
  return detail::names_differ(table);
}

// Returns the name and the value of each counter.
template <class Counters, std::size_t Size>
constexpr auto named_values(const std::array<MemberName<Counters>, Size>& table,
                            const Counters& counters) {
  std::array<std::pair<const char*, std::uint64_t>, Size> values;
  for (std::size_t i = 0; i < Size; ++i) values[i] = {table[i].name, counters.*table[i].member};
  return values;
}

// Returns the name of a counter, or `otherwise` for an invalid value.  REQUIRES:
// names_every_counter(table).
template <class Enum, std::size_t Size>
constexpr const char* name_of(const std::array<CounterName<Enum>, Size>& table, Enum counter,
                              const char* otherwise = "?") {
  const auto index = static_cast<std::size_t>(counter);
  return index < Size ? table[index].name : otherwise;
}

}  // namespace verbena
