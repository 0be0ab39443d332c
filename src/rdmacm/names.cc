#include "rdmacm/id.h"
#include "rdmacm/types.h"

namespace verbena::rdmacm {

const char* to_string(EventKind kind) {
  switch (kind) {
    case EventKind::kAddrResolved: return "ADDR_RESOLVED";
    case EventKind::kAddrError: return "ADDR_ERROR";
    case EventKind::kRouteResolved: return "ROUTE_RESOLVED";
    case EventKind::kRouteError: return "ROUTE_ERROR";
    case EventKind::kConnectRequest: return "CONNECT_REQUEST";
    case EventKind::kConnectResponse: return "CONNECT_RESPONSE";
    case EventKind::kConnectError: return "CONNECT_ERROR";
    case EventKind::kUnreachable: return "UNREACHABLE";
    case EventKind::kRejected: return "REJECTED";
    case EventKind::kEstablished: return "ESTABLISHED";
    case EventKind::kDisconnected: return "DISCONNECTED";
    case EventKind::kDeviceRemoval: return "DEVICE_REMOVAL";
    case EventKind::kMulticastJoin: return "MULTICAST_JOIN";
    case EventKind::kMulticastError: return "MULTICAST_ERROR";
    case EventKind::kAddrChange: return "ADDR_CHANGE";
    case EventKind::kTimewaitExit: return "TIMEWAIT_EXIT";
    case EventKind::kAddrInfoResolved: return "ADDRINFO_RESOLVED";
    case EventKind::kAddrInfoError: return "ADDRINFO_ERROR";
    case EventKind::kUser: return "USER";
    case EventKind::kInternal: return "INTERNAL";
    case EventKind::kPathOffered: return "PATH_OFFERED";
    case EventKind::kPathAnswered: return "PATH_ANSWERED";
    case EventKind::kPathUnanswered: return "PATH_UNANSWERED";
  }
  return "?";
}

const char* to_string(IdState state) {
  switch (state) {
    case IdState::kIdle: return "idle";
    case IdState::kBound: return "bound";
    case IdState::kListening: return "listening";
    case IdState::kResolving: return "resolving";
    case IdState::kResolved: return "resolved";
    case IdState::kConnecting: return "connecting";
    case IdState::kResponded: return "responded";  // the peer has responded, by a REP
    case IdState::kRequested: return "requested";
    case IdState::kAccepting: return "accepting";
    case IdState::kConnected: return "connected";
    case IdState::kDisconnecting: return "disconnecting";
    case IdState::kDisconnected: return "disconnected";
    case IdState::kFailed: return "failed";
  }
  return "?";
}

}  // namespace verbena::rdmacm
