#pragma once

#include "hca/qp_core.h"
#include "link/address.h"
#include "wire/bth.h"

// Migrates a connected QP to another path (vol1 17.2.8):
//
//              program: kRearm          a packet without MigReq
//   MIGRATED ------------------> REARM -------------------------> ARMED
//      ^                                                            |
//      +------------------------------------------------------------+
//           program: kMigrated; a packet with MigReq on the alternate path;
//           no answer to a request on the primary path
//
// A connected QP sets MigReq in all packets that it sends in MIGRATED.  An implementation without
// migration, such as Linux's soft-RoCE, never sets the bit.  So it looks like an armed peer, but it
// ignores packets from other addresses.
namespace verbena::hca {

// Returns true if a packet with this address is from the QP's peer.  Also updates the migration
// state by the packet's MigReq bit, and migrates if the peer has migrated.
bool admit(QpCore& core, const wire::Bth& bth, const link::Address& address);

// Switches to the alternate path and returns true if the QP is armed.  Otherwise returns false.
bool migrate(QpCore& core);

// Sets the state that the program requests.  Returns true if that switched to the alternate path.
bool set_migration(QpCore& core, MigrationState target);

}  // namespace verbena::hca
