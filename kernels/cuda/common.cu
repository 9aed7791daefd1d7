// What every kernel of this folder shares. The files are joined into one source in a fixed order (see source.py); it
// includes nothing, so that NVRTC of CUDA 12 and 13, nvcc and a C++ compiler with shim.hpp take the same text.

// One row of a launch: where the blocks of one layer come from and where they go. Its twin is ROW in rows.py.
struct Row {
    unsigned long long source;       // address of block 0, or of the row's first block where blocks are taken in order
    unsigned long long destination;  // the same of the other side
    long long source_stride;         // bytes from one block to the next; block id x stride passes 2^31
    long long destination_stride;
    long long bytes;  // of one block
    int heads;        // KV heads in a block; packing only
    int head_dim;     // elements of a head; packing only
};

static const int WARP = 32;
static const int TILE_BYTES = 4096;  // one warp's share of a block: eight 16-byte loads in flight in every lane

// The row of an entry: the last one that begins at or before it, which passes over empty rows.
static __device__ inline int row_of(const int* row_ptr, int rows, int entry) {
    int low = 0, high = rows;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (row_ptr[middle] <= entry) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

// Where the entry's block is on one side. Without ids the blocks of a row lie one after the other.
static __device__ inline unsigned char* block_at(unsigned long long base, long long stride, const int* ids, int entry,
                                                 int first) {
    const long long block = ids != nullptr ? ids[entry] : entry - first;
    return reinterpret_cast<unsigned char*>(base + static_cast<unsigned long long>(block * stride));
}

static __device__ inline bool aligned(const void* source, const void* destination) {
    return ((reinterpret_cast<unsigned long long>(source) | reinterpret_cast<unsigned long long>(destination)) & 15) ==
           0;
}

static __device__ inline long long warp_of_grid() {
    return (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / WARP;
}

static __device__ inline long long warps_of_grid() { return static_cast<long long>(gridDim.x) * blockDim.x / WARP; }
