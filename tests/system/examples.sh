#!/bin/bash
# Runs the examples of the C++ API without `verbena run`, and checks their results.  Also tests that a user can build
# the examples against an installed Verbena, by CMake and by pkg-config.
. "$(dirname "$0")/lib.sh"
need cmake pkg-config cmp ip
examples=$VB_PREFIX/examples
# Runs an example without `verbena run`: "${run_example[@]}" PROGRAM ARGUMENT...
run_example=(env "LD_PRELOAD=${VB_PRELOAD:-}" ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0)

serve() {  # serve WORD NAME ARGUMENT...: starts an example, and waits until it prints WORD
  local word=$1 name=$2
  shift 2
  : >"$work/$name.out"  # removes the output of an earlier run
  "${run_example[@]}" "$examples/$name" "$@" >"$work/$name.out" 2>&1 &
  server=$!
  has_printed() { gone $server || grep -q "$word" "$work/$name.out"; }
  until_true 20 has_printed && ! gone $server || fail "$name $*: $(cat "$work/$name.out")"
}
run_client() {  # run_client NAME ARGUMENT...
  local name=$1
  shift
  "${run_example[@]}" timeout 30 "$examples/$name" "$@" >"$work/client" 2>&1 || fail "$name $*: $(cat "$work/client")"
}

serve listening pingpong 7601
run_client pingpong 7601 127.0.0.1
grep -q '^1000 rounds of 64 bytes' "$work/client" || fail "pingpong: $(cat "$work/client")"
wait $server || fail "pingpong's server: $(cat "$work/pingpong.out")"
grep -q '^answered 1000 messages' "$work/pingpong.out" || fail "$(cat "$work/pingpong.out")"

serve listening write 7600
run_client write 7600 127.0.0.1 "written from afar"
wait $server || fail "write's server: $(cat "$work/write.out")"
grep -qx 'written from afar' "$work/write.out" || fail "write: $(cat "$work/write.out")"

head -c 9000001 /dev/urandom >"$work/file"
serve offering rcopy offer "$work/file" 7602
run_client rcopy fetch 127.0.0.1 7602 "$work/copy"
cmp "$work/file" "$work/copy" || fail "the copy differs from the file"
wait $server || fail "rcopy's server: $(cat "$work/rcopy.out")"

serve serving kvstore serve 7603 one=1 two=zwei "three=drei Worte"
for reader in 1 2 3; do
  "${run_example[@]}" "$examples/kvstore" get localhost 7603 three one two >"$work/reader.$reader" 2>&1 &
  readers[reader]=$!
done
for reader in 1 2 3; do
  wait "${readers[reader]}" || fail "kvstore get: $(cat "$work/reader.$reader")"
  [ "$(xargs <"$work/reader.$reader")" = "three=drei Worte one=1 two=zwei" ] ||
    fail "kvstore: $(cat "$work/reader.$reader")"
done
! "${run_example[@]}" "$examples/kvstore" get 127.0.0.1 7603 four >"$work/client" 2>&1 || fail "the key 'four' exists"
grep -q 'no such key: four' "$work/client" || fail "$(cat "$work/client")"
kill $server
wait $server 2>/dev/null || true

# Lets three programs chat.  One of them leaves the group, and must receive no messages after that.
ip addr add 10.99.0.1/24 dev lo
declare -A chat_input chat_pid
has_line() { grep -qsxF "$2" "$work/$1.chat"; }
wait_line() { until_true 20 has_line "$1" "$2" || fail "$1 does not print '$2': $(cat "$work/$1.chat")"; }
for name in red green blue; do
  mkfifo "$work/$name.in"
  (
    for fd in "${chat_input[@]}"; do exec {fd}>&-; done
    exec "${run_example[@]}" "$examples/chat" 239.77.3.1 10.99.0.1 $name
  ) <"$work/$name.in" >"$work/$name.chat" 2>&1 &
  chat_pid[$name]=$!
  exec {fd}>"$work/$name.in"
  chat_input[$name]=$fd
  wait_line $name "$name is here"
done
echo "hello" >&"${chat_input[red]}"
printf 'hello, red\nand blue\n' >&"${chat_input[green]}"
for name in red green blue; do
  for line in "red: hello" "green: hello, red" "green: and blue"; do wait_line $name "$line"; done
done
# Sends more lines than a queue pair has receive requests.
for number in $(seq 1 100); do
  echo "line $number" >&"${chat_input[red]}"
  [ $((number % 20)) -ne 0 ] || wait_line green "red: line $number"
done
# Sends more lines with one write than the send queue has entries.  A receiver may lose some of them.
printf 'burst %s\n' $(seq 1 200) >&"${chat_input[red]}"
ends_burst() { echo "end of burst" >&"${chat_input[red]}" && has_line green "red: end of burst"; }
until_true 20 ends_burst || fail "red does not end a burst: $(cat "$work/red.chat" "$work/green.chat")"
fd=${chat_input[blue]}
exec {fd}>&-
wait "${chat_pid[blue]}" || fail "blue: $(cat "$work/blue.chat")"
echo "is blue still here?" >&"${chat_input[red]}"
wait_line green "red: is blue still here?"
! has_line blue "red: is blue still here?" || fail "blue has left the chat, but still receives its messages"
for name in red green; do
  fd=${chat_input[$name]}
  exec {fd}>&-
  wait "${chat_pid[$name]}" || fail "$name: $(cat "$work/$name.chat")"
done
! "${run_example[@]}" "$examples/chat" 239.77.3.1 10.99.0.9 nobody >"$work/client" 2>&1 </dev/null ||
  fail "chat accepts an address that no interface has"
grep -q '^chat: 10.99.0.9 is no address of this host' "$work/client" || fail "$(cat "$work/client")"

# Builds the examples as a user does.
cmake --install "$VB_PREFIX" --prefix "$work/prefix" >"$work/install" 2>&1 || fail "$(tail -3 "$work/install")"
PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig
export PKG_CONFIG_PATH
# ccache saves the compilation if neither the example nor the installed headers have changed.
launcher=$(command -v ccache || true)
export CMAKE_CXX_COMPILER_LAUNCHER=$launcher CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=1
# shellcheck disable=SC2046
$launcher g++ "$VB_SOURCE/examples/pingpong.cc" $(pkg-config --cflags verbena) -c -o "$work/pingpong.o" &&
  g++ "$work/pingpong.o" $(pkg-config --libs verbena) -o "$work/pingpong" ||
  fail "pingpong does not build by pkg-config"
cmake -S "$VB_SOURCE/examples" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/cmake" 2>&1 &&
  cmake --build "$work/build" --target example_kvstore >>"$work/cmake" 2>&1 || fail "$(tail -5 "$work/cmake")"
# Checks that the package has a version, and that the headers name the C++ standard that they need.
printf 'cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\nfind_package(verbena ${WANTED} REQUIRED)\n' >"$work/CMakeLists.txt"
version=$(verbena --version | cut -d' ' -f2)
cmake -S "$work" -B "$work/version" -DCMAKE_PREFIX_PATH="$work/prefix" -DWANTED="$version" >"$work/cmake" 2>&1 ||
  fail "find_package(verbena $version): $(tail -5 "$work/cmake")"
! cmake -S "$work" -B "$work/version" -DCMAKE_PREFIX_PATH="$work/prefix" -DWANTED=99.0 >"$work/cmake" 2>&1 ||
  fail "find_package(verbena 99.0) finds $version"
grep -q "version: $version" "$work/cmake" || fail "the error does not name the version: $(cat "$work/cmake")"
! echo '#include <verbena/verbena.h>' | g++ -std=c++20 -I"$work/prefix/include" -x c++ -fsyntax-only - 2>"$work/older" ||
  fail "the headers compile as C++20"
grep -m1 error "$work/older" >"$work/older.first" && grep -q "need C++23: compile with -std=c++23" "$work/older.first" || fail "$(head -5 "$work/older")"
examples=$work
serve listening pingpong 7604
run_client pingpong 7604 127.0.0.1
wait $server || fail "pingpong's server: $(cat "$work/pingpong.out")"
! "${run_example[@]}" "$work/build/kvstore" 2>"$work/client" || fail "kvstore without arguments"
grep -q '^usage: kvstore' "$work/client" || fail "$(cat "$work/client")"
examples=$VB_PREFIX/examples

# Tests a port without a listener, and a name that does not exist.
! "${run_example[@]}" "$examples/pingpong" 7699 127.0.0.1 >"$work/client" 2>&1 || fail "pingpong connects to a port without a listener"
grep -qE '^pingpong: connect to 127\.0\.0\.1:7699 failed after [0-9.]+ m?s: rejected, .*no program listens' "$work/client" || fail "$(cat "$work/client")"
! "${run_example[@]}" "$examples/pingpong" 7699 nobody.invalid >"$work/client" 2>&1 || fail "pingpong resolves nobody.invalid"
grep -q "^pingpong: 'nobody.invalid':" "$work/client" || fail "$(cat "$work/client")"
verbena agent stop >/dev/null
until_true 20 no_agent || fail "the agent is still there"
check_nothing_left
