#pragma once

#include <cstdint>
#include <optional>

#include "sa/path_query.h"
#include "wire/sa.h"

// Sets the components of records from fields that may be empty, and compares values with them.
namespace verbena::sa {

// Sets a field of a record, and its bits in the component mask, if there is a value.
template <class Field, class Value>
void set_component(Field& field, const std::optional<Value>& value, std::uint64_t bits,
                   std::uint64_t& mask) {
  if (!value) return;
  field = *value;
  mask |= bits;
}

inline void set_limit(wire::Selector& selector, std::uint8_t& field,
                      const std::optional<PathQuery::Limit>& limit, std::uint64_t bits,
                      std::uint64_t& mask) {
  if (!limit) return;
  selector = limit->selector;
  field = limit->value;
  mask |= bits;
}

// Returns true if the value is the wanted one, or if there is no wanted value.
template <class Value>
bool matches(const Value& value, const std::optional<Value>& wanted) {
  return !wanted || value == *wanted;
}

inline bool is_within(std::uint8_t value, const std::optional<PathQuery::Limit>& limit) {
  if (!limit) return true;
  switch (limit->selector) {
    case wire::Selector::kGreater: return value > limit->value;
    case wire::Selector::kLess: return value < limit->value;
    case wire::Selector::kExactly: return value == limit->value;
    case wire::Selector::kBest: return false;  // only the SA knows the best value
  }
  return false;
}

}  // namespace verbena::sa
