// Performs steps for the coordinator of sockets_fuzz.c in which a send blocks because the buffers
// or the ring are full.  Something then ends the send, for example a signal or a close.  TCP and a
// ring accept different numbers of bytes, so these numbers are not compared.
#pragma once

#include "sockets_fuzz_processes.h"

// Stores the words of "flood ACTOR SLOT CALL | ACTOR SLOT ENDING".  Actor `a` sends more bytes than
// the buffers can hold, by the connection in slot `s`.  Actor `b` has the peer's end in slot `t`,
// and ends the blocked send.
struct flood {
  int a, s, b, t, end;  // `end` is the end of the connection in slot s
  char call[16], ending[16];
};

// Returns 1 if no other slot has the same end of a connection as this slot.
static int is_held_once(int actor, int at) {
  int found = 0;
  for (int a = 0; a < kActors; ++a) {
    for (int s = 0; s < kSlots; ++s) found += pids[a] != 0 && contents[a][s] == contents[actor][at];
  }
  return found == 1;
}

static int is_flood_possible(const struct flood* f) {
  if (f->a < 0 || f->a >= kActors || f->b < 0 || f->b >= kActors || f->a == f->b) return 0;
  if (f->s < 0 || f->s >= kSlots || f->t < 0 || f->t >= kSlots) return 0;
  if (pids[f->a] == 0 || pids[f->b] == 0 || masks[f->a] != 0) return 0;
  const int end = f->end;
  if (end < 0 || end == kSet || contents[f->b][f->t] != (end ^ 1)) return 0;
  for (int side = 0; side < 2; ++side) {
    const struct end* e = &ends[end ^ side];
    if (e->sent != e->received || e->has_shut_send || e->is_async || e->was_killed) return 0;
    // After shutdown(SHUT_RD), a reader gets an end of file whenever no bytes are queued.
    if (e->has_shut_receive) return 0;
  }
  return is_held_once(f->a, f->s) && is_held_once(f->b, f->t) && info_of(f->a, f->s).state == 1 &&
         info_of(f->b, f->t).state == 1;
}

static void append_sent(char* result, const char* reply) {
  const long sent = atol(reply);
  if (sent > 0) {
    const char* rest = strchr(reply, ' ');
    append(result, "%s%s", sent == kFloodBytes ? "all" : "some", rest != NULL ? rest : "");
    return;
  }
  append(result, "%s", reply);
}

// Makes actor b read `size` bytes, or all bytes if the stream ends earlier.
static void drain(const struct flood* f, unsigned offset, unsigned size, char* result) {
  char text[80], reply[kLineMax];
  snprintf(text, sizeof(text), "drain %d %u %d %u", f->t, size, f->end, offset);
  order_and_wait(f->b, text, reply);
  const unsigned got = (unsigned)atoi(reply);
  ends[f->end].received += got;
  append(result, "; %s %s", got == size ? "whole" : "part", strchr(reply, ' ') + 1);
}

// Makes actor b close the connection, or ends actor b.
static void end_peer(const struct flood* f, char* result) {
  char text[40], reply[kLineMax];
  if (strcmp(f->ending, "close") == 0) {
    snprintf(text, sizeof(text), "close %d", f->t);
    order_and_wait(f->b, text, reply);
    contents[f->b][f->t] = kNone;
    append(result, "; closed %s", reply);
    return;
  }
  end_actor(f->b, strcmp(f->ending, "kill") == 0);
  remove_actor(f->b);
  append(result, "; ended");
}

static void perform_flood(char* text, char* result) {
  struct flood f = {0};
  char order_text[80], reply[kLineMax];
  strcpy(result, "not now");
  if (sscanf(text, "flood %d %d %15s | %d %d %15s", &f.a, &f.s, f.call, &f.b, &f.t, f.ending) !=
      6) {
    return;
  }
  f.end = f.a >= 0 && f.a < kActors && f.s >= 0 && f.s < kSlots ? contents[f.a][f.s] : kNone;
  if (!is_flood_possible(&f)) return;
  // With unread bytes, the end of an actor has other effects than with TCP (docs/limits.md).
  const int ends_b = strcmp(f.ending, "exit") == 0 || strcmp(f.ending, "kill") == 0;
  if (ends_b && (has_unread(f.a, 0) || has_unread(f.b, 0))) return;
  result[0] = '\0';
  struct end* end = &ends[f.end];
  unsigned offset = end->sent, sent = 0;
  if (strcmp(f.call, "full") == 0) {
    // Fill the buffers and the ring before the call, so that the blocked call has sent nothing.
    snprintf(order_text, sizeof(order_text), "fill %d %d %u", f.s, f.end, offset);
    order_and_wait(f.a, order_text, reply);
    sent = (unsigned)atoi(reply);
    snprintf(order_text, sizeof(order_text), "!send %d send 1000 - %d %u", f.s, f.end,
             offset + sent);
  } else {
    snprintf(order_text, sizeof(order_text), "!flood %d %d %u", f.s, f.end, offset);
  }
  const int has_timeout = strcmp(f.ending, "timeout") == 0;
  if (!has_timeout) {
    order_and_wait(f.a, order_text, reply);
    wait_until_asleep(f.a);
  } else {
    send_order(f.a, order_text + 1);
  }
  char after[kLineMax] = "";
  if (starts_with(f.ending, "USR")) {
    kill(pids[f.a], strcmp(f.ending, "USR1") == 0 ? SIGUSR1 : SIGUSR2);
  } else if (strcmp(f.ending, "drain") == 0) {
    drain(&f, offset, strcmp(f.call, "full") == 0 ? sent + 1000 : kFloodBytes, after);
  } else if (strcmp(f.ending, "some") == 0) {
    drain(&f, offset, 100000, after);
    strcpy(f.ending, "close");
    end_peer(&f, after);
  } else if (strcmp(f.ending, "self") == 0) {
    end_actor(f.a, 1);
    remove_actor(f.a);
    if (has_answered(f.a)) read_answer(f.a, reply, 0);
    drain(&f, offset, kFloodBytes, after);
    end->received = end->sent;
    append(result, "killed%s", after);
    return;
  } else if (!has_timeout) {
    end_peer(&f, after);
  }
  if (!read_answer(f.a, reply, kHangMs)) is_aborted = 1;
  if (atoi(reply) > 0) sent += (unsigned)atoi(reply);
  end->sent += sent;
  end->flooded += sent;
  append_sent(result, reply);
  // Read the rest, so that at most kUnreadMax bytes are unread in the next steps.
  const unsigned unread = end->sent - end->received;
  if (contents[f.b][f.t] == (f.end ^ 1) && unread > 0) drain(&f, end->received, unread, after);
  append(result, "%s", after);
}
