#pragma once

#include "base/error.h"

namespace verbena::hca {

// Links one object into one list.
template <class T>
struct ListLink {
  T* previous = nullptr;
  T* next = nullptr;
  bool linked = false;
};

// Holds objects in the order in which they were added.  The links are members of the objects, so
// adding never allocates, and no entry is lost for lack of memory.  The list does not own the
// objects.  Only one thread at a time may use a list.
template <class T, ListLink<T> T::*Link>
class List {
 public:
  bool empty() const { return first_ == nullptr; }
  T& front() const { return *first_; }

  // Does nothing if the object is already in the list.
  void push_back(T& object) {
    auto& link = object.*Link;
    if (link.linked) return;
    link = {.previous = last_, .next = nullptr, .linked = true};
    (last_ != nullptr ? (last_->*Link).next : first_) = &object;
    last_ = &object;
  }
  void remove(T& object) {
    auto& link = object.*Link;
    if (!link.linked) return;
    (link.previous != nullptr ? (link.previous->*Link).next : first_) = link.next;
    (link.next != nullptr ? (link.next->*Link).previous : last_) = link.previous;
    link = {};
  }
  T& pop_front() {
    VB_CHECK(!empty());
    T& object = *first_;
    remove(object);
    return object;
  }

 private:
  T* first_ = nullptr;
  T* last_ = nullptr;
};

}  // namespace verbena::hca
