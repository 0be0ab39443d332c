// Performs steps for the coordinator of sockets_fuzz.c in which a second thread of an actor waits
// in a call, while the first thread changes the descriptors for which the second one waits.
#pragma once

#include "sockets_fuzz_orders.h"

static int helper_thread_of(int actor) {
  return __atomic_load_n(&counters->helpers[actor], __ATOMIC_SEQ_CST);
}

// Waits for the end of the second thread's call.  Returns 1 if the call has ended.  Returns 0 if
// the thread sleeps, and has slept for so long that nothing can wake it any more.
static int wait_for_helper(int actor) {
  push_packets();
  long asleep_since = now_ms();
  for (const long deadline = now_ms() + kHangMs; now_ms() < deadline;) {
    const int thread = helper_thread_of(actor);
    if (thread == 0) return 1;
    const long now = now_ms();
    if (thread < 0 || !is_thread_asleep(actor, thread)) asleep_since = now;
    if (thread > 0 && is_thread_asleep(actor, thread) &&
        now - asleep_since >= (is_delayed ? kDelayedMs : kAsleepMs)) {
      return helper_thread_of(actor) == 0;  // it may have ended while this process had no processor
    }
    usleep(50);
  }
  return 0;
}

// Returns 1 if the order closes an epoll set that may have an entry with EPOLLONESHOT.  Another
// thread's wait for the set may then fail with EBADF (docs/limits.md).
static int may_end_wait_for_set(int actor, const char* order) {
  return starts_with(order, "close ") && (properties_of_set(actor, number(order + 6)) & kMayDiffer);
}

// Executes the step "thread ACTOR WAIT | ACTOR ORDER | ACTOR ORDER".  The second thread makes the
// call WAIT.  The second part is a call of the first thread.  The third part is a call of an actor
// that may wake the second thread.
static void perform_thread(char* text, char* result) {
  char wait[kLineMax] = "thread ", order_text[kLineMax], reply[kLineMax];
  char* parts[3] = {NULL};
  strcpy(result, "not now");
  if (split_parts(text, parts) != 3) return;
  const int a = number(parts[0]);
  if (a < 0 || a >= kActors || number(parts[1]) != a) return;
  if (!complete_order(a, strchr(parts[0], ' ') + 1, wait + 7)) return;
  const int at = number(strchr(wait + 7, ' ')) % kSlots;
  const int content = contents[a][at];
  order_and_wait(a, wait, reply);
  int is_done = wait_for_helper(a);
  result[0] = '\0';
  for (int i = 1; i < 3; ++i) {
    const int actor = number(parts[i]);
    if (actor < 0 || actor >= kActors ||
        !complete_order(actor, strchr(parts[i], ' ') + 1, order_text) ||
        may_be_interrupted(a, wait + 7, actor, order_text) ||
        may_end_wait_for_set(actor, order_text)) {
      append(result, "not now; ");
      continue;
    }
    order_and_wait(actor, order_text, reply);
    update_model(actor, order_text, reply);
    is_done = wait_for_helper(a);
    append(result, "%s%s; ", reply, is_done ? " (woken)" : "");
  }
  if (!is_done) syscall(SYS_tgkill, pids[a], helper_thread_of(a), kEndWaitSignal);
  order_and_wait(a, "join -", reply);
  update_model_for(a, content, wait + 7, reply);
  append(result, "%s", reply);
  // The call has removed the timeouts of the connection, so set them again.
  for (int actor = 0; actor < kActors; ++actor) {
    for (int s = 0; s < kSlots; ++s) {
      if (pids[actor] == 0 || contents[actor][s] != content || content == kSet) continue;
      snprintf(order_text, sizeof(order_text), "limits %d", s);
      order_and_wait(actor, order_text, reply);
    }
  }
}
