#include "base/error.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace verbena {

const char* to_string(Errc code) {
  switch (code) {
    case Errc::kInvalidArgument: return "invalid argument";
    case Errc::kBadHandle: return "no such object";
    case Errc::kBadState: return "not allowed in this state";
    case Errc::kBusy: return "busy";
    case Errc::kNoResources: return "limit reached";
    case Errc::kNotSupported: return "not supported";
    case Errc::kAddressInUse: return "address in use";
    case Errc::kAddressNotFound: return "address not found";
    case Errc::kUnreachable: return "unreachable";
    case Errc::kRejected: return "rejected";
    case Errc::kTimedOut: return "timed out";
    case Errc::kMalformed: return "malformed";
    case Errc::kFault: return "bad memory address";
    case Errc::kCancelled: return "cancelled";
    case Errc::kDeviceFatal: return "device removed";
    case Errc::kPermission: return "not permitted";
    case Errc::kSystem: return "system error";
  }
  return "unknown error";
}

int to_errno(const Error& error) {
  const bool has_errno = error.code != Errc::kRejected && error.code != Errc::kMalformed;
  if (has_errno && error.detail != 0) return error.detail;
  switch (error.code) {
    case Errc::kInvalidArgument: return EINVAL;
    case Errc::kBadHandle: return EINVAL;
    case Errc::kBadState: return EINVAL;
    case Errc::kBusy: return EBUSY;
    case Errc::kNoResources: return ENOMEM;
    case Errc::kNotSupported: return EOPNOTSUPP;
    case Errc::kAddressInUse: return EADDRINUSE;
    case Errc::kAddressNotFound: return EADDRNOTAVAIL;
    case Errc::kUnreachable: return EHOSTUNREACH;
    case Errc::kRejected: return ECONNREFUSED;
    case Errc::kTimedOut: return ETIMEDOUT;
    case Errc::kMalformed: return EPROTO;
    case Errc::kFault: return EFAULT;
    case Errc::kCancelled: return ECANCELED;
    case Errc::kDeviceFatal: return EIO;
    case Errc::kPermission: return EACCES;
    case Errc::kSystem: return EIO;
  }
  return EIO;
}

void check_failed(const char* condition, std::source_location where) {
  std::fprintf(stderr, "verbena: %s:%u: %s: this should never happen: !(%s)\n", where.file_name(),
               static_cast<unsigned>(where.line()), where.function_name(), condition);
  std::abort();
}

}  // namespace verbena
