#include "engine/backend/cpu/strided.h"

#include <algorithm>
#include <cstring>

namespace ampd::cpu {
namespace {

// Walks a view row by row: the last axis is a run, the others are counted like an odometer.
class RowWalk {
 public:
  RowWalk(const StridedView& view, int64_t first) : view_(view), index_(view.extents.size(), 0), at_(view.offset) {
    for (size_t d = view.extents.size(); d-- > 0;) {
      index_[d] = first % view.extents[d];
      first /= view.extents[d];
      at_ += index_[d] * view.strides[d];
    }
  }

  // Elements left in the current row, and the tensor's element it continues at.
  int64_t left() const { return view_.extents.back() - index_.back(); }
  int64_t at() const { return at_; }

  void Advance(int64_t n) {
    index_.back() += n;
    at_ += n * view_.strides.back();
    for (size_t d = index_.size() - 1; index_[d] == view_.extents[d]; --d) {
      at_ -= index_[d] * view_.strides[d];
      index_[d] = 0;
      if (d == 0) return;
      ++index_[d - 1];
      at_ += view_.strides[d - 1];
    }
  }

 private:
  const StridedView& view_;
  Shape index_;
  int64_t at_;
};

template <typename T>
void Read(const StridedView& view, const T* from, int64_t first, int64_t n, T* to) {
  if (view.contiguous()) {
    std::memcpy(to, from + view.offset + first, n * sizeof(T));
    return;
  }
  const int64_t stride = view.strides.back();
  RowWalk walk(view, first);
  while (n > 0) {
    const int64_t m = std::min(n, walk.left());
    const T* row = from + walk.at();
    if (stride == 1) {
      std::copy(row, row + m, to);
    } else if (stride == 0) {
      std::fill(to, to + m, *row);
    } else {
      for (int64_t i = 0; i < m; ++i) to[i] = row[i * stride];
    }
    walk.Advance(m);
    to += m;
    n -= m;
  }
}

template <typename T>
void Write(const StridedView& view, const T* from, int64_t first, int64_t n, T* to) {
  if (view.contiguous()) {
    std::memcpy(to + view.offset + first, from, n * sizeof(T));
    return;
  }
  const int64_t stride = view.strides.back();
  RowWalk walk(view, first);
  while (n > 0) {
    const int64_t m = std::min(n, walk.left());
    T* row = to + walk.at();
    for (int64_t i = 0; i < m; ++i) row[i * stride] = from[i];
    walk.Advance(m);
    from += m;
    n -= m;
  }
}

template <typename Function>
void ByElement(int64_t bytes, const Function& function) {
  if (bytes == 1) return function(uint8_t{});
  if (bytes == 2) return function(uint16_t{});
  if (bytes == 4) return function(uint32_t{});
  function(uint64_t{});
}

}  // namespace

void ReadStrided(const StridedView& view, int64_t element_bytes, const void* from, int64_t first, int64_t n, void* to) {
  ByElement(element_bytes, [&](auto element) {
    using T = decltype(element);
    Read(view, static_cast<const T*>(from), first, n, static_cast<T*>(to));
  });
}

void WriteStrided(const StridedView& view, int64_t element_bytes, const void* from, int64_t first, int64_t n,
                  void* to) {
  ByElement(element_bytes, [&](auto element) {
    using T = decltype(element);
    Write(view, static_cast<const T*>(from), first, n, static_cast<T*>(to));
  });
}

}  // namespace ampd::cpu
