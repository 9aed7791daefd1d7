// The diff planner: which wanted blocks are not held, ascending, and the padding of a shared table. One thread block a
// row. Three bitmaps a row, over the ids of the sequence, lie in global memory: want, held, and the padding that was
// chosen.

static const int DIFF_THREADS = 256;

static __device__ inline bool has(const unsigned int* bitmap, int id) {
    return (bitmap[id / 32] >> (id % 32) & 1u) != 0;
}

// Sum of `value` over the threads before this one; `total` is that over all of them.
static __device__ inline int scan(int value, int* shared, int* total) {
    const int thread = threadIdx.x;
    shared[thread] = value;
    __syncthreads();
    for (int distance = 1; distance < DIFF_THREADS; distance *= 2) {
        const int before = thread >= distance ? shared[thread - distance] : 0;
        __syncthreads();
        shared[thread] += before;
        __syncthreads();
    }
    *total = shared[DIFF_THREADS - 1];
    const int sum = shared[thread] - value;
    __syncthreads();  // the next scan writes where the last thread reads
    return sum;
}

// bitmaps  [rows][3][words]
// counts   [rows][3]: wanted and not held, in the tail and in neither, in the tail and not wanted
// largest  the largest id over want, tail and held; -1 on entry
extern "C" __global__ void diff_count(const int* want_ptr, const int* want, const int* tail_ptr, const int* tail,
                                      const int* held_ptr, const int* held, int rows, int words, unsigned int* bitmaps,
                                      int* counts, int* largest) {
    __shared__ int sums[4];
    const int thread = threadIdx.x;
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        unsigned int* wanted = bitmaps + static_cast<long long>(row) * 3 * words;
        unsigned int* present = wanted + words;
        for (long long word = thread; word < 3ll * words; word += blockDim.x) wanted[word] = 0;
        if (thread < 4) sums[thread] = thread < 3 ? 0 : -1;
        __syncthreads();
        int most = -1;
        for (int i = want_ptr[row] + thread; i < want_ptr[row + 1]; i += blockDim.x) {
            atomicOr(&wanted[want[i] / 32], 1u << want[i] % 32);
            most = want[i] > most ? want[i] : most;
        }
        for (int i = held_ptr[row] + thread; i < held_ptr[row + 1]; i += blockDim.x) {
            if (held[i] < 0) continue;  // an empty slot
            atomicOr(&present[held[i] / 32], 1u << held[i] % 32);
            most = held[i] > most ? held[i] : most;
        }
        __syncthreads();
        int fresh = 0, spare = 0, unwanted = 0;
        for (int i = want_ptr[row] + thread; i < want_ptr[row + 1]; i += blockDim.x) fresh += !has(present, want[i]);
        for (int i = tail_ptr[row] + thread; i < tail_ptr[row + 1]; i += blockDim.x) {
            const bool free = !has(wanted, tail[i]);
            unwanted += free;
            spare += free && !has(present, tail[i]);
            most = tail[i] > most ? tail[i] : most;
        }
        atomicAdd(&sums[0], fresh);
        atomicAdd(&sums[1], spare);
        atomicAdd(&sums[2], unwanted);
        atomicMax(&sums[3], most);
        __syncthreads();
        if (thread < 3) counts[3 * row + thread] = sums[thread];
        if (thread == 0) atomicMax(largest, sums[3]);
        __syncthreads();  // the next row of this thread block sets the sums anew
    }
}

// The ids in the bitmap `bits(word)`, ascending. Returns how many.
template <class Bits>
static __device__ inline int emit(Bits bits, int words, int* out, int* shared) {
    int written = 0;
    for (int start = 0; start < words; start += DIFF_THREADS) {
        const int word = start + threadIdx.x;
        unsigned int left = word < words ? bits(word) : 0;
        int total = 0;
        int at = written + scan(__popc(left), shared, &total);
        for (; left != 0; left &= left - 1) out[at++] = word * 32 + __ffs(static_cast<int>(left)) - 1;
        written += total;
    }
    return written;
}

struct UploadBits {
    const unsigned int* wanted;
    const unsigned int* present;
    const unsigned int* padding;
    bool full;
    __device__ unsigned int operator()(int word) const {
        return (full ? wanted[word] : wanted[word] & ~present[word]) | padding[word];
    }
};

struct PadBits {
    const unsigned int* padding;
    __device__ unsigned int operator()(int word) const { return padding[word]; }
};

// After diff_count, with the same arguments.
// upload, pad  [rows][capacity] ids, ascending
// sizes        [rows][2]: ids in upload and in pad
// plan         {1 for a full plan, common_new_slots}
extern "C" __global__ void diff_emit(const int* want_ptr, const int* tail_ptr, const int* tail, int rows, int words,
                                     unsigned int* bitmaps, const int* counts, int shared_table, int capacity,
                                     int* upload, int* pad, int* sizes, int* plan) {
    __shared__ int shared[DIFF_THREADS];
    __shared__ int common, whole, short_of;
    const int thread = threadIdx.x;
    if (thread == 0) common = whole = short_of = 0;
    __syncthreads();
    if (shared_table) {
        for (int row = thread; row < rows; row += blockDim.x) {
            atomicMax(&common, counts[3 * row]);
            atomicMax(&whole, want_ptr[row + 1] - want_ptr[row]);
        }
        __syncthreads();
        for (int row = thread; row < rows; row += blockDim.x) {
            if (counts[3 * row] + counts[3 * row + 1] < common) atomicOr(&short_of, 1);
        }
        __syncthreads();
    }
    const bool full = short_of != 0;
    const int slots = full ? whole : common;
    if (blockIdx.x == 0 && thread == 0) {
        plan[0] = full;
        plan[1] = slots;
    }
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        unsigned int* wanted = bitmaps + static_cast<long long>(row) * 3 * words;
        unsigned int* present = wanted + words;
        unsigned int* padding = present + words;
        const int own = full ? want_ptr[row + 1] - want_ptr[row] : counts[3 * row];
        int missing = shared_table ? slots - own : 0;
        for (int start = tail_ptr[row]; missing > 0 && start < tail_ptr[row + 1]; start += DIFF_THREADS) {
            const int i = start + thread;
            const bool usable = i < tail_ptr[row + 1] && !has(wanted, tail[i]) && (full || !has(present, tail[i]));
            int total = 0;
            const int before = scan(usable, shared, &total);  // the tail is best first: the first ones are taken
            if (usable && before < missing) atomicOr(&padding[tail[i] / 32], 1u << tail[i] % 32);
            missing -= total;
        }
        __syncthreads();
        const int uploads = emit(UploadBits{wanted, present, padding, full}, words,
                                 upload + static_cast<long long>(row) * capacity, shared);
        const int pads = emit(PadBits{padding}, words, pad + static_cast<long long>(row) * capacity, shared);
        if (thread == 0) {
            sizes[2 * row] = uploads;
            sizes[2 * row + 1] = pads;
        }
    }
}
