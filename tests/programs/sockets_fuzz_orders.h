// Performs steps for the coordinator of sockets_fuzz.c: a call of one actor, or a call that waits
// and a call of another actor that wakes it.
#pragma once

#include "sockets_fuzz_model.h"

// ---- one order of a sequence

// Returns 1 if a connection of the actor has unread bytes.  With `only_ended`, only connections
// that have ended count.
static int has_unread(int actor, int only_ended) {
  for (int s = 0; s < kSlots; ++s) {
    const int end = contents[actor][s];
    if (end < 0 || end == kSet || ends[end ^ 1].sent == ends[end ^ 1].received) continue;
    if (!only_ended || has_closed(info_of(actor, s).state)) return 1;
  }
  return 0;
}

// Returns 1 if the actor has an end with unread bytes, and another process with a descriptor of
// this end was killed.  The shared memory still counts the killed process as a user of the end.  So
// a close by this actor would not reset the connection (docs/limits.md).
static int close_would_not_reset(int actor) {
  for (int s = 0; s < kSlots; ++s) {
    const int end = contents[actor][s];
    if (end < 0 || end == kSet || !ends[end].was_killed) continue;
    if (ends[end ^ 1].sent != ends[end ^ 1].received) return 1;
  }
  return 0;
}

// Returns the properties of the epoll set in a slot.  Returns 0 if the slot has no set.
static int properties_of_set(int actor, int at) {
  const int has_set = at >= 0 && at < kSlots && contents[actor][at] == kSet;
  return has_set ? set_properties[actor][at] : 0;
}

// Returns 1 if any epoll set is in another set with EPOLLET.
static int has_edge_triggered_inner_set(void) {
  for (int a = 0; a < kActors; ++a) {
    for (int s = 0; s < kSlots; ++s) {
      if ((properties_of_set(a, s) & kIsEdgeTriggeredInner) != 0) return 1;
    }
  }
  return 0;
}

// Returns 0 if a change of an epoll set could make the ring differ from TCP in a known way, and
// records the properties of the set.  There are three such ways (docs/limits.md):
//
// 1. After the library has reported a ring with EPOLLONESHOT, the kernel still has the entry armed.
//    So poll() and an outer set may find the set ready once, which would not happen with TCP.
//
// 2. An outer set may have the set with EPOLLET.  EPOLL_CTL_MOD makes the outer set report the set
//    again only if the kernel did not know that the entry was ready.  The kernel does not know
//    that a ring has bytes.
//
// 3. With EPOLLET and EPOLLOUT, the arrival of bytes is also reported as output.  poll() and an
//    outer set find this report even if the bytes have been read.  TCP reports output when
//    acknowledgements arrive.
static int may_change_set(int actor, char** w) {
  if (strcmp(w[2], "del") == 0) return 1;
  const int set = number(w[1]) % kSlots, target = number(w[3]);
  const uint32_t events = parse_words(kEventWords, w[4]);
  const int has_inner = target >= 0 && target < kSlots && contents[actor][target] == kSet;
  const int properties = set_properties[actor][set];
  const int may_differ = (events & EPOLLONESHOT) != 0 ||
                         ((events & EPOLLET) != 0 && (events & (EPOLLOUT | EPOLLWRNORM)) != 0);
  if ((properties & kIsInner) != 0 && may_differ) return 0;
  if ((properties & kIsEdgeTriggeredInner) != 0 && strcmp(w[2], "mod") == 0) return 0;
  if ((properties_of_set(actor, target) & kMayDiffer) != 0) return 0;
  if (may_differ) set_properties[actor][set] |= kMayDiffer;
  if (has_inner)
    set_properties[actor][target] |= kIsInner | (events & EPOLLET ? kIsEdgeTriggeredInner : 0);
  return 1;
}

// Stores the order in `full_order`, and adds the parts that only the coordinator knows.  Returns 0
// if the order is impossible now, or if its result may differ from TCP in a known way.
static int complete_order(int actor, const char* text, char* full_order) {
  char copy[kLineMax];
  char* w[kWords];
  strcpy(copy, text);
  strcpy(full_order, text);
  if (pids[actor] == 0 || split(copy, w, kWords) < 2) return 0;
  const int at = number(w[1]) % kSlots;
  const int content = contents[actor][at];
  const int is_signal_order = strcmp(w[0], "sigmask") == 0 || strcmp(w[0], "signals") == 0;
  if (strcmp(w[0], "epnew") == 0 || is_signal_order) return 1;
  if (content == kNone) return 0;
  if (strcmp(w[0], "poll") == 0 || strcmp(w[0], "select") == 0) {
    if (((properties_of_set(actor, at) | properties_of_set(actor, number(w[3]))) & kMayDiffer) != 0)
      return 0;
  }
  if (strcmp(w[0], "epctl") == 0) return content == kSet && may_change_set(actor, w);
  if (strcmp(w[0], "epwait") == 0) return content == kSet;
  if (content == kSet) {
    return strcmp(w[0], "close") == 0 || strcmp(w[0], "dup") == 0 || strcmp(w[0], "poll") == 0 ||
           strcmp(w[0], "select") == 0;
  }
  const struct end* mine = &ends[content];
  const struct end* peer = &ends[content ^ 1];
  if (strcmp(w[0], "close") == 0 || strcmp(w[0], "dup") == 0) {
    if (close_would_not_reset(actor)) return 0;
  }
  // With EPOLLET, TCP reports unread bytes again after this call, and the library does not
  // (docs/limits.md).
  if (strcmp(w[0], "shut") == 0 && number(w[2]) == SHUT_WR &&
      (mine->is_edge_triggered || has_edge_triggered_inner_set())) {
    return peer->sent == peer->received;
  }
  // SO_RCVLOWAT has no effect on bytes that already lie in the ring (docs/limits.md).
  if (strcmp(w[0], "set") == 0 && strcmp(w[2], "lowat") == 0) return peer->sent == peer->received;
  if (strcmp(w[0], "send") == 0) {
    const unsigned unread = mine->sent - mine->received;
    if (unread >= kUnreadMax) return 0;
    // If the kernel's next byte is an urgent byte, the kernel drops this byte when another urgent
    // byte arrives.  The kernel does not know that the ring has older bytes (docs/limits.md).
    if (unread == 0) ends[content].has_urgent = 0;
    if (strstr(w[4], "oob") != NULL && unread > 0) {
      if (mine->has_urgent || strcmp(w[2], "sendmmsg") == 0) return 0;
    }
    // With Nagle's algorithm, the second segment of a call may be sent before the reset arrives
    // that answers the first segment.
    const int is_stdio = strcmp(w[2], "stdio") == 0;
    const int has_two_segments = is_stdio || strcmp(w[2], "sendmmsg") == 0;
    if (is_delayed && peer->is_closed && has_two_segments) return 0;
    // The shared memory still says that the killed receiver will read its ring, so the next bytes
    // may go into that ring (docs/limits.md).
    if (peer->was_killed && peer->is_closed) return 0;
    unsigned size = (unsigned)number(w[3]);
    if (size > kUnreadMax - unread) size = kUnreadMax - unread;
    const int needs_bytes = is_stdio || strcmp(w[2], "splice") == 0 || strcmp(w[2], "dprintf") == 0;
    if (needs_bytes && size == 0) size = 1;
    snprintf(full_order, kLineMax, "send %s %s %u %s %d %u", w[1], w[2], size, w[4], content,
             mine->sent - mine->flooded);
  } else if (strcmp(w[0], "recv") == 0 && strcmp(w[2], "stdio") == 0) {
    const unsigned unread = peer->sent - peer->received;
    if (unread == 0) return 0;
    snprintf(full_order, kLineMax, "recv %s stdio %u -", w[1], unread);
  }
  return 1;
}

// Updates the model after a call on a slot that had this content.
static void update_model_for(int actor, int content, const char* text, const char* result) {
  char copy[kLineMax];
  char* w[kWords];
  strcpy(copy, text);
  split(copy, w, kWords);
  const int at = number(w[1]) % kSlots;
  const int value = atoi(result);
  if (strcmp(w[0], "send") == 0 && value > 0) {
    if (strstr(w[4], "oob") != NULL) ends[content].has_urgent = 1;
    ends[content].sent += (unsigned)value;
    if (ends[content ^ 1].is_closed) ends[content].sent_after_close = 1;
  } else if (strcmp(w[0], "recv") == 0 && value > 0) {
    // An urgent byte may be counted twice, so `received` is limited below.
    if (strstr(w[4], "peek") == NULL) ends[content ^ 1].received += (unsigned)value;
    if (ends[content ^ 1].received > ends[content ^ 1].sent) {
      ends[content ^ 1].received = ends[content ^ 1].sent;
    }
  } else if (strcmp(w[0], "shut") == 0 && value == 0) {
    ends[content].has_shut_send |= number(w[2]) != SHUT_RD;
    ends[content].has_shut_receive |= number(w[2]) != SHUT_WR;
  } else if (strcmp(w[0], "close") == 0) {
    contents[actor][at] = kNone;
  } else if (strcmp(w[0], "set") == 0 && strcmp(w[2], "nodelay") == 0) {
    is_delayed |= number(w[3]) == 0;
  } else if (strcmp(w[0], "epctl") == 0 && value == 0) {
    const int target = number(w[3]);
    const int end = target >= 0 && target < kSlots ? contents[actor][target] : kNone;
    if (strcmp(w[2], "del") != 0 && end >= 0 && end != kSet) {
      const uint32_t events = parse_words(kEventWords, w[4]);
      ends[end].is_edge_triggered |= (events & EPOLLET) != 0 && (events & EPOLLOUT) == 0;
    }
  } else if (strcmp(w[0], "own") == 0) {
    ends[content].owner = pids[actor];
  } else if (strcmp(w[0], "async") == 0) {
    ends[content].is_async = number(w[2]);
  } else if (strcmp(w[0], "sigmask") == 0) {
    masks[actor] = parse_words(kMaskWords, w[2]);
  } else if (strcmp(w[0], "epnew") == 0) {
    contents[actor][at] = kSet;
    set_properties[actor][at] = 0;
  } else if (strcmp(w[0], "dup") == 0 && value == 0) {
    const int to = number(w[2]) % kSlots;
    contents[actor][to] = content;
    // The two slots now have the same set, whose properties are not tracked any more.  So assume
    // all properties, which excludes all orders that could differ from TCP.
    if (content == kSet)
      set_properties[actor][to] = set_properties[actor][at] =
          kMayDiffer | kIsInner | kIsEdgeTriggeredInner;
  }
}

static void update_model(int actor, const char* text, const char* result) {
  const char* at = strchr(text, ' ');
  update_model_for(actor, contents[actor][number(at) % kSlots], text, result);
}

static void perform_order(int actor, const char* text, char* result) {
  char full_order[kLineMax];
  if (!complete_order(actor, text, full_order)) {
    strcpy(result, "not now");
    return;
  }
  order_and_wait(actor, full_order, result);
  update_model(actor, full_order, result);
}

// ---- waits

static int has_answered(int actor) {
  struct pollfd one = {kOrders + actor, POLLIN, 0};
  return poll(&one, 1, 0) == 1;
}

// Returns 1 if the thread sleeps in the kernel.
static int is_thread_asleep(int actor, int thread) {
  char path[64], text[512];
  snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", (int)pids[actor], thread);
  FILE* file = fopen(path, "r");
  if (file == NULL) return 1;
  const size_t got = fread(text, 1, sizeof(text) - 1, file);
  fclose(file);
  text[got] = '\0';
  const char* end = strrchr(text, ')');
  return end != NULL && end[2] == 'S';
}

static int is_asleep(int actor) { return is_thread_asleep(actor, pids[actor]); }

// Returns 1 if the actor sleeps because the library waits for the service.  The library talks to
// the service before it makes the call of the order.  The numbers of its own descriptors begin at
// kLibraryFdMin.
static int is_waiting_for_service(int actor) {
  enum { kLibraryFdMin = 1000 };
  char path[64];
  long call = -1;
  unsigned long fd = 0;
  snprintf(path, sizeof(path), "/proc/%d/syscall", (int)pids[actor]);
  FILE* file = fopen(path, "r");
  if (file == NULL) return 0;
  if (fscanf(file, "%ld %lx", &call, &fd) != 2) call = -1;
  fclose(file);
  return (call == SYS_recvmsg || call == SYS_connect) && fd >= kLibraryFdMin;
}

// Returns when the actor sleeps in the call that it was ordered to make, or has answered.
static void wait_until_asleep(int actor) {
  for (const long deadline = now_ms() + kHangMs; now_ms() < deadline;) {
    if (has_answered(actor)) return;
    if (is_asleep(actor) && !is_waiting_for_service(actor) && is_asleep(actor)) return;
    usleep(20);
  }
}

// Waits for the actor's answer.  Returns 1 if the actor has answered.  Returns 0 if the actor
// sleeps, and has slept for so long that nothing can wake it any more.
static int wait_for_answer(int actor) {
  push_packets();
  long asleep_since = now_ms();
  for (const long deadline = now_ms() + kHangMs; now_ms() < deadline;) {
    if (has_answered(actor)) return 1;
    const long now = now_ms();
    if (!is_asleep(actor)) asleep_since = now;
    // The actor may have answered while this process had no processor.
    if (now - asleep_since > (is_delayed ? kDelayedMs : kAsleepMs)) return has_answered(actor);
    usleep(50);
  }
  return 0;
}

// Splits "NAME part | part | part".  Returns the number of parts.
static int split_parts(char* text, char* parts[3]) {
  int count = 0;
  text = strchr(text, ' ') + 1;
  for (char* part = strtok(text, "|"); part != NULL && count < 3; part = strtok(NULL, "|")) {
    parts[count++] = part[0] == ' ' ? part + 1 : part;
  }
  return count;
}

// Reads the result of an actor that waits.  If nothing wakes the actor, wakes it by a signal.
static void end_wait(int actor, char* result) {
  const int is_woken = wait_for_answer(actor);
  if (!is_woken) kill(pids[actor], kEndWaitSignal);
  if (!read_answer(actor, result, kHangMs)) is_aborted = 1;
  if (!is_woken) append(result, " (not woken)");
}

// Returns the signals that are blocked while the actor makes this call.
static uint32_t blocked_signals(int actor, const char* text) {
  char copy[kLineMax];
  char* w[kWords];
  strcpy(copy, text);
  split(copy, w, kWords);
  const char* mask = NULL;
  if (strcmp(w[0], "poll") == 0 || strcmp(w[0], "select") == 0) mask = w[6];
  if (strcmp(w[0], "epwait") == 0) mask = w[4];
  return mask != NULL ? parse_words(kMaskWords, mask) : masks[actor];
}

// Returns 1 if the result of `wait` depends on time, because the kernel may send the actor a signal
// together with the bytes that `wait` waits for.  The signal may arrive just before the bytes.  The
// kernel then restarts a recv(), which always returns the bytes.  Other calls may or may not fail
// with EINTR.
static int may_be_interrupted(int actor, const char* wait, int other, const char* act) {
  char copies[2][kLineMax];
  char* w[2][kWords];
  strcpy(copies[0], wait);
  strcpy(copies[1], act);
  for (int i = 0; i < 2; ++i) split(copies[i], w[i], kWords);
  const int from = contents[other][number(w[1][1]) % kSlots];
  if (from < 0 || from == kSet) return 0;
  const struct end* to = &ends[from ^ 1];
  if (to->owner != pids[actor] || (!to->is_async && strstr(act, "oob") == NULL)) return 0;
  return strcmp(w[0][0], "recv") != 0 || strstr(wait, "waitall") != NULL ||
         contents[actor][number(w[0][1]) % kSlots] != (from ^ 1);
}

// Returns 1 if `act` sends an urgent byte after other bytes, and `wait` is not a recv().  The
// kernel reports the urgent byte before it queues the other bytes of the segment.  So a poll() may
// wake too early, and then reports the urgent byte but no input.
static int may_wake_before_bytes(const char* wait, const char* act) {
  char copy[kLineMax];
  char* w[kWords];
  strcpy(copy, act);
  const int count = split(copy, w, kWords);
  return !starts_with(wait, "recv ") && count > 4 && strcmp(w[0], "send") == 0 &&
         strstr(w[4], "oob") != NULL && number(w[3]) > 1;
}

// Makes one actor wait.  Sends it a signal if the step contains one.  Then makes another actor
// make a call that may wake the first actor.
static void perform_wake(char* text, char* result) {
  char wait_order[kLineMax], full_order[kLineMax], signal_note[kLineMax] = "";
  char* parts[3] = {NULL};
  const int has_signal = starts_with(text, "signal ");
  const int count = split_parts(text, parts);
  if (count != (has_signal ? 3 : 2)) return;
  const int a = atoi(parts[0]);
  const char* act = parts[count - 1];
  const int b = atoi(act);
  if (a < 0 || a >= kActors || b < 0 || b >= kActors || a == b) return;
  wait_order[0] = '!';
  if (!complete_order(a, strchr(parts[0], ' ') + 1, wait_order + 1) ||
      !complete_order(b, strchr(act, ' ') + 1, full_order) ||
      may_be_interrupted(a, wait_order + 1, b, full_order) ||
      may_wake_before_bytes(wait_order + 1, full_order)) {
    strcpy(result, "not now");
    return;
  }
  order_and_wait(a, wait_order, result);
  wait_until_asleep(a);
  if (has_signal) {
    const int is_first = strstr(parts[1], "USR1") != NULL;
    const enum signal_kind kind = is_first ? kUsr1 : kUsr2;
    const int is_blocked =
        (blocked_signals(a, wait_order + 1) & (is_first ? kMaskUsr1 : kMaskUsr2)) != 0;
    const unsigned before = handled_signals(a, kind);
    kill(pids[a], is_first ? SIGUSR1 : SIGUSR2);
    const long deadline = now_ms() + kHangMs;
    while (!is_blocked && handled_signals(a, kind) == before) {
      if (now_ms() > deadline) is_aborted = 1;
      if (is_aborted) break;
      usleep(20);
    }
    usleep(100);
    wait_until_asleep(a);
    append(signal_note, "%s", has_answered(a) ? " (after the signal)" : "");
  }
  char act_reply[kLineMax];
  order_and_wait(b, full_order, act_reply);
  end_wait(a, result);
  update_model(b, full_order, act_reply);
  update_model(a, wait_order + 1, result);
  append(result, "%s; then %s", signal_note, act_reply);
}

// Makes two actors wait for their epoll sets, which both contain the same connection or listener.
// Then a third actor sends, or connects to itself ("connect_accept SLOT WAYS SLOT WAYS", where the
// second slot is for the accepted connection).
static void perform_race(char* text, char* result) {
  char full_order[3][kLineMax], results[2][kLineMax] = {"", ""}, act_reply[kLineMax];
  char* parts[3] = {NULL};
  int actors[3];
  if (split_parts(text, parts) != 3) return;
  const char* connect_part = strstr(parts[2], "connect_accept ");
  for (int i = 0; i < 3; ++i) {
    actors[i] = number(parts[i]);
    if (actors[i] < 0 || actors[i] >= kActors || pids[actors[i]] == 0) return;
    if (i == 2 && connect_part != NULL) continue;
    full_order[i][0] = '!';
    if (!complete_order(actors[i], strchr(parts[i], ' ') + 1, full_order[i] + (i < 2))) return;
    // After shutdown(SHUT_WR) of the common end, the kernel wakes the waiting actors twice for one
    // segment.  Then one actor or both are woken, which depends on how soon the first actor runs.
    if (i == 2) {
      char copy[kLineMax];
      char* words[3];
      strcpy(copy, full_order[2]);
      const int has_slot = split(copy, words, 3) > 1;
      const int end = has_slot ? contents[actors[2]][number(words[1]) % kSlots] : kNone;
      if (end >= 0 && end != kSet && ends[end ^ 1].has_shut_send) return;
    }
    for (int j = 0; i == 2 && j < 2; ++j) {
      if (may_be_interrupted(actors[j], full_order[j] + 1, actors[2], full_order[2])) return;
      if (may_wake_before_bytes(full_order[j] + 1, full_order[2])) return;
    }
  }
  const int b = actors[2];
  if (actors[0] == actors[1] || actors[0] == b || actors[1] == b) return;
  char* w[5];
  if (connect_part != NULL) {
    char copy[kLineMax];
    strcpy(copy, connect_part);
    if (split(copy, w, 5) != 5 || connections == kConnectionsMax) return;
    snprintf(full_order[2], kLineMax, "connect %d %d", number(w[1]) % kSlots, number(w[2]));
    contents[b][number(w[1]) % kSlots] = 2 * connections;
    contents[b][number(w[3]) % kSlots] = 2 * connections + 1;
  }
  for (int i = 0; i < 2; ++i) {
    order_and_wait(actors[i], full_order[i], results[i]);
    wait_until_asleep(actors[i]);
  }
  order_and_wait(b, full_order[2], act_reply);
  for (int i = 0; i < 2; ++i) end_wait(actors[i], results[i]);
  if (connect_part == NULL) {
    update_model(b, full_order[2], act_reply);
  } else {
    snprintf(full_order[2], kLineMax, "accept %d %d", number(w[3]) % kSlots, number(w[4]));
    order_and_wait(b, full_order[2], act_reply);
    ++connections;
  }
  append(result, "%s / %s; %s", results[0], results[1], act_reply);
}
