#!/bin/bash
# ctest: PLAIN
# Programs of different users must share a ring if root's socket service runs.  No user may claim a socket of another
# user.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export VERBENA_IDLE=600  # so that one service counts the bytes of all programs
need ss python3 setpriv
[ "$(id -u)" -eq 0 ] || skip "only root can start programs of other users"
setpriv --reuid=1000 --regid=1000 --clear-groups true 2>/dev/null || skip "there is no other user here"
as_other=(setpriv --reuid=1000 --regid=1000 --clear-groups)
"${as_other[@]}" test -x "$VB_PREFIX/bin/verbena" || skip "another user cannot run $VB_PREFIX/bin/verbena"
chmod 755 "$work"

cat >"$work/echo.py" <<'PY'
# The server becomes another user before it accepts, or in a child for each connection.
import os, signal, socket, sys
port, when = int(sys.argv[1]), sys.argv[2]
def become_other():
    os.setgroups([])
    os.setgid(1000)
    os.setuid(1000)
server = socket.create_server(("127.0.0.1", port))
if when == "before":
    become_other()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    connection, _ = server.accept()
    if when == "child":
        if os.fork() != 0:
            connection.close()
            continue
        become_other()
    while piece := connection.recv(1000):
        connection.sendall(piece)
    connection.close()
    if when == "child":
        os._exit(0)
PY
cat >"$work/call.py" <<'PY'
# The client exchanges bytes with the server until a file exists.
import os, socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while not os.path.exists(sys.argv[2]):
    connection.sendall(b"hello")
    assert connection.recv(100) == b"hello"
PY
listens_tcp() { ss -Htln "sport = :$1" | grep -q .; }
service_counter() { verbena sockets stat --json | python3 -c '
import json, sys
service = json.load(sys.stdin)["service"] or {"total": {}}
print(service["total"].get(sys.argv[1], service.get(sys.argv[1], 0)))' "$1"; }
# count_rows VERBENA-COMMAND...: prints the number of sockets that `verbena sockets ls` shows.
count_rows() { "$@" sockets ls --json | python3 -c '
import json, sys
print(len(json.load(sys.stdin)["sockets"]))'; }

# begin_call PORT VERBENA-COMMAND...: starts a client by this verbena command.
# end_call NAME: ends the client, and fails if the client has failed.
begin_call() {
  rm -f "$work/go"
  "${@:2}" run --sockets -- timeout 60 python3 "$work/call.py" "$1" "$work/go" &
  caller=$!
}
end_call() {
  touch "$work/go"
  wait $caller || fail "$1 fails"
}
other_user=("${as_other[@]}" "$VB_PREFIX/bin/verbena")

# ---- a server that gives up root's rights before it accepts (memcached -u, nginx's workers)
start run --sockets -- python3 "$work/echo.py" 20031 before >"$work/server" 2>&1 &
until_true 60 listens_tcp 20031 || fail "nothing listens: $(cat "$work/server")"
moves_bytes() { [ "$(service_counter pairs_made)" -eq 1 ] && [ "$(service_counter by_ring)" -gt 0 ]; }
begin_call 20031 verbena
until_true 20 moves_bytes || fail "root's client and another user's server have no ring: $(verbena sockets stat)"
end_call "a client of another user's server"

# ---- another user's client finds root's service
has_second_pair() { [ "$(service_counter pairs_made)" -eq 2 ]; }
begin_call 20031 "${other_user[@]}"
until_true 20 has_second_pair || fail "another user's client has no ring: $(verbena sockets stat)"
end_call "another user's client"

# ---- `sockets ls` shows a user the connections of the user's programs
# The service may notice the end of old connections a moment later than new ones.
sees_both_ends() { [ "$(count_rows verbena)" -eq 2 ]; }
sees_its_end() { [ "$(count_rows "${other_user[@]}")" -eq 1 ]; }
begin_call 20031 verbena
until_true 20 sees_both_ends || fail "root does not see both ends: $(verbena sockets ls)"
until_true 20 sees_its_end || fail "another user does not see exactly its own end: $("${other_user[@]}" sockets ls)"
end_call "a client whose ends are listed"

# ---- another user's program cannot claim a socket that root has accepted
start run --sockets -- python3 "$work/echo.py" 20032 child >"$work/server" 2>&1 &
until_true 60 listens_tcp 20032 || fail "nothing listens: $(cat "$work/server")"
pairs_before=$(service_counter pairs_made)
refused_before=$(service_counter claims_refused)
claim_is_refused() { [ "$(service_counter claims_refused)" -gt "$refused_before" ]; }
begin_call 20032 verbena
until_true 20 claim_is_refused || fail "the claim was not refused: $(verbena sockets stat)"
[ "$(service_counter pairs_made)" -eq "$pairs_before" ] || fail "another user's program has got a ring for root's socket"
end_call "a client of another user's child"
