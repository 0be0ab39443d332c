#pragma once

#include "base/time.h"

namespace verbena::hosts {

// Moves the packets of programs between the hosts of a fabric.  The owner calls forward()
// repeatedly, park() before its loop sleeps, and unpark() after that.  Only the loop's thread uses
// a Forwarder.
class Forwarder {
 public:
  Forwarder() = default;
  Forwarder(const Forwarder&) = delete;
  Forwarder& operator=(const Forwarder&) = delete;
  virtual ~Forwarder() = default;

  // Forwards some packets of each program.  Returns true if it forwarded a packet.
  virtual bool forward(Time now) = 0;
  // Asks the programs to wake the loop for the next packet.  Returns false if packets wait already.
  virtual bool park() = 0;
  // Tells the programs that they need not wake the loop any more.
  virtual void unpark() = 0;
};

}  // namespace verbena::hosts
