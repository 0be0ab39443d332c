#pragma once

#include "subnet/topology.h"

namespace verbena::subnet {

// Gives each node of a netlist the name by which commands find it.  Before the call, `name` is the
// ID of the node in the netlist, which is unique, and all GUIDs are set.  The name is, in this
// order:
//
//   1. the ID, unless it is only a GUID, as ibnetdiscover writes it
//   2. the description
//   3. the description with one '-' in place of all characters that a name cannot have:
//      "node-1 HCA-1" becomes "node-1-HCA-1"
//   4. the GUID, as in "H-0002c90300000001"
//
// 2 and 3 need a text that no other node has as its name or its description.  An ID that cannot be
// a name becomes the description, if there is none.  If a netlist is written and parsed again, the
// names stay the same.
void name_nodes(Topology& topology);

}  // namespace verbena::subnet
