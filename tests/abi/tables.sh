#!/bin/bash
# Our libraries translate names and numbers as Debian's do, and the events of rdma-core 60.
# Arguments: the program that prints them.
diff "$(dirname "$0")/tables.txt" <("$1")
