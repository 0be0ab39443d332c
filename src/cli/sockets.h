#pragma once

#include <string>
#include <vector>

#include "broker/messages.h"
#include "cli/agent_connection.h"

// Implements `verbena sockets`, which shows the TCP connections of programs under
// `verbena run --sockets`, and starts the socket service for such programs.
namespace verbena::cli {

struct SocketListing {
  std::vector<broker::Row> rows{};
  broker::EndOfRows totals{};
};

struct SocketsOptions {
  bool totals = false;  // print the totals of the service, and no rows
  bool json = false;
};
int sockets(const SocketsOptions& options);

// Starts the socket service of this user and network namespace, if there is none.  Returns a
// problem, or nothing.
Answer<void> start_socket_service(const std::string& library_directory);

// These format a listing.
std::string sockets_as_text(const SocketListing& listing);
std::string sockets_as_json(const SocketListing& listing);
std::string socket_totals_as_text(const SocketListing& listing);
std::string socket_totals_as_json(const SocketListing& listing);

}  // namespace verbena::cli
