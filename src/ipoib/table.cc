#include "ipoib/table.h"

#include "base/error.h"

namespace verbena::ipoib {

Entry* Table::find(const Gid& ip) {
  const auto found = entries_.find(ip);
  return found == entries_.end() ? nullptr : &found->second;
}

Entry* Table::insert(const Gid& ip, bool& evicted) {
  evicted = false;
  if (entries_.size() >= entries_max_) {
    if (lru_.empty()) return nullptr;
    erase(*lru_.front());
    evicted = true;
  }
  const auto [found, is_new] = entries_.try_emplace(ip, ip);
  VB_CHECK(is_new);
  return &found->second;
}

void Table::erase(Entry& entry) {
  set_address(entry, std::nullopt);
  set_deadline(entry, kNever);
  entries_.erase(entries_.find(entry.ip));
}

void Table::set_address(Entry& entry, const std::optional<LinkAddress>& address) {
  if (entry.address_) by_gid_.erase({entry.address_->gid, entry.ip});
  if (address) by_gid_.emplace(address->gid, entry.ip);
  const bool had_address = !entry.is_incomplete();
  entry.address_ = address;
  if (!had_address && address) {
    entry.lru_position_ = lru_.insert(lru_.end(), &entry);
  } else if (had_address && !address) {
    lru_.erase(entry.lru_position_);
  }
}

void Table::set_deadline(Entry& entry, Time deadline) {
  if (entry.deadline_ == deadline) return;
  if (entry.deadline_ != kNever) deadlines_.erase({entry.deadline_, entry.ip});
  entry.deadline_ = deadline;
  if (deadline != kNever) deadlines_.emplace(deadline, entry.ip);
}

void Table::touch(Entry& entry) {
  if (entry.address_) lru_.splice(lru_.end(), lru_, entry.lru_position_);
}

Entry* Table::first_due(Time now) {
  return deadline() > now ? nullptr : find(deadlines_.begin()->second);
}

std::vector<Gid> Table::addresses_with_gid(const Gid& gid) const {
  std::vector<Gid> ips;
  for (auto found = by_gid_.lower_bound({gid, Gid{}});
       found != by_gid_.end() && found->first == gid; ++found) {
    ips.push_back(found->second);
  }
  return ips;
}

}  // namespace verbena::ipoib
