#include "tests/support/cuda_on_host/run_grid.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "tests/support/cuda_on_host/cuda_runtime.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define AMPD_FIBERS_OF_ASAN 1
#endif

#if defined(AMPD_FIBERS_OF_TSAN)
#include <sanitizer/tsan_interface.h>
// A fiber that has ended does not return from these: its calls would be counted for ever.
#define AMPD_NOT_COUNTED __attribute__((no_sanitize("thread"), noinline))
#else
#define AMPD_NOT_COUNTED
#endif

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace cuda_on_host {

char* dynamic_shared = nullptr;

namespace {

std::atomic<unsigned> fiber_order{0};

constexpr size_t kStackBytes = 128 << 10;
constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kWarp = 32;

#if defined(AMPD_FIBERS_OF_TSAN)

// What the thread sanitizer knows of a stack.
class FiberOfTsan {
 public:
  AMPD_NOT_COUNTED void SwitchTo() {
    if (fiber_ == nullptr) fiber_ = __tsan_create_fiber(0);
    __tsan_switch_to_fiber(fiber_, 0);
  }
  void BeCurrent() { fiber_ = __tsan_get_current_fiber(); }

 private:
  void* fiber_ = nullptr;
};

#else

class FiberOfTsan {
 public:
  void SwitchTo() {}
  void BeCurrent() {}
};

#endif

[[noreturn]] void Misuse(const char* what) {
  std::fprintf(stderr, "cuda_on_host: %s (block %u %u %u, thread %u %u %u)\n", what, blockIdx.x, blockIdx.y, blockIdx.z,
               threadIdx.x, threadIdx.y, threadIdx.z);
  std::abort();
}

#if defined(__x86_64__)

// Saves what the calling convention keeps and exchanges stacks; swapcontext would ask the kernel each time.
extern "C" void ampd_cuda_on_host_switch(void** from, void* to);
asm(R"(
.text
.globl ampd_cuda_on_host_switch
.type ampd_cuda_on_host_switch, @function
ampd_cuda_on_host_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size ampd_cuda_on_host_switch, .-ampd_cuda_on_host_switch
)");

class Stack {
 public:
  void Start(char* memory, void (*main)()) {
    // As a call leaves it: 8 bytes off a multiple of 16. Below the address lie six registers.
    auto** top = reinterpret_cast<void**>(memory + kStackBytes - 16);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(main);
    std::memset(top - 6, 0, 6 * sizeof(void*));
    pointer_ = top - 6;
  }
  AMPD_NOT_COUNTED static void Switch(Stack* from, Stack* to) {
    to->fiber_.SwitchTo();
    ampd_cuda_on_host_switch(&from->pointer_, to->pointer_);
  }
  // Of the stack that this runs on.
  void BeCurrent() { fiber_.BeCurrent(); }

 private:
  FiberOfTsan fiber_;
  void* pointer_ = nullptr;
};

#else

class Stack {
 public:
  void Start(char* memory, void (*main)()) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = memory;
    context_.uc_stack.ss_size = kStackBytes;
    context_.uc_link = nullptr;
    makecontext(&context_, main, 0);
  }
  AMPD_NOT_COUNTED static void Switch(Stack* from, Stack* to) {
    to->fiber_.SwitchTo();
    swapcontext(&from->context_, &to->context_);
  }
  // Of the stack that this runs on.
  void BeCurrent() { fiber_.BeCurrent(); }

 private:
  FiberOfTsan fiber_;
  ucontext_t context_;
};

#endif

enum class State : unsigned char { kReady, kAtBarrier, kInExchange, kDone };

struct Exchange {
  unsigned needed = 0;
  unsigned arrived = 0;
  char entries[kWarp * 8];
};

struct Warp {
  unsigned lanes = 0;
  unsigned done = 0;
  // A lane is at most one exchange ahead of the others, so two are enough.
  Exchange exchanges[2];
  unsigned char next[kWarp] = {};
};

class Block {
 public:
  Block() {
    stacks_ = static_cast<char*>(mmap(nullptr, kStackBytes * kMaxThreads, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (stacks_ == MAP_FAILED) Misuse("no memory for stacks");
  }

  void Run(const std::function<void()>& body) {
    body_ = &body;
    threads_ = blockDim.x * blockDim.y * blockDim.z;
    alive_ = threads_;
    at_barrier_ = 0;
    Prepare();
    scheduler_.BeCurrent();
    while (alive_ > 0) {
      bool moved = false;
      NewOrder();
      for (unsigned k = 0; k < threads_; ++k) {
        const unsigned t = (k * stride_ + first_) % threads_;
        if (states_[t] != State::kReady) continue;
        moved = true;
        Resume(t);
      }
      if (at_barrier_ == alive_ && alive_ > 0) {
        Release();
      } else if (!moved) {
        Misuse("threads wait for each other: some are at a barrier or in a warp's exchange that others never reach");
      }
    }
  }

  // Every thread once a pass, each pass in another order where the tests ask for it.
  void NewOrder() {
    first_ = 0;
    stride_ = 1;
    if (fiber_order == 0) return;
    random_ = random_ * 6364136223846793005u + fiber_order;
    first_ = static_cast<unsigned>(random_ >> 33) % threads_;
    stride_ = static_cast<unsigned>(random_ >> 43) % threads_ | 1;
    while (std::gcd(stride_, threads_) != 1) stride_ += 2;
  }

  void SyncThreads(const char* file, int line) {
    if (at_barrier_ > 0 && (file != file_ || line != line_)) Misuse("threads are at different barriers");
    file_ = file;
    line_ = line;
    ++at_barrier_;
    Wait(State::kAtBarrier);
  }

  const char* WarpExchange(unsigned mask, const void* value, size_t bytes) {
    const unsigned lane = running_ % kWarp, bit = 1u << lane;
    Warp& warp = warps_[running_ / kWarp];
    const unsigned needed = mask & warp.lanes;
    if ((needed & bit) == 0) Misuse("a lane exchanges under a mask without itself");
    if ((needed & warp.done) != 0) Misuse("a lane of the mask has ended");
    Exchange& exchange = warp.exchanges[warp.next[lane]];
    warp.next[lane] ^= 1;
    if (exchange.arrived == 0) exchange.needed = needed;
    if (exchange.needed != needed) Misuse("lanes exchange under different masks");
    std::memcpy(exchange.entries + 8 * lane, value, bytes);
    exchange.arrived |= bit;
    if (exchange.arrived != needed) {
      Wait(State::kInExchange);
      return exchange.entries;
    }
    exchange.arrived = 0;
    for (unsigned l = 0; l < kWarp; ++l) {
      if ((needed & (1u << l)) != 0) states_[running_ / kWarp * kWarp + l] = State::kReady;
    }
    return exchange.entries;
  }

  unsigned running() const { return running_; }
  unsigned LanesOfWarp() const { return warps_[running_ / kWarp].lanes; }

 private:
  AMPD_NOT_COUNTED static void Main();

  void Prepare() {
    states_.assign(threads_, State::kReady);
    started_.assign(threads_, false);
    fibers_.resize(std::max<size_t>(fibers_.size(), threads_));
    warps_.assign((threads_ + kWarp - 1) / kWarp, Warp());
    for (unsigned t = 0; t < threads_; ++t) warps_[t / kWarp].lanes |= 1u << (t % kWarp);
  }

  void Release() {
    for (State& state : states_) {
      if (state == State::kAtBarrier) state = State::kReady;
    }
    at_barrier_ = 0;
  }

  void Resume(unsigned t) {
    running_ = t;
    threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / (blockDim.x * blockDim.y)};
    if (!started_[t]) {
      started_[t] = true;
      fibers_[t].Start(stacks_ + t * kStackBytes, &Block::Main);
    }
#if defined(AMPD_FIBERS_OF_ASAN)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, stacks_ + t * kStackBytes, kStackBytes);
    Stack::Switch(&scheduler_, &fibers_[t]);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    Stack::Switch(&scheduler_, &fibers_[t]);
#endif
  }

  void Wait(State state) {
    const unsigned t = running_;
    states_[t] = state;
    Leave(t, /*forever=*/false);
  }

  AMPD_NOT_COUNTED void Leave(unsigned t, bool forever [[maybe_unused]]) {
#if defined(AMPD_FIBERS_OF_ASAN)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(forever ? nullptr : &fake, scheduler_bottom_, scheduler_size_);
    Stack::Switch(&fibers_[t], &scheduler_);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    Stack::Switch(&fibers_[t], &scheduler_);
#endif
  }

  AMPD_NOT_COUNTED void RunThread() {
#if defined(AMPD_FIBERS_OF_ASAN)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom_, &scheduler_size_);
#endif
    (*body_)();
    const unsigned t = running_;
    states_[t] = State::kDone;
    warps_[t / kWarp].done |= 1u << (t % kWarp);
    --alive_;
    Leave(t, /*forever=*/true);
  }

  char* stacks_;
  unsigned first_ = 0, stride_ = 1;
  uint64_t random_ = 1;
  const std::function<void()>* body_ = nullptr;
  unsigned threads_ = 0;
  unsigned alive_ = 0;
  unsigned at_barrier_ = 0;
  unsigned running_ = 0;
  const char* file_ = nullptr;
  int line_ = 0;
  std::vector<State> states_;
  std::vector<bool> started_;
  std::vector<Stack> fibers_;
  std::vector<Warp> warps_;
  Stack scheduler_;
#if defined(AMPD_FIBERS_OF_ASAN)
  const void* scheduler_bottom_ = nullptr;
  size_t scheduler_size_ = 0;
#endif
};

Block* TheBlock() {
  static Block* const block = new Block();
  return block;
}

void Block::Main() { TheBlock()->RunThread(); }

}  // namespace

void SetFiberOrder(unsigned seed) { fiber_order = seed; }

void RunGrid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body) {
  gridDim = grid;
  blockDim = block;
  // Undefined at first, as a GPU's.
  const std::unique_ptr<char[]> shared(new char[shared_bytes + 128]);
  std::memset(shared.get(), 0xff, shared_bytes + 128);
  dynamic_shared = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(shared.get()) + 127) / 128 * 128);
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        TheBlock()->Run(body);
      }
    }
  }
  dynamic_shared = nullptr;
}

void SyncThreads(const char* file, int line) { TheBlock()->SyncThreads(file, line); }

const char* WarpExchange(unsigned mask, const void* value, size_t bytes) {
  return TheBlock()->WarpExchange(mask, value, bytes);
}

int Lane() { return static_cast<int>(TheBlock()->running() % kWarp); }

unsigned LanesOfWarp() { return TheBlock()->LanesOfWarp(); }

}  // namespace cuda_on_host
