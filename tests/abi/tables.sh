#!/bin/bash
# Checks that our libraries translate names and numbers like Debian's, and also name the events of rdma-core 60.
# Arguments: the program that prints the names and numbers (tables.cc).
diff "$(dirname "$0")/tables.txt" <("$1")
