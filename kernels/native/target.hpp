// One source, three instruction sets: the attribute of a function says what the compiler may use in it.
#pragma once

#if defined(__x86_64__)
#define KVSWEEP_X86 1
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2,bmi,bmi2,popcnt,lzcnt")))
#define AVX512                                                                                         \
    __attribute__((                                                                                    \
        target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,avx2,bmi,bmi2,popcnt,lzcnt," \
               "prefer-vector-width=512")))
#else
#define KVSWEEP_X86 0
#endif

// A body that is inlined into one function an instruction set, and vectorised there.
#define BODY inline __attribute__((always_inline))
