# Runs endpoints of connections that are made without a connection manager (tests/programs/rc_end.c), on the hosts of
# tests/wire.  Source lib.sh and tests/wire/lib.sh first.
programs=$VB_PREFIX/tests/programs

# These maps have an entry for each endpoint, by its name: its pipes, the data that its peer needs (GID, QP number, PSN,
# memory), and its events that no wait_event has taken yet.
declare -A endpoint_in endpoint_out endpoint_address endpoint_events

# Closes the pipes of the other endpoints and of the line in a subshell.  A copy that stays open would keep their
# readers from seeing the end of file.
close_pipes() {
  local fd
  for fd in "${endpoint_in[@]}" "${endpoint_out[@]}" "$line_in" "$line_out"; do exec {fd}>&-; done
}
# start_endpoint NAME HOST GID OPTION...: starts rc_end on a host.  The other functions use NAME for this endpoint.
start_endpoint() {
  local name=$1 host=$2 in out
  shift 2
  mkfifo "$work/$name.in" "$work/$name.out"
  (
    close_pipes
    start_on "$host" verbena run -- "$programs/rc_end" "$@"
  ) <"$work/$name.in" >"$work/$name.out" 2>"$work/err.$name" &
  exec {in}>"$work/$name.in" {out}<"$work/$name.out"
  endpoint_in[$name]=$in endpoint_out[$name]=$out endpoint_events[$name]=
  expect_answer "$name" here
  endpoint_address[$name]=${reply#here }
}
# send_command NAME COMMAND: sends a command to the endpoint NAME.
send_command() { (echo "$2" >&"${endpoint_in[$1]}") 2>/dev/null || fail "$1 has ended: $(cat "$work/err.$1")"; }
# expect_answer NAME WORD: reads the next answer of NAME into $reply.  The answer must begin with the word.  Events that
# come before the answer are stored for wait_event.
expect_answer() {
  while read -r -t 60 reply <&"${endpoint_out[$1]}"; do
    case "$reply" in
      event\ *) endpoint_events[$1]+="${reply#event };" ;;
      "$2"*) return ;;
      *) fail "$1 answers '$reply', not '$2'" ;;
    esac
  done
  fail "$1 does not answer '$2': $(cat "$work/err.$1")"
}
# wait_event NAME EVENT: waits until the endpoint NAME has reported the event.
wait_event() {
  local reply
  while [[ "${endpoint_events[$1]}" != *"$2;"* ]]; do
    read -r -t 60 reply <&"${endpoint_out[$1]}" || fail "$1 gets no event '$2', only '${endpoint_events[$1]}'"
    [[ "$reply" == event\ * ]] || fail "$1 answers '$reply' before it gets the event '$2'"
    endpoint_events[$1]+="${reply#event };"
  done
  endpoint_events[$1]=${endpoint_events[$1]/"$2;"/}
}
connect_endpoints() {  # connect_endpoints NAME NAME: connects two endpoints to each other
  send_command "$1" "peer ${endpoint_address[$2]}"
  send_command "$2" "peer ${endpoint_address[$1]}"
  expect_answer "$1" connected
  expect_answer "$2" connected
}
stop_endpoint() {  # stop_endpoint NAME: closes the input of an endpoint, so that its program ends
  local in=${endpoint_in[$1]} out=${endpoint_out[$1]}
  exec {in}>&- {out}<&-
  rm "$work/$1.in" "$work/$1.out"
  unset "endpoint_in[$1]" "endpoint_out[$1]"
}
check_data() {  # check_data NAME: checks that NAME and its peer exchange data without errors
  send_command "$1" "write 50000"
  expect_answer "$1" good
}
# has_more_good_rounds_than NAME NUMBER: succeeds if more than NUMBER rounds of the flow of NAME were good.
has_more_good_rounds_than() {
  send_command "$1" count
  expect_answer "$1" count
  [ "${reply#count }" -gt "$2" ]
}
# check_flow NAME: checks that 20 further rounds of the flow of NAME are good.
check_flow() {
  send_command "$1" count
  expect_answer "$1" count
  until_true 60 has_more_good_rounds_than "$1" $((${reply#count } + 20)) || fail "$1: no data flows: $reply"
}
