#include "cm/counters.h"
#include "cm/types.h"

namespace verbena::cm {

const char* to_string(State state) {
  switch (state) {
    case State::kReqSent: return "REQ_SENT";
    case State::kMraReqReceived: return "MRA_REQ_RCVD";
    case State::kRepReceived: return "REP_RCVD";
    case State::kReqReceived: return "REQ_RCVD";
    case State::kMraReqSent: return "MRA_REQ_SENT";
    case State::kRepSent: return "REP_SENT";
    case State::kMraRepReceived: return "MRA_REP_RCVD";
    case State::kEstablished: return "ESTABLISHED";
    case State::kDreqSent: return "DREQ_SENT";
    case State::kTimewait: return "TIMEWAIT";
    case State::kClosed: return "CLOSED";
  }
  return "?";
}

const char* to_string(Ignored reason) {
  switch (reason) {
    case Ignored::kMalformed: return "malformed";
    case Ignored::kOtherVersion: return "other class version";
    case Ignored::kPeerIsPassive: return "the peer is passive";
    case Ignored::kUnknownId: return "unknown comm id";
    case Ignored::kWrongRemoteId: return "wrong remote comm id";
    case Ignored::kWrongQpn: return "wrong QPN";
    case Ignored::kWrongState: return "wrong state";
    case Ignored::kNoRoom: return "no room";
    case Ignored::kNotYet: return "not listening yet";
    case Ignored::kCount: break;
  }
  return "?";
}

}  // namespace verbena::cm
