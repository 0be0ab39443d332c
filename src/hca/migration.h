#pragma once

#include "hca/qp_core.h"
#include "link/flow.h"
#include "wire/bth.h"

// Path migration of a connected QP (vol1 17.2.8):
//
//              asked: kRearm            a packet without MigReq
//   MIGRATED ------------------> REARM -------------------------> ARMED
//      ^                                                            |
//      +--- asked: kMigrated; a packet with MigReq on the alternate +
//           path; no answer to a request on the primary one
//
// MigReq is set in what a QP sends in MIGRATED.  A peer that knows of no alternate path (Linux's
// soft-RoCE never sets the bit) looks like one that is armed, and ignores packets from elsewhere.
namespace verbena::hca {

// Is a packet from there for this QP?  What it says about the peer's path is noted; a peer that has
// migrated is followed.
bool admit(QpCore& core, const wire::Bth& bth, const link::Flow& flow);

// If it is armed: goes over to the alternate path.
bool migrate(QpCore& core);

// As the program asks.  True if it has gone over to the alternate path.
bool set_migration(QpCore& core, MigrationState wanted);

}  // namespace verbena::hca
