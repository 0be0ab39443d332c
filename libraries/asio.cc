// This file compiles the functions of asio once, because Debian has asio only as headers.
#include <asio/impl/src.hpp>
