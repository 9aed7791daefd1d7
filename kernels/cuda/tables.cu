// Block tables at addresses that never change, so that a captured graph which reads them stays valid.
// One table is [layers][slots] int32, beside it the slots in use of each layer and the generation it shows.

// A whole table. The slots behind the used ones become holes.
extern "C" __global__ void write_tables(int* table, int* lengths, long long* generation, const int* row_ptr,
                                        const int* ids, int layers, int slots, long long shown) {
    for (int layer = blockIdx.x; layer < layers; layer += gridDim.x) {
        const int begin = row_ptr[layer], used = row_ptr[layer + 1] - begin;
        int* row = table + static_cast<long long>(layer) * slots;
        for (int slot = threadIdx.x; slot < slots; slot += blockDim.x) row[slot] = slot < used ? ids[begin + slot] : -1;
        if (threadIdx.x == 0) lengths[layer] = used;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) *generation = shown;
}

// The kept slots of each layer, closed up in order. `to` may be `from`: a kept slot never moves up, so a tile of slots
// is read as a whole, then written, and the tiles that follow read only what no earlier one has written.
extern "C" __global__ void remap_tables(const int* from, int* to, const int* from_lengths, int* to_lengths,
                                        long long* generation, const int* keep_ptr, const int* keep, int layers,
                                        int slots, long long shown) {
    for (int layer = blockIdx.x; layer < layers; layer += gridDim.x) {
        const int begin = keep_ptr[layer], kept = keep_ptr[layer + 1] - begin;
        const int* old = from + static_cast<long long>(layer) * slots;
        int* row = to + static_cast<long long>(layer) * slots;
        const int used = from_lengths[layer];
        for (int start = 0; start < kept; start += blockDim.x) {
            const int slot = start + threadIdx.x;
            const int block = slot < kept ? old[keep[begin + slot]] : -1;
            __syncthreads();
            if (slot < kept) row[slot] = block;
        }
        // In place only the slots that were used hold anything; elsewhere the row may show more of an older table.
        const int last = from == to ? used : slots;
        for (int slot = kept + threadIdx.x; slot < last; slot += blockDim.x) row[slot] = -1;
        __syncthreads();
        if (threadIdx.x == 0) to_lengths[layer] = kept;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) *generation = shown;
}
