// Performs steps for the coordinator of sockets_fuzz.c that make connections and processes, or that
// end processes.
#pragma once

#include "sockets_fuzz_orders.h"

// ---- connections and processes

static void perform_connect(char** w, char* result) {
  const int a = number(w[1]), s = number(w[2]), b = number(w[3]), t = number(w[4]);
  char text[64];
  if (connections == kConnectionsMax || pids[a] == 0 || pids[b] == 0) return;
  snprintf(text, sizeof(text), "connect %d %s", s, w[5]);
  order_and_wait(a, text, result);
  contents[a][s] = 2 * connections;
  snprintf(text, sizeof(text), "accept %d %s", t, w[6]);
  order_and_wait(b, text, result);
  contents[b][t] = 2 * connections + 1;
  ++connections;
}

// Sends bytes in both directions.  Under Verbena, repeats this until the rings of both directions
// have carried bytes.  With TCP, repeats this a few times.  Bit `side` of `used_rings` is set when
// the ring has carried bytes of that side.
static void perform_warm(char** w) {
  const int a[2] = {number(w[1]), number(w[3])}, s[2] = {number(w[2]), number(w[4])};
  char text[64], result[kLineMax];
  int used_rings = 0;
  for (int side = 0; side < 2; ++side) {
    if (pids[a[side]] == 0 || contents[a[side]][s[side]] < 0) return;
  }
  if ((contents[a[0]][s[0]] ^ 1) != contents[a[1]][s[1]]) return;
  ++ring_attempts;
  for (int round = 0; round < (is_verbena ? kWarmRounds : 3) && used_rings != 3 && !is_aborted;
       ++round) {
    for (int side = 0; side < 2; ++side) {
      snprintf(text, sizeof(text), "send %d send 1500 - 0 0", s[side]);
      order_and_wait(a[side], text, result);
      for (int got = 0; got < 1500 && !is_aborted;) {
        int n = 0, by_ring = 0;
        snprintf(text, sizeof(text), "rings %d", s[1 - side]);
        order_and_wait(a[1 - side], text, result);
        sscanf(result, "%d %d", &n, &by_ring);
        if (n == 0) return;
        if (n > 0) got += n;
        if (by_ring) used_rings |= 1 << side;
      }
    }
    if (round > 3) usleep(200);
  }
  if (used_rings == 3) ++ring_successes;
}

// Removes an actor that has ended from the model.
static void remove_actor(int actor) {
  pids[actor] = 0;
  for (int s = 0; s < kSlots; ++s) contents[actor][s] = kNone;
}

// Ends an actor, by a signal or by its own exit, and waits until the kernel has closed its
// descriptors.  Waits by a pidfd, because the actor may be the child of another actor.  Returns the
// actor's status, or 0 if it is the child of another actor.
static int end_actor(int actor, int by_kill) {
  const int process = (int)syscall(SYS_pidfd_open, pids[actor], 0);
  if (process < 0) die("pidfd_open");
  if (by_kill) {
    for (int s = 0; s < kSlots; ++s) {
      if (contents[actor][s] >= 0 && contents[actor][s] != kSet)
        ends[contents[actor][s]].was_killed = 1;
    }
    kill(pids[actor], SIGKILL);
  } else {
    send_order(actor, "quit");
  }
  struct pollfd one = {process, POLLIN, 0};
  if (poll(&one, 1, kHangMs) != 1) is_aborted = 1;
  close(process);
  int status = 0;
  waitpid(pids[actor], &status, WNOHANG);
  return status;
}

// Executes the step "kill ACTOR [ORDER]": kills an actor, while it waits in the call of the order
// if there is one.
static void perform_kill(const char* text, char* result) {
  const int a = number(text + 5);
  const char* wait = strchr(text + 5, ' ');
  char full_order[kLineMax] = "!", ignored[kLineMax];
  strcpy(result, "not now");
  if (a < 0 || a >= kActors || pids[a] == 0 || close_would_not_reset(a)) return;
  for (int s = 0; s < kSlots; ++s) {
    const int end = contents[a][s];
    // The kernel does not know that the ring has unread bytes.  So the peer would get an end of
    // file and not a reset (docs/limits.md).
    if (end >= 0 && end != kSet && ends[end ^ 1].sent != ends[end ^ 1].received) return;
  }
  if (wait != NULL) {
    if (!complete_order(a, wait + 1, full_order + 1)) return;
    order_and_wait(a, full_order, ignored);
    wait_until_asleep(a);
  }
  end_actor(a, 1);
  remove_actor(a);
  strcpy(result, "0");
  // The next actor with this number uses the same socket, so read an answer of this actor now.
  if (has_answered(a)) read_answer(a, ignored, 0);
}

// Returns 1 if the actor has both ends of a connection with unread bytes.  If exec() closes one
// end, TCP resets the other end.
static int may_reset_itself(int actor) {
  for (int s = 0; s < kSlots; ++s) {
    const int end = contents[actor][s];
    if (end < 0 || end == kSet || ends[end].sent == ends[end].received) continue;
    for (int t = 0; t < kSlots; ++t) {
      if (contents[actor][t] == (end ^ 1)) return 1;
    }
  }
  return 0;
}

// Returns 1 if the actor's end has unread bytes that would be lost, with an error, if the actor
// passed the descriptor to a slot of actor `to` (docs/limits.md).
static int loses_unread_if_passed(int actor, int at, int to, int slot_of_to) {
  const int end = contents[actor][at];
  if (ends[end ^ 1].sent == ends[end ^ 1].received) return 0;
  // Actor `to` closes the old descriptor in its slot first, which may be the peer's end.
  if (contents[to][slot_of_to] == (end ^ 1)) return 1;
  // All actors have all Unix sockets, so an actor without the library may receive the message.
  for (int a = 0; a < kActors; ++a) {
    if (pids[a] != 0 && has_no_library[a]) return 1;
  }
  // The kernel does not confirm the name of such a connection any more.
  return has_closed(info_of(actor, at).state);
}

static void perform_process(char** w, char* result) {
  const int a = number(w[1]), b = number(w[2]);
  char text[64];
  const int is_exec = strcmp(w[0], "exec") == 0;
  const int is_exit = strcmp(w[0], "exit") == 0;
  strcpy(result, "not now");
  if (pids[a] == 0 || ((is_exec || is_exit) && close_would_not_reset(a))) return;
  if (strcmp(w[0], "fork") == 0) {
    if (pids[b] != 0) return;
    result[0] = '\0';
    snprintf(text, sizeof(text), "fork %d", b);
    order_and_wait(a, text, result);
    pids[b] = atoi(result);
    masks[b] = masks[a];
    has_no_library[b] = has_no_library[a];
    for (int s = 0; s < kSlots; ++s)
      contents[b][s] = contents[a][s] == kSet ? kNone : contents[a][s];
    if (pids[b] <= 0) die("fork");
    // Wait for an answer of the child.  Before the child knows its own number, it would count
    // signals as signals of its parent.
    order_and_wait(b, "limits -1", result);
    strcpy(result, "0");
  } else if (is_exec) {
    const int is_plain = strcmp(w[2], "plain") == 0;
    // The result of exec() differs from TCP if a ring has unread bytes (docs/limits.md).
    if (has_unread(a, !is_plain) || may_reset_itself(a)) return;
    result[0] = '\0';
    snprintf(text, sizeof(text), "exec %s", w[2]);
    order_and_wait(a, text, result);
    has_no_library[a] = is_plain;
    // Ask which descriptors exec() has closed, and remove them from the model.
    for (int s = 0; s < kSlots; ++s) {
      char info[kLineMax];
      if (contents[a][s] == kSet) contents[a][s] = kNone;
      if (contents[a][s] == kNone) continue;
      snprintf(text, sizeof(text), "info %d", s);
      order_and_wait(a, text, info);
      if (strcmp(info, "-1") == 0) contents[a][s] = kNone;
    }
  } else if (strcmp(w[0], "pass") == 0) {
    const int s = number(w[2]), to = number(w[3]), t = number(w[4]);
    if (pids[to] == 0 || contents[a][s] < 0 || contents[a][s] == kSet) return;
    if (loses_unread_if_passed(a, s, to, t)) return;
    snprintf(text, sizeof(text), "give %d %d", s, to);
    result[0] = '\0';
    order_and_wait(a, text, result);
    snprintf(text, sizeof(text), "take %d", t);
    order_and_wait(to, text, result);
    if (atoi(result) == 0) contents[to][t] = contents[a][s];
  } else {
    snprintf(result, kLineMax, "status %d", end_actor(a, 0));
    remove_actor(a);
  }
}
