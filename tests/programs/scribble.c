// scribble PORT WORDS SEED: a client of the program `echo` that writes random values into the
// memory that it shares with the server and the agent, while they use it.
//
// The program connects, and waits until there is a lane (shared memory, see ARCHITECTURE.md).  Then
// a thread writes WORDS random words at random addresses of the shared memory that this process may
// write.  Meanwhile the main thread sends messages, and ignores the results.  At the end the
// program prints "scribbled WORDS".
#define _GNU_SOURCE  // mremap()
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

#include "echo.h"

enum { kAreasMax = 16, kControlWords = 4096 / 8, kRoundsWithoutLaneMax = 200000 };

static struct area {
  uint64_t* words;
  size_t count;
} areas[kAreasMax];
static int area_count, lane_area;
static unsigned long remaining_words;
static uint64_t scribble_state;  // the state of the thread's random numbers

static uint64_t next_random(uint64_t* state) {  // splitmix64
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Finds the shared memory of this process, and maps it a second time, because the library may unmap
// its own mapping at any time.  Returns 0 if there is no lane yet.
static int find_areas(void) {
  FILE* maps = fopen("/proc/self/maps", "r");
  CHECK(maps != NULL);
  char line[512];
  lane_area = -1;
  area_count = 0;
  while (fgets(line, sizeof line, maps) != NULL && area_count < kAreasMax) {
    unsigned long begin, end;
    char rights[8];
    if (sscanf(line, "%lx-%lx %7s", &begin, &end, rights) != 3 || strcmp(rights, "rw-s") != 0)
      continue;
    if (strstr(line, "memfd:verbena-") == NULL) continue;
    if (strstr(line, "memfd:verbena-lane") != NULL) lane_area = area_count;
    areas[area_count++] = (struct area){(uint64_t*)begin, (end - begin) / 8};
  }
  fclose(maps);
  if (lane_area < 0) return 0;
  for (int i = 0; i < area_count; ++i) {
    void* second_mapping = mremap(areas[i].words, 0, areas[i].count * 8, MREMAP_MAYMOVE);
    CHECK(second_mapping != MAP_FAILED);
    areas[i].words = second_mapping;
  }
  return 1;
}

// Searches for the end of the data, where the next record will begin: a word that is 0 and comes
// after a word that is not 0.  The search begins at a random word.  Returns the random word if
// nothing is found.
static uint64_t* find_end_of_data(const struct area* area) {
  const size_t begin = next_random(&scribble_state) % area->count;
  for (size_t i = 1; i < area->count; ++i) {
    uint64_t* const word = area->words + (begin + i) % area->count;
    if (*(volatile uint64_t*)word == 0 && word != area->words &&
        *(volatile uint64_t*)(word - 1) != 0)
      return word;
  }
  return area->words + begin;
}

// Searches the control words for a word that is not 0, because a word that is 0 is usually unused.
// The search begins at a random word.  Returns the random word if all words are 0.
static uint64_t* find_control_word(const struct area* area) {
  const size_t count = area->count < kControlWords ? area->count : kControlWords;
  const size_t begin = next_random(&scribble_state) % count;
  for (size_t i = 0; i < count; ++i) {
    uint64_t* const word = area->words + (begin + i) % count;
    if (*(volatile uint64_t*)word != 0) return word;
  }
  return area->words + begin;
}

static void write_random_word(void) {
  const struct area* area = &areas[next_random(&scribble_state) % 4 == 0
                                       ? next_random(&scribble_state) % (uint64_t)area_count
                                       : (uint64_t)lane_area];
  uint64_t* word;
  switch (next_random(&scribble_state) % 3) {
    case 0: word = find_end_of_data(area); break;
    case 1: word = find_control_word(area); break;
    default: word = area->words + next_random(&scribble_state) % area->count; break;
  }
  uint64_t value = next_random(&scribble_state);
  switch (next_random(&scribble_state) % 5) {
    case 0: value %= 4; break;
    case 1: value = __atomic_load_n(word, __ATOMIC_RELAXED) + value % 65 - 32; break;
    case 2: value = __atomic_load_n(word, __ATOMIC_RELAXED) ^ (1ull << value % 64); break;
    case 3: value = areas[0].words[value % areas[0].count]; break;
    default: break;
  }
  if (next_random(&scribble_state) % 3 == 0) {
    *(volatile uint32_t*)word = (uint32_t)value;
  } else {
    *(volatile uint64_t*)word = value;
  }
}

static void* scribble(void* unused) {
  (void)unused;
  // Write the first words with pauses, so that the main thread can send messages between two words.
  // Write the other words as fast as possible.
  const struct timespec pause = {0, 1};
  unsigned slow_words = 500;
  while (__atomic_load_n(&remaining_words, __ATOMIC_RELAXED) > 0) {
    if (slow_words > 0 && --slow_words > 0) nanosleep(&pause, NULL);
    write_random_word();
    __atomic_fetch_sub(&remaining_words, 1, __ATOMIC_RELAXED);
  }
  return NULL;
}

int main(int argc, char** argv) {
  CHECK(argc == 4);
  const unsigned long words = remaining_words = strtoul(argv[2], NULL, 10);
  uint64_t state = scribble_state = strtoull(argv[3], NULL, 10);
  struct echo* echo = echo_connect(argv[1]);
  for (int i = 0; !find_areas(); ++i) {
    CHECK(i < kRoundsWithoutLaneMax);
    echo_round(echo);
  }
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, scribble, NULL) == 0);
  while (__atomic_load_n(&remaining_words, __ATOMIC_RELAXED) > 0) {
    struct ibv_wc wc;
    while (ibv_poll_cq(echo->id->send_cq, 1, &wc) > 0) continue;
    while (ibv_poll_cq(echo->id->recv_cq, 1, &wc) > 0) {
      (void)!rdma_post_recv(echo->id, NULL, echo->in, kEchoBytes, echo->mr);
    }
    (void)!rdma_post_send(echo->id, NULL, echo->out, 1 + next_random(&state) % kEchoBytes, echo->mr,
                          0);
  }
  CHECK(pthread_join(thread, NULL) == 0);
  printf("scribbled %lu\n", words);
  return 0;  // does not disconnect, because the connection may be broken
}
