#!/bin/bash
# Runs rping between two Linux machines over the line that the other tests use, with faults.  If this test passes and a
# test with Verbena on one side fails, the line is not the cause.
source "$(dirname "${BASH_SOURCE[0]}")/../../system/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

make_linux_pair 4200
for family in 4 6; do
  address=$(address_of b $family)
  rping_round b 10 20000 "IPv$family"
done
dreq_may_be_lost=1 program_seconds=40
for faults in loss=1 duplicate=10 reorder=10 delay=20; do
  address=$(address_of b 4)
  line "both $faults"
  rping_round b 5 3000 "$faults"
done
line "both"
line_counts
check_captures
