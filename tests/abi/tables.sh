#!/bin/bash
# Our libraries translate names and numbers as Debian's do.
# Arguments: the program that prints them.
diff "$(dirname "$0")/tables.txt" <("$1")
