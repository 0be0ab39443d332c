// Performs steps for the coordinator of sockets_fuzz.c in which a second thread of an actor waits
// in a call, while the first thread changes the objects of the wait.
#pragma once

#include "sockets_fuzz_orders.h"

static int helper_of(int actor) {
  return __atomic_load_n(&counters->helpers[actor], __ATOMIC_SEQ_CST);
}

// Returns 1 if the second thread has ended its call.  Returns 0 if the thread sleeps, and has slept
// for so long that nothing can wake it any more.
static int helper_call_has_ended(int actor) {
  push_packets();
  long asleep_since = now_ms();
  for (const long deadline = now_ms() + kHangMs; now_ms() < deadline;) {
    const int thread = helper_of(actor);
    if (thread == 0) return 1;
    const long now = now_ms();
    if (thread < 0 || !sleeps(actor, thread)) asleep_since = now;
    if (thread > 0 && sleeps(actor, thread) &&
        now - asleep_since >= (is_delayed ? kDelayedMs : kAsleepMs)) {
      return 0;
    }
    usleep(50);
  }
  return 0;
}

// Returns 1 if the order closes an epoll set that may have an entry with EPOLLONESHOT.  A wait for
// the set may then end (docs/limits.md).
static int closes_uncertain_set(int actor, const char* order) {
  return strncmp(order, "close ", 6) == 0 && (kinds_of(actor, number(order + 6)) & kIsUncertain);
}

// Carries out "thread ACTOR WAIT | ACTOR ORDER | ACTOR ORDER".  The second thread makes the call
// WAIT.  The second part is a call of the first thread.  The third part is a call of an actor that
// may wake the second thread.
static void perform_thread(char* text, char* result) {
  char wait[kLineMax] = "thread ", order_text[kLineMax], reply[kLineMax];
  char* parts[3] = {NULL};
  strcpy(result, "not now");
  if (split_parts(text, parts) != 3) return;
  const int a = number(parts[0]);
  if (a < 0 || a >= kActors || number(parts[1]) != a) return;
  if (!complete_order(a, strchr(parts[0], ' ') + 1, wait + 7)) return;
  const int at = number(strchr(wait + 7, ' ')) % kSlots;
  const int content = model[a][at];
  order_and_wait(a, wait, reply);
  int is_done = helper_call_has_ended(a);
  result[0] = '\0';
  for (int i = 1; i < 3; ++i) {
    const int actor = number(parts[i]);
    if (actor < 0 || actor >= kActors ||
        !complete_order(actor, strchr(parts[i], ' ') + 1, order_text) ||
        may_be_interrupted(a, wait + 7, actor, order_text) ||
        closes_uncertain_set(actor, order_text)) {
      append(result, "not now; ");
      continue;
    }
    order_and_wait(actor, order_text, reply);
    update_model(actor, order_text, reply);
    is_done = helper_call_has_ended(a);
    append(result, "%s%s; ", reply, is_done ? " (woken)" : "");
  }
  if (!is_done) syscall(SYS_tgkill, pids[a], helper_of(a), kEndOfWait);
  order_and_wait(a, "join -", reply);
  update_model_for(a, content, wait + 7, reply);
  append(result, "%s", reply);
  // The call has removed the timeouts of the connection, so set them again.
  for (int actor = 0; actor < kActors; ++actor) {
    for (int s = 0; s < kSlots; ++s) {
      if (pids[actor] == 0 || model[actor][s] != content || content == kSet) continue;
      snprintf(order_text, sizeof(order_text), "limits %d", s);
      order_and_wait(actor, order_text, reply);
    }
  }
}
