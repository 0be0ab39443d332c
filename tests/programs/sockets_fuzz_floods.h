// Orders a send that waits because buffers and ring are full, and ends that wait in each possible
// way, for the coordinator of sockets_fuzz.c.  TCP and a ring accept different numbers of bytes, so
// these are not compared.
#pragma once

#include "sockets_fuzz_processes.h"

// Holds the words of "flood ACTOR SLOT CALL | ACTOR SLOT HOW": actor `a` sends more than there is
// room for by slot `s`.  Actor `b` has the peer's end in slot `t`, and ends the wait.
struct flood {
  int a, s, b, t, end;  // `end` is that of actor a
  char call[16], how[16];
};

static int is_only_holder(int actor, int at) {
  int found = 0;
  for (int a = 0; a < kActors; ++a) {
    for (int s = 0; s < kSlots; ++s) found += pids[a] != 0 && model[a][s] == model[actor][at];
  }
  return found == 1;
}

static int is_flood_possible(const struct flood* f) {
  if (f->a < 0 || f->a >= kActors || f->b < 0 || f->b >= kActors || f->a == f->b) return 0;
  if (f->s < 0 || f->s >= kSlots || f->t < 0 || f->t >= kSlots) return 0;
  if (pids[f->a] == 0 || pids[f->b] == 0 || masks[f->a] != 0) return 0;
  const int end = f->end;
  if (end < 0 || end == kSet || model[f->b][f->t] != (end ^ 1)) return 0;
  for (int side = 0; side < 2; ++side) {
    const struct end* e = &ends[end ^ side];
    if (e->sent != e->received || e->shut || e->is_async || e->was_killed) return 0;
    // After shutdown(SHUT_RD), the reader takes each pause for the end.
    if (e->reads_no_more) return 0;
  }
  return is_only_holder(f->a, f->s) && is_only_holder(f->b, f->t) &&
         info_of(f->a, f->s).state == 1 && info_of(f->b, f->t).state == 1;
}

static void append_sent(char* result, const char* told) {
  const long sent = atol(told);
  if (sent > 0) {
    const char* more = strchr(told, ' ');
    append(result, "%s%s", sent == kFlood ? "all" : "some", more != NULL ? more : "");
    return;
  }
  append(result, "%s", told);
}

// Lets actor b read `size` bytes, or all bytes if the stream ends before.
static void drain(const struct flood* f, unsigned offset, unsigned size, char* result) {
  char text[80], told[kLineMax];
  snprintf(text, sizeof(text), "drain %d %u %d %u", f->t, size, f->end, offset);
  ask(f->b, text, told);
  const unsigned got = (unsigned)atoi(told);
  ends[f->end].received += got;
  append(result, "; %s %s", got == size ? "whole" : "part", strchr(told, ' ') + 1);
}

// Lets actor b close the connection, or ends actor b.
static void end_peer(const struct flood* f, char* result) {
  char text[40], told[kLineMax];
  if (strcmp(f->how, "close") == 0) {
    snprintf(text, sizeof(text), "close %d", f->t);
    ask(f->b, text, told);
    model[f->b][f->t] = kNone;
    append(result, "; closed %s", told);
    return;
  }
  end_actor(f->b, strcmp(f->how, "kill") == 0);
  forget_actor(f->b);
  append(result, "; ended");
}

static void perform_flood(char* text, char* result) {
  struct flood f = {0};
  char order_text[80], told[kLineMax];
  strcpy(result, "not now");
  if (sscanf(text, "flood %d %d %15s | %d %d %15s", &f.a, &f.s, f.call, &f.b, &f.t, f.how) != 6) {
    return;
  }
  f.end = f.a >= 0 && f.a < kActors && f.s >= 0 && f.s < kSlots ? model[f.a][f.s] : kNone;
  if (!is_flood_possible(&f)) return;
  // With unread bytes, the death of an actor has other effects than by TCP (docs/limits.md).
  if ((f.how[0] == 'e' || f.how[0] == 'k') && (has_unread(f.a, 0) || has_unread(f.b, 0))) return;
  result[0] = '\0';
  struct end* end = &ends[f.end];
  unsigned offset = end->sent, sent = 0;
  if (strcmp(f.call, "full") == 0) {
    // Fill buffers and ring before the call, so that it has sent nothing when its wait ends.
    snprintf(order_text, sizeof(order_text), "fill %d %d %u", f.s, f.end, offset);
    ask(f.a, order_text, told);
    sent = (unsigned)atoi(told);
    snprintf(order_text, sizeof(order_text), "!send %d send 1000 - %d %u", f.s, f.end,
             offset + sent);
  } else {
    snprintf(order_text, sizeof(order_text), "!flood %d %d %u", f.s, f.end, offset);
  }
  const int has_timeout = strcmp(f.how, "timeout") == 0;
  if (!has_timeout) {
    ask(f.a, order_text, told);
    until_it_sleeps(f.a);
  } else {
    order(f.a, order_text + 1);
  }
  char after[kLineMax] = "";
  if (strncmp(f.how, "USR", 3) == 0) {
    kill(pids[f.a], f.how[3] == '1' ? SIGUSR1 : SIGUSR2);
  } else if (strcmp(f.how, "drain") == 0) {
    drain(&f, offset, strcmp(f.call, "full") == 0 ? sent + 1000 : kFlood, after);
  } else if (strcmp(f.how, "some") == 0) {
    drain(&f, offset, 100000, after);
    strcpy(f.how, "close");
    end_peer(&f, after);
  } else if (strcmp(f.how, "self") == 0) {
    end_actor(f.a, 1);
    forget_actor(f.a);
    if (has_answered(f.a)) answer(f.a, told, 0);
    drain(&f, offset, kFlood, after);
    end->received = end->sent;
    append(result, "killed%s", after);
    return;
  } else if (!has_timeout) {
    end_peer(&f, after);
  }
  if (!answer(f.a, told, kEndless)) is_over = 1;
  if (atoi(told) > 0) sent += (unsigned)atoi(told);
  end->sent += sent;
  end->flooded += sent;
  append_sent(result, told);
  // Read the rest, so that at most kUnreadMax bytes are unread in the next steps.
  const unsigned left = end->sent - end->received;
  if (model[f.b][f.t] == (f.end ^ 1) && left > 0) drain(&f, end->received, left, after);
  append(result, "%s", after);
}
