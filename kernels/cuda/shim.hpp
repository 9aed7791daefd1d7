// The kernels' source on a CPU: this file before it and SHIM_KERNEL(name) for every kernel behind it make one shared
// library. A grid runs thread block after thread block. Kernels without a barrier run thread after thread; the others
// as one fiber a thread, switched at barriers only, in an order that the caller chooses: where a barrier is missing, a
// thread reads what another has not written yet, or has overwritten, in one order or the other.
#pragma once
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define __global__
#define __device__
#define __shared__ static

struct alignas(16) uint4 {
    unsigned int x, y, z, w;
};
inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) { return {x, y, z, w}; }

struct ShimIndex {
    int x;
};
inline ShimIndex threadIdx, blockIdx, blockDim, gridDim;

inline int atomicAdd(int* at, int value) { return std::exchange(*at, *at + value); }
inline int atomicMax(int* at, int value) { return std::exchange(*at, *at > value ? *at : value); }
inline int atomicOr(int* at, int value) { return std::exchange(*at, *at | value); }
inline unsigned int atomicOr(unsigned int* at, unsigned int value) { return std::exchange(*at, *at | value); }
inline int __popc(unsigned int value) { return __builtin_popcount(value); }
inline int __ffs(int value) { return __builtin_ffs(value); }

namespace shim {

enum Status { OK = 0, UNDECLARED_BARRIER = 1, DIVERGENT_BARRIER = 2, NO_STACK = 3 };

struct Fiber {
    ucontext_t first;  // how it begins; from then on jumps switch, which take no call of the kernel
    jmp_buf place;
    char* stack;
    bool begun;
    bool finished;
};

constexpr std::size_t STACK_BYTES = 64 << 10;

struct Block {
    std::vector<Fiber> fibers;
    jmp_buf scheduler;
    int running = -1;
    int skipped = -1;  // the barrier that is left out, to show that its absence is seen
    bool undeclared = false;
    void (*body)(void*) = nullptr;
    void* argument = nullptr;
    const void* scheduler_stack = nullptr;  // for the address sanitizer only
    std::size_t scheduler_bytes = 0;
};
inline Block block;

// The address sanitizer has to know when the stack changes.
inline void leaving(void** fake, const void* stack, std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(fake, stack, bytes);
#else
    (void)fake, (void)stack, (void)bytes;
#endif
}
inline void arrived(void* fake, const void** stack, std::size_t* bytes) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, stack, bytes);
#else
    (void)fake, (void)stack, (void)bytes;
#endif
}

inline void enter() {
    arrived(nullptr, &block.scheduler_stack, &block.scheduler_bytes);
    block.body(block.argument);
    Fiber& own = block.fibers[block.running];
    own.finished = true;
    leaving(nullptr, block.scheduler_stack, block.scheduler_bytes);
    _longjmp(block.scheduler, 1);
}

inline void barrier(int number) {
    if (number == block.skipped) return;
    if (block.running < 0) {
        block.undeclared = true;
        return;
    }
    Fiber& own = block.fibers[block.running];
    void* fake = nullptr;
    leaving(&fake, block.scheduler_stack, block.scheduler_bytes);
    if (_setjmp(own.place) == 0) _longjmp(block.scheduler, 1);
    arrived(fake, &block.scheduler_stack, &block.scheduler_bytes);
}

inline void resume(int thread) {
    block.running = thread;
    threadIdx.x = thread;
    Fiber& fiber = block.fibers[thread];
    void* fake = nullptr;
    leaving(&fake, fiber.stack, STACK_BYTES);
    if (_setjmp(block.scheduler) == 0) {
        if (fiber.begun) _longjmp(fiber.place, 1);
        fiber.begun = true;
        setcontext(&fiber.first);
    }
    arrived(fake, nullptr, nullptr);
    block.running = -1;
}

// 0 is ascending, 1 descending, anything else a shuffle of that seed, anew after every barrier.
inline void arrange(std::vector<int>& order, unsigned int wanted, std::mt19937& random) {
    std::iota(order.begin(), order.end(), 0);
    if (wanted == 1) {
        for (std::size_t i = 0; i < order.size() / 2; ++i) std::swap(order[i], order[order.size() - 1 - i]);
    } else if (wanted > 1) {
        for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
    }
}

inline Status run_fibers(int threads, unsigned int wanted, std::mt19937& random) {
    std::vector<int> order(threads);
    for (int thread = 0; thread < threads; ++thread) {
        Fiber& fiber = block.fibers[thread];
        fiber.begun = fiber.finished = false;
        getcontext(&fiber.first);
        fiber.first.uc_stack.ss_sp = fiber.stack;
        fiber.first.uc_stack.ss_size = STACK_BYTES;
        fiber.first.uc_link = nullptr;
        makecontext(&fiber.first, enter, 0);
    }
    for (;;) {
        arrange(order, wanted, random);
        for (const int thread : order) resume(thread);
        int finished = 0;
        for (const Fiber& fiber : block.fibers) finished += fiber.finished;
        if (finished == threads) return OK;
        if (finished != 0) return DIVERGENT_BARRIER;
    }
}

inline Status launch(void (*body)(void*), void* argument, int grid, int threads, unsigned int wanted, bool barriers) {
    std::mt19937 random(wanted);
    gridDim.x = grid;
    blockDim.x = threads;
    block.body = body;
    block.argument = argument;
    block.undeclared = false;
    char* stacks = nullptr;
    if (barriers) {
        void* memory = mmap(nullptr, STACK_BYTES * threads, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return NO_STACK;
        stacks = static_cast<char*>(memory);
        block.fibers.assign(threads, Fiber{});
        for (int thread = 0; thread < threads; ++thread) block.fibers[thread].stack = stacks + STACK_BYTES * thread;
    }
    std::vector<int> blocks(grid);
    arrange(blocks, wanted, random);
    Status status = OK;
    for (const int index : blocks) {
        blockIdx.x = index;
        if (barriers) {
            status = run_fibers(threads, wanted, random);
            if (status != OK) break;
            continue;
        }
        for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) body(argument);
    }
    if (stacks != nullptr) munmap(stacks, STACK_BYTES * threads);
    return block.undeclared ? UNDECLARED_BARRIER : status;
}

// Calls a kernel with cuLaunchKernel's shape of arguments: one pointer to each value.
template <class... A, std::size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<A*>(arguments[I])...);
}
template <class... A>
void call(void (*kernel)(A...), void** arguments) {
    call(kernel, arguments, std::index_sequence_for<A...>{});
}

}  // namespace shim

extern "C" void shim_skip(int barrier) { shim::block.skipped = barrier; }

#define __syncthreads() shim::barrier(__COUNTER__)
#define SHIM_KERNEL(name)                                                                                   \
    extern "C" int shim_##name(int grid, int threads, void** arguments, unsigned int order, int barriers) { \
        auto body = [](void* given) { shim::call(name, static_cast<void**>(given)); };                      \
        return shim::launch(body, arguments, grid, threads, order, barriers != 0);                          \
    }
