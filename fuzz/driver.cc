// Runs a fuzz target without libFuzzer, so that every preset and compiler can run it as a test.
// First it runs the unchanged inputs of the corpus, then VB_FUZZ_RUNS generated inputs, random and
// mutated.  The same seed (VB_FUZZ_SEED) gives the same inputs everywhere.  An input that crashes
// the target is written to ./crash-SEED-RUN; this program and libFuzzer's program can replay it.
//
//   fuzz_LAYER_NAME [file or directory]...    with a file: no generated inputs

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

using Input = std::vector<std::uint8_t>;

constexpr std::uint64_t kRunsDefault = 20'000;
constexpr std::size_t kBytesMax = 4096;

// Generates random numbers.  It does not use Verbena's own generator (base/random.h), because
// Verbena is under test here.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(next() % bound); }
  std::uint8_t byte() { return static_cast<std::uint8_t>(next()); }

 private:
  std::uint64_t state_;
};

// Holds the current input for the signal handler, which may only use async-signal-safe functions.
struct Current {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
  std::array<char, 128> file{};
};
Current current;

void save_input() {
  if (current.data == nullptr) return;
  const int fd = open(current.file.data(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return;
  const bool is_whole = write(fd, current.data, current.size) == static_cast<ssize_t>(current.size);
  close(fd);
  current.data = nullptr;
  for (const char* text : {"fuzz: the input is in ", static_cast<const char*>(current.file.data()),
                           is_whole ? "\n" : " (cut off)\n"}) {
    if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
  }
}

void on_signal(int number) {
  save_input();
  std::signal(number, SIG_DFL);
  std::raise(number);
}

void run(const Input& input, std::uint64_t seed, std::uint64_t number) {
  // The block has exactly this size, so that ASan detects a read past the end.
  const auto block = std::make_unique<std::uint8_t[]>(input.size());
  std::copy(input.begin(), input.end(), block.get());
  std::snprintf(current.file.data(), current.file.size(), "crash-%llu-%llu",
                static_cast<unsigned long long>(seed), static_cast<unsigned long long>(number));
  current.size = input.size();
  current.data = block.get();
  LLVMFuzzerTestOneInput(block.get(), input.size());
  current.data = nullptr;
}

std::size_t random_size(SplitMix64& rng) {
  switch (rng.below(4)) {
    case 0: return rng.below(16);
    case 1: return rng.below(128);
    case 2: return 256;  // the size of a MAD
    default: return rng.below(kBytesMax);
  }
}

Input random_input(SplitMix64& rng) {
  Input input(random_size(rng));
  // Most bytes are 0 (kind 0), most bytes have one random value (kind 1), or all bytes are random
  // (kind 2).  The first check of a target rejects most random bytes, but not most inputs in which
  // one value is repeated.
  const std::size_t kind = rng.below(3);
  const std::uint8_t fill = kind == 0 ? std::uint8_t{0} : rng.byte();
  for (auto& byte : input) byte = kind == 2 || rng.below(8) == 0 ? rng.byte() : fill;
  return input;
}

void mutate(Input& input, const std::vector<Input>& pool, SplitMix64& rng) {
  constexpr std::array<std::uint64_t, 10> kEdges = {
      0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0xffffffff, ~std::uint64_t{0}};
  for (std::size_t changes = 1 + rng.below(6); changes > 0; --changes) {
    const std::size_t kind = rng.below(7);
    if (input.empty() || kind == 0) {  // insert bytes
      const std::size_t at = rng.below(input.size() + 1);
      input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), 1 + rng.below(16), rng.byte());
    } else if (kind == 1) {  // cut off the end
      input.resize(rng.below(input.size() + 1));
    } else if (kind == 2) {  // erase bytes
      const std::size_t at = rng.below(input.size());
      const std::size_t count = 1 + rng.below(std::min<std::size_t>(input.size() - at, 16));
      const auto first = input.begin() + static_cast<std::ptrdiff_t>(at);
      input.erase(first, first + static_cast<std::ptrdiff_t>(count));
    } else if (kind == 3) {  // flip a bit
      input[rng.below(input.size())] ^= static_cast<std::uint8_t>(1U << rng.below(8));
    } else if (kind == 4) {  // write a number from kEdges
      const std::uint64_t edge = kEdges[rng.below(kEdges.size())];
      const std::size_t width = std::size_t{1} << rng.below(4);
      const std::size_t at = rng.below(input.size());
      for (std::size_t i = 0; i < width && at + i < input.size(); ++i) {
        input[at + i] = static_cast<std::uint8_t>(edge >> (8 * (width - 1 - i)));  // big-endian
      }
    } else if (kind == 5 && !pool.empty()) {  // append the end of another input
      const Input& other = pool[rng.below(pool.size())];
      const std::size_t kept_bytes = rng.below(input.size());
      input.resize(kept_bytes);
      if (kept_bytes < other.size()) {
        input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(kept_bytes),
                     other.end());
      }
    } else {
      input[rng.below(input.size())] = rng.byte();
    }
  }
  if (input.size() > 2 * kBytesMax) input.resize(2 * kBytesMax);
}

std::uint64_t number_from(const char* name, std::uint64_t fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const auto value = std::strtoull(text, &end, 0);
  if (*end != '\0') {
    std::fprintf(stderr, "fuzz: %s=%s is not a number\n", name, text);
    std::exit(2);
  }
  return value;
}

Input read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return Input(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  std::vector<fs::path> paths;
  bool only_replay = false;
  for (int i = 1; i < argc; ++i) {
    const fs::path argument = argv[i];
    if (fs::is_directory(argument)) {
      for (const auto& entry : fs::recursive_directory_iterator(argument)) {
        if (entry.is_regular_file()) paths.push_back(entry.path());
      }
    } else if (fs::exists(argument)) {
      paths.push_back(argument);
      only_replay = true;
    }
  }
  std::ranges::sort(paths);  // for a reproducible order

  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM, SIGTERM}) {
    // Sanitizers have their own handlers for faults, which print more and then call save_input().
    const bool is_fault = number == SIGSEGV || number == SIGBUS || number == SIGFPE;
    if (is_fault && __sanitizer_set_death_callback != nullptr) continue;
    std::signal(number, on_signal);
  }
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(save_input);

  const std::uint64_t seed = number_from("VB_FUZZ_SEED", 1);
  const std::uint64_t runs =
      only_replay ? 0
                  : number_from("VB_FUZZ_RUNS", number_from("VB_FUZZ_RUNS_DEFAULT", kRunsDefault));
  std::vector<Input> pool;
  std::uint64_t number = 0;
  for (const auto& path : paths) {
    pool.push_back(read_file(path));
    run(pool.back(), seed, number++);
  }
  SplitMix64 rng(seed);
  for (std::uint64_t i = 0; i < runs; ++i) {
    Input input;
    if (pool.empty() || rng.below(8) == 0) {
      input = random_input(rng);
    } else {
      input = pool[rng.below(pool.size())];
      mutate(input, pool, rng);
    }
    run(input, seed, number++);
  }
  std::printf("fuzz: %zu inputs of the corpus and %llu generated ones from seed %llu\n",
              pool.size(), static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(seed));
}
