#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/strong.h"
#include "base/time.h"
#include "mad/mad.h"
#include "wire/mad.h"

// Defines the types that the parts of the SA client share: the state of the port, and its changes.
namespace verbena::sa {

// Holds the state of the client's port.  The client's owner reports the whole state at each change.
struct PortState {
  bool active = false;
  Lid lid{};
  std::uint8_t lmc = 0;
  Lid sm_lid{};
  std::uint8_t sm_sl = 0;
  std::vector<Gid> gids{};
  std::vector<Pkey> pkeys{};  // the whole table, with empty entries, so that indexes are valid

  // Returns true if the port can send queries to the manager.
  bool is_ready() const { return active && lid != Lid{} && sm_lid != Lid{} && !gids.empty(); }
  bool has_gid(const Gid& gid) const { return std::ranges::find(gids, gid) != gids.end(); }
  // Returns the index of a P_Key in the table.  If the table lacks it, returns the index of the
  // first P_Key of the same partition.
  std::optional<std::uint16_t> pkey_index(Pkey wanted) const {
    std::optional<std::uint16_t> other;
    for (std::size_t i = 0; i < pkeys.size(); ++i) {
      if (pkeys[i] == Pkey{} || (pkeys[i].value & 0x7fff) != (wanted.value & 0x7fff)) continue;
      if (pkeys[i] == wanted) return static_cast<std::uint16_t>(i);
      if (!other) other = static_cast<std::uint16_t>(i);
    }
    return other;
  }
  friend bool operator==(const PortState&, const PortState&) = default;
};

// Describes a change of a port for the parts of the client.
struct PortChange {
  bool became_ready = false;     // is_ready() has become true
  bool stopped = false;          // is_ready() has become false
  bool lid_changed = false;      // the LID or the LMC has changed
  bool manager_changed = false;  // the LID of the manager has changed
  bool gids_changed = false;
  bool pkeys_changed = false;

  // Returns true if the manager or a LID has changed, so that Queries sends all pending queries
  // again.  Queries also does so if only the SL to the manager or the index of the default P_Key
  // has changed, but then the manager has lost nothing.
  bool resends_queries() const { return became_ready || stopped || lid_changed || manager_changed; }

  static PortChange between(const PortState& previous, const PortState& current) {
    return {.became_ready = current.is_ready() && !previous.is_ready(),
            .stopped = previous.is_ready() && !current.is_ready(),
            .lid_changed = previous.lid != current.lid || previous.lmc != current.lmc,
            .manager_changed = previous.sm_lid != current.sm_lid,
            .gids_changed = previous.gids != current.gids,
            .pkeys_changed = previous.pkeys != current.pkeys};
  }
};

}  // namespace verbena::sa
