#include "hca/migration.h"

#include <utility>

namespace verbena::hca {

bool admit(QpCore& core, const wire::Bth& bth, const link::Address& address) {
  QpAttributes& a = core.attributes;
  const bool on_primary = link::is_from_peer(address, a.path.address);
  switch (a.migration) {
    case MigrationState::kMigrated: return on_primary;
    case MigrationState::kRearm:
      if (on_primary && !bth.migration_request) a.migration = MigrationState::kArmed;
      return on_primary;
    case MigrationState::kArmed: break;
  }
  if (!bth.migration_request) return on_primary;
  const link::Address& alternate = a.alternate_path.address;
  if (link::is_on_path(address, alternate)) return migrate(core);
  // The peer sent this packet before it was armed, but a later packet arrived first.  So the packet
  // is valid, but its MigReq bit does not mean that the peer has migrated.
  if (on_primary) return true;
  core.raise(QpEvent::Kind::kPathMigrationError);
  return false;
}

bool migrate(QpCore& core) {
  QpAttributes& a = core.attributes;
  if (a.migration != MigrationState::kArmed) return false;
  std::swap(a.path, a.alternate_path);
  std::swap(a.timeout, a.alternate_timeout);
  std::swap(a.pkey_index, a.alternate_pkey_index);
  std::swap(a.port, a.alternate_port);
  a.migration = MigrationState::kMigrated;
  ++core.shared.counters[Counter::kMigrations];
  core.raise(QpEvent::Kind::kPathMigrated);
  return true;
}

bool set_migration(QpCore& core, MigrationState target) {
  if (target == MigrationState::kMigrated && migrate(core)) return true;
  core.attributes.migration = target;
  return false;
}

}  // namespace verbena::hca
