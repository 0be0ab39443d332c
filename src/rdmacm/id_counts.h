#pragma once

#include <cstdint>
#include <map>

#include "rdmacm/types.h"

namespace verbena::rdmacm {

// Counts the RDMA CM ids of each program, and of each user that has a limit for all its programs
// together.
class IdCounts {
 public:
  // Counts the ids of this program for a user, too.  REQUIRES: the program has no ids yet.
  void set_user(Owner owner, std::uint32_t user) { user_of_[owner] = user; }
  // Forgets the user of a program that has no ids any more.
  void forget(Owner owner) { user_of_.erase(owner); }

  void add(Owner owner) {
    ++owner_counts_[owner];
    if (const auto user = user_of_.find(owner); user != user_of_.end())
      ++user_counts_[user->second];
  }
  void remove(Owner owner) {
    decrease(owner_counts_, owner);
    if (const auto user = user_of_.find(owner); user != user_of_.end()) {
      decrease(user_counts_, user->second);
    }
  }

  std::uint32_t count_of_owner(Owner owner) const { return look_up(owner_counts_, owner); }
  // Returns the number of ids of all programs of this program's user; 0 if the user has no limit.
  std::uint32_t count_of_user(Owner owner) const {
    const auto user = user_of_.find(owner);
    return user == user_of_.end() ? 0 : look_up(user_counts_, user->second);
  }

 private:
  template <class Key>
  static std::uint32_t look_up(const std::map<Key, std::uint32_t>& counts, Key key) {
    const auto at = counts.find(key);
    return at == counts.end() ? 0 : at->second;
  }
  template <class Key>
  static void decrease(std::map<Key, std::uint32_t>& counts, Key key) {
    const auto at = counts.find(key);
    if (--at->second == 0) counts.erase(at);
  }

  std::map<Owner, std::uint32_t> owner_counts_{};
  std::map<Owner, std::uint32_t> user_of_{};
  std::map<std::uint32_t, std::uint32_t> user_counts_{};  // only users with programs in user_of_
};

}  // namespace verbena::rdmacm
