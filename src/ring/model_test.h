#pragma once

#include <ucontext.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/error.h"

// Checks a protocol as a model checker does.  Runs two functions that share memory, in all orders
// of their accesses within a budget.  At each access the explorer may continue (costs 0), switch to
// the other side (costs 1), or hide a store from the other side as a processor's store buffer does
// (costs 1).  The explorer runs the scenario again and again, until it has tried all combinations
// of decisions within the budget.
//
// Hidden stores become visible at the side's next fence or read-modify-write, or when the side ends
// or waits.  A store with release order becomes visible after all earlier stores.  A relaxed store
// may become visible before earlier stores to other addresses.
namespace verbena::ring::model {

class Explorer;
// ModelMemory calls this explorer.
inline Explorer* current_explorer = nullptr;

class Explorer {
 public:
  // Describes one run: the two sides and a check of the result.
  struct Scenario {
    std::array<std::function<void()>, 2> sides;
    std::function<void()> check;
  };

  explicit Explorer(int budget) : budget_(budget) {}

  // Runs scenarios until all combinations of decisions were tried, or until `stop` returns true.
  // `make` creates the scenario and its memory for each run.  Returns the number of runs.
  std::uint64_t explore(const std::function<Scenario()>& make, const std::function<bool()>& stop) {
    current_explorer = this;
    decisions_.clear();
    std::uint64_t runs = 0;
    do {
      run(make());
      ++runs;
    } while (!stop() && prepare_next_run());
    current_explorer = nullptr;
    return runs;
  }

  // Returns true if neither side could continue in the last run, although at least one side had not
  // ended.  That side would sleep for ever.
  bool deadlocked() const { return deadlocked_; }

  // The two sides call the functions below while they run.
  void before_access() {
    if (other_can_run() && decide()) switch_sides();
  }
  std::uint64_t load(const void* address, std::size_t bytes) {
    before_access();
    const auto& hidden = sides_[side_].hidden_stores;
    for (auto it = hidden.rbegin(); it != hidden.rend(); ++it) {
      if (it->address == address) return it->value;
    }
    return bytes == 4 ? *static_cast<const std::uint32_t*>(address)
                      : *static_cast<const std::uint64_t*>(address);
  }
  void store(void* address, std::size_t bytes, std::uint64_t value, bool release) {
    before_access();
    Side& side = sides_[side_];
    bool must_hide = false;
    for (const Store& earlier : side.hidden_stores) {
      must_hide |= release || earlier.address == address;
    }
    if (must_hide || decide()) {
      side.hidden_stores.push_back({address, bytes, value});
    } else {
      write({address, bytes, value});
    }
  }
  void fence() {
    before_access();
    drain(side_);
  }
  // Chooses what a simulated environment does, such as a kernel.  The result true costs 1.
  bool choose() { return decide(); }
  // Waits until `ready` returns true.  `ready` does not see hidden stores, as a kernel does not.
  void wait(const std::function<bool()>& ready) {
    drain(side_);
    sides_[side_].waits_for = &ready;
    while (!ready()) switch_sides();
    sides_[side_].waits_for = nullptr;
  }

 private:
  struct Store {
    void* address;
    std::size_t bytes;
    std::uint64_t value;
  };
  struct Side {
    static constexpr std::size_t kStackBytes = 64 << 10;
    std::unique_ptr<std::byte[]> stack = std::make_unique<std::byte[]>(kStackBytes);
    ucontext_t context{};
    std::function<void()> body;
    std::vector<Store> hidden_stores;
    const std::function<bool()>* waits_for = nullptr;
    bool ended = false;
  };
  struct Decision {
    bool takes_alternative;
    bool both_tried;  // the explorer has tried both possibilities at this point
  };

  static void write(const Store& store) {
    if (store.bytes == 4) {
      *static_cast<std::uint32_t*>(store.address) = static_cast<std::uint32_t>(store.value);
    } else {
      *static_cast<std::uint64_t*>(store.address) = store.value;
    }
  }
  void drain(std::size_t side) {
    for (const Store& store : sides_[side].hidden_stores) write(store);
    sides_[side].hidden_stores.clear();
  }
  bool can_run(std::size_t side) const {
    const Side& s = sides_[side];
    return !s.ended && (s.waits_for == nullptr || (*s.waits_for)());
  }
  bool other_can_run() const { return can_run(1 - side_); }

  // Returns true to take the alternative that costs 1.  A run repeats the decisions of the previous
  // run up to the one that prepare_next_run() has changed, so the runs visit the whole tree of
  // decisions.
  bool decide() {
    if (cost_ == budget_) return false;
    if (step_ == decisions_.size()) decisions_.push_back({false, false});
    const bool takes_alternative = decisions_[step_++].takes_alternative;
    cost_ += takes_alternative ? 1 : 0;
    return takes_alternative;
  }
  // Changes the last decision that has an untried alternative.  Returns false if no decision has
  // one, so that the search is complete.
  bool prepare_next_run() {
    while (!decisions_.empty() && decisions_.back().both_tried) decisions_.pop_back();
    if (decisions_.empty()) return false;
    decisions_.back() = {true, true};
    return true;
  }

  void switch_sides() {
    const std::size_t caller = side_;
    if (!can_run(1 - caller)) {
      // Each side waits or has ended.
      if (!sides_[1 - caller].ended || !sides_[caller].ended) deadlocked_ = true;
      swapcontext(&sides_[caller].context, &main_);
      return;
    }
    side_ = 1 - caller;
    swapcontext(&sides_[caller].context, &sides_[side_].context);
  }

  static void run_side() {
    Explorer& self = *current_explorer;
    Side& side = self.sides_[self.side_];
    side.body();
    self.drain(self.side_);
    side.ended = true;
    if (self.sides_[1 - self.side_].ended) setcontext(&self.main_);
    self.switch_sides();
  }

  void run(Scenario scenario) {
    step_ = 0;
    cost_ = 0;
    side_ = 0;
    deadlocked_ = false;
    for (std::size_t i = 0; i < 2; ++i) {
      Side& side = sides_[i];
      side.body = std::move(scenario.sides[i]);
      side.hidden_stores.clear();
      side.waits_for = nullptr;
      side.ended = false;
      getcontext(&side.context);
      side.context.uc_stack.ss_sp = side.stack.get();
      side.context.uc_stack.ss_size = Side::kStackBytes;
      side.context.uc_link = nullptr;
      makecontext(&side.context, &Explorer::run_side, 0);
    }
    swapcontext(&main_, &sides_[0].context);
    scenario.check();
  }

  int budget_;
  int cost_ = 0;
  std::size_t step_ = 0;
  std::size_t side_ = 0;
  bool deadlocked_ = false;
  std::vector<Decision> decisions_;
  std::array<Side, 2> sides_;
  ucontext_t main_{};
};

// Replaces SharedMemory in a ring or a stream.  The two parameters can remove the fences, or the
// release order of stores.  So a test can show that the explorer detects their absence.
template <bool kFences = true, bool kReleases = true>
struct ModelMemory {
  template <class Word>
  static Word load_relaxed(const Word& word) {
    return static_cast<Word>(current_explorer->load(&word, sizeof word));
  }
  template <class Word>
  static Word load_acquire(const Word& word) {
    return load_relaxed(word);
  }
  template <class Word>
  static Word load_seq_cst(const Word& word) {
    return load_relaxed(word);
  }
  template <class Word>
  static void store_relaxed(Word& word, Word value) {
    current_explorer->store(&word, sizeof word, value, false);
  }
  template <class Word>
  static void store_release(Word& word, Word value) {
    current_explorer->store(&word, sizeof word, value, kReleases);
  }
  template <class Word>
  static Word exchange(Word& word, Word value) {
    current_explorer->fence();
    const Word old = word;
    word = value;
    return old;
  }
  template <class Word>
  static Word fetch_or(Word& word, Word bits) {
    current_explorer->fence();
    const Word old = word;
    word = old | bits;
    return old;
  }
  template <class Word>
  static Word fetch_and(Word& word, Word bits) {
    current_explorer->fence();
    const Word old = word;
    word = old & bits;
    return old;
  }
  template <class Word>
  static Word fetch_add(Word& word, Word value) {
    current_explorer->fence();
    const Word old = word;
    word = old + value;
    return old;
  }
  template <class Word>
  static bool compare_exchange(Word& word, Word& expected, Word desired) {
    current_explorer->fence();
    if (word != expected) {
      expected = word;
      return false;
    }
    word = desired;
    return true;
  }
  static void fence() {
    if (kFences) current_explorer->fence();
  }
};

}  // namespace verbena::ring::model
