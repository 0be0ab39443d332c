#!/bin/bash
# Checks that our libraries translate names and numbers like Debian's, and the events of rdma-core 60.
# Arguments: the program that prints them.
diff "$(dirname "$0")/tables.txt" <("$1")
