# Runs the ends of connections that are made without a connection manager (tests/programs/rc_end.c), on the hosts of
# tests/wire.  Source lib.sh and tests/wire/lib.sh first.
programs=$VB_PREFIX/tests/programs

# By name of an end: its pipes, the data that its peer needs (GID, QP number, PSN, memory), and its unread events.
declare -A end_in end_out end_address end_events

# Closes the pipes of the other ends and of the line in a subshell.  An open copy would hide their end of file.
close_pipes() {
  local fd
  for fd in "${end_in[@]}" "${end_out[@]}" "$line_in" "$line_out"; do exec {fd}>&-; done
}
# begin_end NAME HOST GID OPTION...: starts rc_end on a host; other functions refer to it by NAME.
begin_end() {
  local name=$1 host=$2 in out
  shift 2
  mkfifo "$work/$name.in" "$work/$name.out"
  (
    close_pipes
    start_on "$host" verbena run -- "$programs/rc_end" "$@"
  ) <"$work/$name.in" >"$work/$name.out" 2>"$work/err.$name" &
  exec {in}>"$work/$name.in" {out}<"$work/$name.out"
  end_in[$name]=$in end_out[$name]=$out end_events[$name]=
  expect "$name" here
  end_address[$name]=${reply#here }
}
# ask NAME COMMAND: sends a command to the end NAME.
ask() { (echo "$2" >&"${end_in[$1]}") 2>/dev/null || fail "$1 has ended: $(cat "$work/err.$1")"; }
# expect NAME WORD: reads the next answer of NAME into $reply, which must begin with the word.  Stores
# events for `hear`.
expect() {
  while read -r -t 60 reply <&"${end_out[$1]}"; do
    case "$reply" in
      event\ *) end_events[$1]+="${reply#event };" ;;
      "$2"*) return ;;
      *) fail "$1 says '$reply', not '$2'" ;;
    esac
  done
  fail "$1 does not say '$2': $(cat "$work/err.$1")"
}
# hear NAME EVENT: waits until the end NAME has reported the event.
hear() {
  local reply
  while [[ "${end_events[$1]}" != *"$2;"* ]]; do
    read -r -t 60 reply <&"${end_out[$1]}" || fail "$1 never hears '$2', only '${end_events[$1]}'"
    [[ "$reply" == event\ * ]] || fail "$1 says '$reply' before it hears '$2'"
    end_events[$1]+="${reply#event };"
  done
  end_events[$1]=${end_events[$1]/"$2;"/}
}
connect_ends() {  # connect_ends NAME NAME: connects two ends to each other
  ask "$1" "peer ${end_address[$2]}"
  ask "$2" "peer ${end_address[$1]}"
  expect "$1" connected
  expect "$2" connected
}
stop_end() {  # stop_end NAME: closes the input of an end, so that its program ends
  local in=${end_in[$1]} out=${end_out[$1]}
  exec {in}>&- {out}<&-
  rm "$work/$1.in" "$work/$1.out"
  unset "end_in[$1]" "end_out[$1]"
}
works() {  # works NAME: checks that NAME and its peer exchange data without errors
  ask "$1" "write 50000"
  expect "$1" good
}
# more_than NAME NUMBER: succeeds if the flow of NAME has had more than NUMBER good rounds.
more_than() {
  ask "$1" count
  expect "$1" count
  [ "${reply#count }" -gt "$2" ]
}
# flows NAME: waits until the flow of NAME has had 20 further good rounds.
flows() {
  ask "$1" count
  expect "$1" count
  until_true 60 more_than "$1" $((${reply#count } + 20)) || fail "$1: no data flows: $reply"
}
