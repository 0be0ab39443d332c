#include <aio.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "preload/export.h"
#include "preload/leaving.h"
#include "preload/next.h"
#include "preload/socket_table.h"

// Defines the functions of asynchronous I/O (aio(7)).  A thread of the C library performs the
// requests later, by calls that this library does not wrap.  So the connections go back to TCP.
namespace verbena::preload {
namespace {

// Prepares the connection of a request.  Returns false and sets errno if the request would miss
// unread bytes in the ring.
bool prepare_request(const aiocb& request, bool reads) {
  const auto socket = SocketTable::find(request.aio_fildes);
  if (!socket) return true;
  const bool is_plain =
      leaving::use_only_tcp(request.aio_fildes, *socket, stream::Reason::kKernelCall);
  if (is_plain || !reads) return true;
  errno = EINVAL;
  return false;
}

bool prepare_listed_request(const aiocb* request) {
  if (request == nullptr || request->aio_lio_opcode == LIO_NOP) return true;
  return prepare_request(*request, request->aio_lio_opcode == LIO_READ);
}

}  // namespace
}  // namespace verbena::preload

namespace preload = verbena::preload;
using verbena::preload::next;

VB_EXPORT int aio_read(aiocb* request) noexcept {
  return preload::prepare_request(*request, true) ? next().aio_read(request) : -1;
}
VB_EXPORT int aio_write(aiocb* request) noexcept {
  return preload::prepare_request(*request, false) ? next().aio_write(request) : -1;
}
VB_EXPORT int lio_listio(int mode, aiocb* const* requests, int count, sigevent* event) noexcept {
  const std::span all(requests, static_cast<std::size_t>(std::max(count, 0)));
  if (!std::ranges::all_of(all, preload::prepare_listed_request)) return -1;
  return next().lio_listio(mode, requests, count, event);
}

// With offsets of 64 bits, the two kinds of requests are the same.
static_assert(sizeof(aiocb64) == sizeof(aiocb));
VB_EXPORT int aio_read64(aiocb64* request) noexcept {
  return aio_read(reinterpret_cast<aiocb*>(request));
}
VB_EXPORT int aio_write64(aiocb64* request) noexcept {
  return aio_write(reinterpret_cast<aiocb*>(request));
}
VB_EXPORT int lio_listio64(int mode, aiocb64* const* requests, int count,
                           sigevent* event) noexcept {
  return lio_listio(mode, reinterpret_cast<aiocb* const*>(requests), count, event);
}
