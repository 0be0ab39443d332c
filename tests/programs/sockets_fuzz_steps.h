// Makes the steps of a sequence of sockets_fuzz.c from a seed.
#pragma once

#include "sockets_fuzz.h"

enum { kStdioBytes = 4096 };  // size of a FILE's buffer
enum { kStepsMax = 80, kConnectionsMax = 3, kPlanned = 2 * kConnectionsMax };

struct steps {
  int count;
  char text[kStepsMax][kLineMax / 4];
};

// The generator guesses the content of each slot.  A wrong guess only makes a step fail.
enum { kNone = -1, kSet = 100 };
struct plan {
  struct steps* out;
  uint64_t random;
  int is_alive[kActors];
  int holds[kActors][kSlots];  // kNone, kSet, or an end: 2 * connection + side
  int connections;
  int has_urgent[kConnectionsMax];  // urgent bytes were sent in one of the directions
};

static uint32_t draw(struct plan* p, uint32_t below) {
  p->random ^= p->random << 13;
  p->random ^= p->random >> 7;
  p->random ^= p->random << 17;
  return (uint32_t)(p->random * 0x2545f4914f6cdd1dull >> 33) % below;
}
static const char* one_of(struct plan* p, const char* const* words) {
  uint32_t count = 0;
  while (words[count] != NULL) ++count;
  return words[draw(p, count)];
}
#define ONE_OF(p, ...) one_of(p, (const char* const[]){__VA_ARGS__, NULL})

static void step(struct plan* p, const char* format, ...) __attribute__((format(printf, 2, 3)));
static void step(struct plan* p, const char* format, ...) {
  if (p->out->count == kStepsMax) return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(p->out->text[p->out->count++], sizeof(p->out->text[0]), format, arguments);
  va_end(arguments);
}

// Chooses a random slot that holds `wanted`: an end or kSet, or kNone for an end of any connection.
// Returns 0 if there is none.
static int find(struct plan* p, int wanted, int* actor, int* at) {
  int found = 0;
  for (int a = 0; a < kActors; ++a) {
    for (int s = 0; s < kSlots; ++s) {
      const int holds = p->holds[a][s];
      if (!p->is_alive[a] || (wanted == kNone ? holds < 0 || holds >= kSet : holds != wanted)) {
        continue;
      }
      if (draw(p, (uint32_t)++found) == 0) *actor = a, *at = s;
    }
  }
  return found;
}
static int slot_of(struct plan* p, int actor, int wanted) {
  int chosen = -1;
  for (int s = 0, found = 0; s < kSlots; ++s) {
    if (p->holds[actor][s] == wanted && draw(p, (uint32_t)++found) == 0) chosen = s;
  }
  return chosen;
}
static int any_actor(struct plan* p) {
  for (;;) {
    const int a = (int)draw(p, kActors);
    if (p->is_alive[a]) return a;
  }
}

static unsigned size_of(struct plan* p) {
  switch (draw(p, 10)) {
    case 0: return draw(p, 2);
    case 1:
    case 2: return 1000 + draw(p, 15000);
    case 3: return 100 + draw(p, 900);
    default: return 1 + draw(p, 60);
  }
}

static void plan_connection(struct plan* p) {
  if (p->connections == kConnectionsMax) return;
  const int a = any_actor(p), b = any_actor(p);
  const int s = slot_of(p, a, kNone);
  if (s < 0) return;
  const int end = 2 * p->connections++;
  p->holds[a][s] = end;
  const int t = slot_of(p, b, kNone);
  if (t < 0) return;
  p->holds[b][t] = end + 1;
  step(p, "connect %d %d %d %d %u %u", a, s, b, t, draw(p, 16), draw(p, 16));
  if (draw(p, 5) != 0) step(p, "warm %d %d %d %d", a, s, b, t);
}

// Records that the connection of a slot carries urgent data.
static void note_urgent(struct plan* p, int a, int at) {
  const int end = p->holds[a][at];
  if (end >= 0 && end < kPlanned) p->has_urgent[end / 2] = 1;
}

static void write_send(struct plan* p, char* order, int a, int at, unsigned size) {
  const char* how = ONE_OF(p, "send", "send", "write", "writev", "sendmsg", "sendto", "sendmmsg",
                           "sendfile", "splice", "stdio", "send", "write", "sendmsg", "dprintf");
  const char* flags =
      ONE_OF(p, "-", "-", "-", "dontwait", "nosignal", "-", "-", "dontwait", "-", "oob");
  const int is_rare = how[0] == 'd' || strcmp(how, "stdio") == 0 || strcmp(how, "splice") == 0;
  if (is_rare && draw(p, 3) != 0) how = "send";
  if (strcmp(flags, "oob") == 0 && draw(p, 3) != 0) flags = "-";
  if (flags[0] == 'o') note_urgent(p, a, at);
  snprintf(order, 100, "send %d %s %u %s", at, how, size, flags);
}
static void write_receive(struct plan* p, char* order, int a, int at, const char* flags) {
  const char* how = ONE_OF(p, "recv", "recv", "read", "readv", "recvmsg", "recvfrom", "recvmmsg",
                           "recv", "read", "recvmsg", "splice", "stdio");
  if ((how[0] == 's') && draw(p, 3) != 0) how = "recv";
  unsigned size = size_of(p);
  // The library looks for urgent data by a call that takes a pending error (docs/limits.md).
  const int end = p->holds[a][at];
  if (size == 0 && end >= 0 && end < kPlanned && p->has_urgent[end / 2]) size = 1;
  snprintf(order, 100, "recv %d %s %u %s", at, how, size, flags);
}

// Writes an order of a receive that waits.  Returns 0 if the random order is not suitable: splice()
// and stdio do not wait here, and the kernel ends a recv() of 0 bytes whenever anything wakes it.
static int write_blocking_receive(struct plan* p, char* order, int a, int at) {
  unsigned size = 0;
  write_receive(p, order, a, at, "-");
  sscanf(order, "recv %*d %*s %u", &size);
  if (strstr(order, "recvmmsg") != NULL) size /= 2;  // each of its two messages gets one half
  return size > 0 && strstr(order, "stdio") == NULL && strstr(order, "splice") == NULL;
}

static const char* wait_events(struct plan* p) {
  return ONE_OF(p, "in", "in", "in,out", "in,rdhup", "in,out,rdhup,pri", "out", "rdhup", "rdnorm",
                "in,pri", "in,rdnorm,wrnorm,rdband,wrband");
}

// Writes an order of actor a to wait for the slot, for at most `ms`.
static void write_wait(struct plan* p, char* order, int a, int at, int ms) {
  const int second = slot_of(p, a, draw(p, 6) == 0 ? kSet : (int)draw(p, kPlanned));
  const int set = slot_of(p, a, kSet);
  const char* mask = draw(p, 5) != 0 ? "" : ONE_OF(p, " -", " usr1", " usr2", " usr1,usr2");
  switch (draw(p, 4)) {
    case 0:
      snprintf(order, 100, "select %d %u %d %u %d%s", at, 1 + draw(p, 7), second, draw(p, 8), ms,
               mask);
      return;
    case 1:
      snprintf(order, 100, "poll %d %s %d %s %d%s", at, wait_events(p), second, wait_events(p), ms,
               mask);
      return;
    default:
      if (set >= 0) {
        snprintf(order, 100, "epwait %d %d %d%s%s", set, draw(p, 6) == 0 ? 1 : kSlots + 1, ms, mask,
                 mask[0] != '\0' ? ONE_OF(p, "", " 2") : "");
      } else {
        snprintf(order, 100, "poll %d %s -1 - %d%s", at, wait_events(p), ms, mask);
      }
  }
}

// Finds a set of the actor, or plans a new one.  Returns its slot, or -1.
static int set_of(struct plan* p, int a, int is_new) {
  int set = is_new ? -1 : slot_of(p, a, kSet);
  if (set >= 0) return set;
  set = slot_of(p, a, kNone);
  if (set < 0) return -1;
  step(p, "do %d epnew %d", a, set);
  p->holds[a][set] = kSet;
  return set;
}

static void plan_epoll(struct plan* p, int a, int at) {
  const int set = set_of(p, a, draw(p, 5) == 0);
  if (set < 0) return;
  const char* events = wait_events(p);
  const char* modes = ONE_OF(p, "", "", ",et", ",et", ",oneshot", ",et,oneshot", ",exclusive");
  if (modes[1] == 'e' && modes[2] == 'x' && draw(p, 4) != 0) events = ONE_OF(p, "in", "in,out");
  step(p, "do %d epctl %d %s %d %s%s", a, set, ONE_OF(p, "add", "add", "mod", "mod", "del"), at,
       events, modes);
  step(p, "do %d epwait %d 9 0", a, set);
}

// Puts a set into another one, or the same connection into two sets.
static void plan_two_sets(struct plan* p, int a, int at) {
  const int inner = set_of(p, a, 0);
  const int outer = set_of(p, a, 1);
  if (inner < 0 || outer < 0) return;
  const int is_nested = draw(p, 3) != 0;
  step(p, "do %d epctl %d %s %d %s%s", a, inner, ONE_OF(p, "add", "add", "mod"), at, wait_events(p),
       ONE_OF(p, "", "", ",et", ",oneshot"));
  step(p, "do %d epctl %d add %d %s%s", a, outer, is_nested ? inner : at,
       is_nested ? ONE_OF(p, "in", "in,out") : wait_events(p),
       ONE_OF(p, "", "", "", ",et", ",oneshot"));
  step(p, "do %d epwait %d 9 0", a, outer);
}

// Plans that two actors wait for epoll sets which both have one connection or the listener in them,
// sometimes with EPOLLEXCLUSIVE.
static void plan_race(struct plan* p, int a, int at) {
  const int end = p->holds[a][at];
  int b = 0, t = 0, c = 0, u = 0, is_found = 0;
  for (c = 0; c < kActors && !is_found; ++c) {
    if (c == a || !p->is_alive[c]) continue;
    u = slot_of(p, c, end);
    is_found = u >= 0;
    if (is_found) break;
  }
  const int has_peer = find(p, end ^ 1, &b, &t);
  const int knocks = !is_found || !has_peer || b == a || b == c;
  if (knocks) {
    for (c = 0; c < kActors && (c == a || !p->is_alive[c]); ++c) {
    }
    for (b = 0; b < kActors && (b == a || b == c || !p->is_alive[b]); ++b) {
    }
    if (b >= kActors || p->connections == kConnectionsMax) return;
    at = u = kListenerSlot;
  }
  const int sets[2] = {set_of(p, a, 0), set_of(p, c, 0)};
  if (sets[0] < 0 || sets[1] < 0) return;
  const char* mode = ONE_OF(p, ",exclusive", ",exclusive", "", ",et");
  step(p, "do %d epctl %d add %d in%s", a, sets[0], at, mode);
  step(p, "do %d epctl %d add %d in%s", c, sets[1], u, mode);
  const char* more = ONE_OF(p, "", "", "x");
  const int first = more[0] == 'x' ? c : a, second = more[0] == 'x' ? a : c;
  char act[60];
  if (knocks) {
    const int s = slot_of(p, b, kNone);
    if (s < 0) return;
    p->holds[b][s] = 2 * p->connections;
    const int accepted = slot_of(p, b, kNone);
    if (accepted < 0) return;
    p->holds[b][accepted] = 2 * p->connections++ + 1;
    snprintf(act, sizeof(act), "knock %d %u %d %u", s, draw(p, 16), accepted, draw(p, 16));
  } else {
    // So few bytes are one TCP segment, which wakes the waiting actors only once.
    snprintf(act, sizeof(act), "send %d send %u -", t, 1 + draw(p, 500));
  }
  step(p, "race %d epwait %d 9 -1 | %d epwait %d 9 -1 | %d %s", first,
       first == a ? sets[0] : sets[1], second, second == a ? sets[0] : sets[1], b, act);
  step(p, "do %d epwait %d 9 0", a, sets[0]);
  step(p, "do %d epwait %d 9 0", c, sets[1]);
}

static void plan_copy(struct plan* p, int a, int at) {
  const int to = (int)draw(p, kSlots);
  if (to == at || p->holds[a][to] == kSet) return;
  step(p, "do %d dup %d %d %s", a, at, to, ONE_OF(p, "dup", "dup2", "dup3", "dupfd", "cloexec"));
  p->holds[a][to] = p->holds[a][at];
}

// Plans that one actor waits, and another one makes a call that wakes it.
static void plan_wake(struct plan* p, int a, int at) {
  char wait[100], act[100];
  int b = 0, t = 0;
  if (!find(p, p->holds[a][at] ^ 1, &b, &t) || a == b) return;
  const unsigned size = 6 + size_of(p) / 2;
  if (draw(p, 2)) {
    if (!write_blocking_receive(p, wait, a, at)) return;
    if (draw(p, 4) == 0) snprintf(wait, sizeof(wait), "recv %d recv %u waitall", at, size);
  } else {
    write_wait(p, wait, a, at, -1);
  }
  switch (draw(p, 12)) {
    case 0: snprintf(act, sizeof(act), "shut %d %u", t, 1 + draw(p, 2)); break;
    case 1: snprintf(act, sizeof(act), "close %d", t); break;
    default:
      write_send(p, act, b, t, size);
      // If a send makes several TCP segments, the waiting actor may read between two of them.
      const int is_in_pieces =
          strstr(act, "sendmmsg") != NULL ||
          (size > kStdioBytes && (strstr(act, "stdio") || strstr(act, "dprintf")));
      if (is_in_pieces) snprintf(act, sizeof(act), "send %d send %u -", t, size);
  }
  if (act[0] == 'c') p->holds[b][t] = kNone;
  if (draw(p, 4) == 0) {
    step(p, "signal %d %s | %s | %d %s", a, wait, ONE_OF(p, "USR1", "USR2"), b, act);
  } else {
    step(p, "wake %d %s | %d %s", a, wait, b, act);
  }
}

static void plan_option(struct plan* p, int a, int at) {
  switch (draw(p, 8)) {
    case 0: step(p, "do %d set %d linger %d", a, at, (int)draw(p, 3) - 1); return;
    case 1: step(p, "do %d set %d lowat %u", a, at, draw(p, 6)); return;
    case 2: step(p, "do %d set %d oobinline %u", a, at, draw(p, 2)); return;
    case 3:
      step(p, "do %d set %d %s %u", a, at, ONE_OF(p, "nodelay", "keepalive"), draw(p, 2));
      return;
    case 4:
      step(p, "do %d nonblock %d %u %s", a, at, draw(p, 2), ONE_OF(p, "fcntl", "ioctl"));
      return;
    default:
      step(p, "do %d get %d %s", a, at,
           ONE_OF(p, "error", "nodelay", "lowat", "type", "error", "keepalive", "acceptconn"));
  }
}

// Plans signals of the kernel (SIGURG, SIGIO), and signals of other processes, which a call with a
// signal mask may let through.
static void plan_signals(struct plan* p, int a, int at) {
  int b = 0, t = 0;
  char wait[100];
  switch (draw(p, 5)) {
    case 0: step(p, "do %d sigmask - %s", a, ONE_OF(p, "-", "usr1", "usr2", "usr1,usr2")); break;
    case 1:
      step(p, "post %d %s", a, ONE_OF(p, "USR1", "USR2"));
      write_wait(p, wait, a, at, draw(p, 3) == 0 ? 10 : 0);
      step(p, "do %d %s", a, wait);
      break;
    case 2: break;
    default:
      step(p, "do %d own %d", a, at);
      if (draw(p, 2)) {
        step(p, "do %d async %d %d %s %s", a, at, draw(p, 4) != 0, ONE_OF(p, "fcntl", "ioctl"),
             ONE_OF(p, "-", "-", "rt"));
      }
      if (find(p, p->holds[a][at] ^ 1, &b, &t)) {
        const char* flags = ONE_OF(p, "-", "oob");
        if (flags[0] == 'o') note_urgent(p, b, t);
        step(p, "do %d send %d send %u %s", b, t, 1 + draw(p, 30), flags);
      }
  }
  step(p, "do %d signals -", a);
}

// Plans that a second thread of an actor waits while the first one changes what it waits for.
static void plan_thread(struct plan* p, int a, int at) {
  char wait[100], change[100], act[100];
  int b = 0, t = 0;
  if (!find(p, p->holds[a][at] ^ 1, &b, &t)) return;
  if (draw(p, 2)) {
    if (!write_blocking_receive(p, wait, a, at)) return;
  } else {
    write_wait(p, wait, a, at, -1);
  }
  const int set = slot_of(p, a, kSet);
  const int to = slot_of(p, a, (int)draw(p, kPlanned));
  const int is_set = wait[0] == 'e' && set >= 0;
  switch (draw(p, is_set ? 9 : 5)) {
    case 0: snprintf(change, sizeof(change), "close %d", at); break;
    case 1: snprintf(change, sizeof(change), "shut %d %u", at, draw(p, 3)); break;
    case 2: write_send(p, change, a, at, size_of(p)); break;
    case 3: snprintf(change, sizeof(change), "recv %d recv %u dontwait", at, size_of(p)); break;
    case 4:
      if (to < 0 || to == at) return;
      snprintf(change, sizeof(change), "dup %d %d %s", to, at, ONE_OF(p, "dup2", "dup3"));
      break;
    case 5: snprintf(change, sizeof(change), "close %d", set); break;
    default:
      snprintf(change, sizeof(change), "epctl %d %s %d %s%s", set, ONE_OF(p, "add", "mod", "del"),
               at, wait_events(p), ONE_OF(p, "", "", ",et", ",oneshot"));
  }
  // poll() and select() notice a closed descriptor whenever anything wakes them, which may be at
  // any moment.
  const int is_poll = wait[0] == 'p' || wait[0] == 's';
  // The library makes several calls for one recvmmsg().  The later ones would find the descriptor
  // closed (docs/limits.md).
  const int is_in_steps = strstr(wait, "recvmmsg") != NULL;
  if ((is_poll || is_in_steps) && (change[0] == 'c' || change[0] == 'd')) return;
  if (change[0] == 'c') p->holds[a][number(strchr(change, ' '))] = kNone;
  if (change[0] == 'd') p->holds[a][at] = p->holds[a][to];
  switch (draw(p, 6)) {
    case 0: snprintf(act, sizeof(act), "shut %d %u", t, 1 + draw(p, 2)); break;
    case 1: snprintf(act, sizeof(act), "close %d", t); break;
    default: snprintf(act, sizeof(act), "send %d send %u -", t, 1 + size_of(p) / 2);
  }
  if (act[0] == 'c') p->holds[b][t] = kNone;
  step(p, "thread %d %s | %d %s | %d %s", a, wait, a, change, b, act);
}

// Plans that the actor reads all unread bytes of its connections.
static void plan_reads(struct plan* p, int a) {
  for (int s = 0; s < kSlots; ++s) {
    if (p->holds[a][s] < 0 || p->holds[a][s] == kSet) continue;
    step(p, "do %d recv %d recv 60000 dontwait", a, s);
  }
}

// Plans that one actor sends until it waits for room, and that something ends the wait.
static void plan_flood(struct plan* p, int a, int at) {
  int b = 0, t = 0;
  if (!find(p, p->holds[a][at] ^ 1, &b, &t) || a == b) return;
  const char* how = ONE_OF(p, "drain", "some", "close", "timeout", "USR1", "exit", "kill", "self");
  const char* call = ONE_OF(p, "call", "full");
  // The library waits by poll(), which the kernel does not restart (docs/limits.md).  A call that
  // has sent some bytes returns their number, so it does not show whether the wait was restarted.
  if (strcmp(how, "USR1") == 0 && call[0] == 'c') how = ONE_OF(p, "USR1", "USR2");
  plan_reads(p, a);
  plan_reads(p, b);
  step(p, "flood %d %d %s | %d %d %s", a, at, call, b, t, how);
  if (how[0] == 'e' || how[0] == 'k' || strcmp(how, "self") == 0) {
    const int ended = how[0] == 's' ? a : b;
    p->is_alive[ended] = 0;
    for (int s = 0; s < kSlots; ++s) p->holds[ended][s] = kNone;
    if (ended == a) return;
  }
  if (draw(p, 2)) step(p, "do %d get %d error", a, at);
  step(p, "do %d send %d send 10 -", a, at);
  step(p, "do %d recv %d recv 100 dontwait", a, at);
}

// Plans forks, execs and exits.
static void plan_process(struct plan* p, int a, int at) {
  const int b = (int)draw(p, kActors);
  switch (draw(p, 4)) {
    case 0:
      if (p->is_alive[b]) return;
      step(p, "fork %d %d", a, b);
      p->is_alive[b] = 1;
      for (int s = 0; s < kSlots; ++s) {
        p->holds[b][s] = p->holds[a][s] == kSet ? kNone : p->holds[a][s];
      }
      return;
    case 1:
      step(p, "exec %d %s", a, ONE_OF(p, "lib", "lib", "plain"));
      for (int s = 0; s < kSlots; ++s) {
        if (p->holds[a][s] == kSet) p->holds[a][s] = kNone;
      }
      return;
    case 2: {
      const int to = (int)draw(p, kSlots);
      if (!p->is_alive[b] || (a == b && at == to)) return;
      step(p, "pass %d %d %d %d", a, at, b, to);
      p->holds[b][to] = p->holds[a][at];
      return;
    }
    default:
      // The first two actors never end, so that there are always two.
      if (a < 2) return;
      if (draw(p, 2)) {
        step(p, "exit %d", a);
      } else {
        char wait[100] = "";
        if (draw(p, 2)) write_wait(p, wait, a, at, -1);
        plan_reads(p, a);
        step(p, "kill %d%s%s", a, wait[0] != '\0' ? " " : "", wait);
      }
      p->is_alive[a] = 0;
      for (int s = 0; s < kSlots; ++s) p->holds[a][s] = kNone;
  }
}

static void plan_any(struct plan* p) {
  char order[100];
  int a = 0, at = 0;
  if (!find(p, kNone, &a, &at)) return plan_connection(p);
  if (draw(p, 200) == 0) return plan_flood(p, a, at);
  const uint32_t kind = draw(p, 100);
  if (kind < 26) {
    write_send(p, order, a, at, size_of(p));
    step(p, "do %d %s", a, order);
  } else if (kind < 48) {
    write_receive(
        p, order, a, at,
        ONE_OF(p, "dontwait", "dontwait", "dontwait,peek", "peek", "dontwait,waitall", "waitall",
               "trunc,dontwait", "dontwait", "dontwait", "-", "dontwait,oob", "dontwait"));
    step(p, "do %d %s", a, order);
  } else if (kind < 56) {
    write_wait(p, order, a, at, draw(p, 8) == 0 ? 10 : 0);
    step(p, "do %d %s", a, order);
  } else if (kind < 60) {
    plan_epoll(p, a, at);
  } else if (kind < 61) {
    plan_two_sets(p, a, at);
  } else if (kind < 62) {
    plan_race(p, a, at);
  } else if (kind < 72) {
    plan_wake(p, a, at);
  } else if (kind < 74) {
    plan_thread(p, a, at);
  } else if (kind < 77) {
    plan_option(p, a, at);
  } else if (kind < 80) {
    plan_signals(p, a, at);
  } else if (kind < 84) {
    step(p, "do %d %s %d", a, ONE_OF(p, "inq", "inq", "state", "atmark"), at);
  } else if (kind < 88) {
    plan_copy(p, a, at);
  } else if (kind < 91) {
    step(p, "do %d shut %d %u", a, at, draw(p, 3));
  } else if (kind < 94) {
    step(p, "do %d close %d%s", a, at, draw(p, 4) ? "" : " s");
    p->holds[a][at] = kNone;
  } else if (kind < 95) {
    plan_connection(p);
  } else {
    plan_process(p, a, at);
  }
}

static void make_steps(uint64_t seed, struct steps* out) {
  static struct plan p;
  memset(&p, 0, sizeof(p));
  memset(p.holds, 0xff, sizeof(p.holds));
  p.out = out;
  p.random = (seed + 1) * 0x9e3779b97f4a7c15ull;
  out->count = 0;
  p.is_alive[0] = p.is_alive[1] = 1;
  p.is_alive[2] = draw(&p, 2) != 0;
  for (uint32_t i = 1 + draw(&p, 2); i > 0; --i) plan_connection(&p);
  for (int tries = 8 + (int)draw(&p, 40); tries > 0; --tries) plan_any(&p);
}
