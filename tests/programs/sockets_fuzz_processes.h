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
  model[a][s] = 2 * connections;
  snprintf(text, sizeof(text), "accept %d %s", t, w[6]);
  order_and_wait(b, text, result);
  model[b][t] = 2 * connections + 1;
  ++connections;
}

// Sends bytes in both directions: under Verbena until some go by the ring each way, otherwise a few
// times.  Bit `side` of `rings_used` is set when bytes of that side went by the ring.
static void perform_warm(char** w) {
  const int a[2] = {number(w[1]), number(w[3])}, s[2] = {number(w[2]), number(w[4])};
  char text[64], result[kLineMax];
  int rings_used = 0;
  for (int side = 0; side < 2; ++side) {
    if (pids[a[side]] == 0 || model[a[side]][s[side]] < 0) return;
  }
  if ((model[a[0]][s[0]] ^ 1) != model[a[1]][s[1]]) return;
  ++ring_attempts;
  for (int round = 0; round < (is_verbena ? kWarmRounds : 3) && rings_used != 3 && !is_aborted;
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
        if (by_ring) rings_used |= 1 << side;
      }
    }
    if (round > 3) usleep(200);
  }
  if (rings_used == 3) ++ring_successes;
}

static void forget_actor(int actor) {
  pids[actor] = 0;
  for (int s = 0; s < kSlots; ++s) model[actor][s] = kNone;
}

// Ends an actor, by a signal or by its own exit, and waits until the kernel has closed its
// descriptors.  Waits by a pidfd, because the actor may be the child of another actor.  Returns the
// actor's status, or 0 if it is the child of another actor.
static int end_actor(int actor, int by_kill) {
  const int process = (int)syscall(SYS_pidfd_open, pids[actor], 0);
  if (process < 0) die("pidfd_open");
  if (by_kill) {
    for (int s = 0; s < kSlots; ++s) {
      if (model[actor][s] >= 0 && model[actor][s] != kSet) ends[model[actor][s]].was_killed = 1;
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

// Kills an actor, perhaps while it waits: "kill ACTOR ORDER".
static void perform_kill(const char* text, char* result) {
  const int a = number(text + 5);
  const char* wait = strchr(text + 5, ' ');
  char full_order[kLineMax] = "!", ignored[kLineMax];
  strcpy(result, "not now");
  if (a < 0 || a >= kActors || pids[a] == 0 || loses_reset(a)) return;
  for (int s = 0; s < kSlots; ++s) {
    const int end = model[a][s];
    // The kernel does not see unread bytes in the ring, so the peer would get an end of file and no
    // reset (docs/limits.md).
    if (end >= 0 && end != kSet && ends[end ^ 1].sent != ends[end ^ 1].received) return;
  }
  if (wait != NULL) {
    if (!complete_order(a, wait + 1, full_order + 1)) return;
    order_and_wait(a, full_order, ignored);
    until_it_sleeps(a);
  }
  end_actor(a, 1);
  forget_actor(a);
  strcpy(result, "0");
  // The next actor with this number uses the same socket, so read an answer of this actor now.
  if (has_answered(a)) read_answer(a, ignored, 0);
}

// Returns 1 if the actor holds both ends of a connection with unread bytes.  If exec() closes one
// end, TCP resets the other end.
static int may_reset_itself(int actor) {
  for (int s = 0; s < kSlots; ++s) {
    const int end = model[actor][s];
    if (end < 0 || end == kSet || ends[end].sent == ends[end].received) continue;
    for (int t = 0; t < kSlots; ++t) {
      if (model[actor][t] == (end ^ 1)) return 1;
    }
  }
  return 0;
}

// Returns 1 if the actor's end has unread bytes that are lost, with an error, when the descriptor
// is passed to a slot of actor `to`: if a process without the library may get the message, since
// all actors hold all Unix sockets; or if the kernel does not name the connection any more
// (docs/limits.md).  The slot may hold the peer's end, which actor `to` then closes first.
static int loses_unread_if_passed(int actor, int at, int to, int slot_of_to) {
  const int end = model[actor][at];
  if (ends[end ^ 1].sent == ends[end ^ 1].received) return 0;
  if (model[to][slot_of_to] == (end ^ 1)) return 1;
  for (int a = 0; a < kActors; ++a) {
    if (pids[a] != 0 && has_no_library[a]) return 1;
  }
  return has_closed(info_of(actor, at).state);
}

static void perform_process(char** w, char* result) {
  const int a = number(w[1]), b = number(w[2]);
  char text[64];
  strcpy(result, "not now");
  if (pids[a] == 0 || (w[0][0] == 'e' && loses_reset(a))) return;
  if (w[0][0] == 'f') {
    if (pids[b] != 0) return;
    result[0] = '\0';
    snprintf(text, sizeof(text), "fork %d", b);
    order_and_wait(a, text, result);
    pids[b] = atoi(result);
    masks[b] = masks[a];
    has_no_library[b] = has_no_library[a];
    for (int s = 0; s < kSlots; ++s) model[b][s] = model[a][s] == kSet ? kNone : model[a][s];
    if (pids[b] <= 0) die("fork");
    // Wait for an answer of the child.  Until the child knows its number, it would count signals
    // for its parent.
    order_and_wait(b, "limits -1", result);
    strcpy(result, "0");
  } else if (w[0][1] == 'x' && w[0][2] == 'e') {
    // Bytes in a ring make exec() differ from TCP (docs/limits.md).
    if (has_unread(a, w[2][0] != 'p') || may_reset_itself(a)) return;
    result[0] = '\0';
    snprintf(text, sizeof(text), "exec %s", w[2]);
    order_and_wait(a, text, result);
    has_no_library[a] = w[2][0] == 'p';
    // Ask which descriptors exec() has closed, and remove them from the model.
    for (int s = 0; s < kSlots; ++s) {
      char info[kLineMax];
      if (model[a][s] == kSet) model[a][s] = kNone;
      if (model[a][s] == kNone) continue;
      snprintf(text, sizeof(text), "info %d", s);
      order_and_wait(a, text, info);
      if (strcmp(info, "-1") == 0) model[a][s] = kNone;
    }
  } else if (w[0][0] == 'p') {
    const int s = number(w[2]), to = number(w[3]), t = number(w[4]);
    if (pids[to] == 0 || model[a][s] < 0 || model[a][s] == kSet) return;
    if (loses_unread_if_passed(a, s, to, t)) return;
    snprintf(text, sizeof(text), "give %d %d", s, to);
    result[0] = '\0';
    order_and_wait(a, text, result);
    snprintf(text, sizeof(text), "take %d", t);
    order_and_wait(to, text, result);
    if (atoi(result) == 0) model[to][t] = model[a][s];
  } else {
    snprintf(result, kLineMax, "status %d", end_actor(a, 0));
    forget_actor(a);
  }
}
