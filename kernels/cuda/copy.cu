// Moving whole blocks of ragged rows, all layers and groups in one launch.

// One warp copies at most TILE_BYTES. All loads of a whole tile are in flight before the first store: reads over PCIe
// take microseconds, and nothing else hides them.
static __device__ inline void copy_tile(const unsigned char* source, unsigned char* destination, int bytes, int lane) {
    int done = 0;
    if (aligned(source, destination)) {
        const uint4* from = reinterpret_cast<const uint4*>(source);
        uint4* to = reinterpret_cast<uint4*>(destination);
        if (bytes == TILE_BYTES) {
            uint4 held[TILE_BYTES / 16 / WARP];
#pragma unroll
            for (int i = 0; i < TILE_BYTES / 16 / WARP; ++i) held[i] = from[i * WARP + lane];
#pragma unroll
            for (int i = 0; i < TILE_BYTES / 16 / WARP; ++i) to[i * WARP + lane] = held[i];
            return;
        }
        for (int i = lane; i < bytes / 16; i += WARP) to[i] = from[i];
        done = bytes / 16 * 16;
    }
    for (int i = done + lane; i < bytes; i += WARP) destination[i] = source[i];
}

// source, destination  int32[entries] block ids, or null: the row's blocks lie one after the other on that side
// tiles                tiles of the largest block of any row
extern "C" __global__ void copy_blocks(const Row* rows, const int* row_ptr, const int* source, const int* destination,
                                       int row_count, int entries, int tiles) {
    const int lane = threadIdx.x % WARP;
    const long long units = static_cast<long long>(entries) * tiles, step = warps_of_grid();
    for (long long unit = warp_of_grid(); unit < units; unit += step) {
        const int entry = static_cast<int>(unit / tiles);
        const int which = row_of(row_ptr, row_count, entry);
        const Row row = rows[which];
        const long long from = unit % tiles * TILE_BYTES, left = row.bytes - from;
        if (left <= 0) continue;
        const int first = row_ptr[which];
        copy_tile(block_at(row.source, row.source_stride, source, entry, first) + from,
                  block_at(row.destination, row.destination_stride, destination, entry, first) + from,
                  left < TILE_BYTES ? static_cast<int>(left) : TILE_BYTES, lane);
    }
}

// Overwrites freed blocks, so that whoever still reads them sees it.
extern "C" __global__ void poison_blocks(const Row* rows, const int* row_ptr, const int* destination, int row_count,
                                         int entries, int tiles, int pattern) {
    const int lane = threadIdx.x % WARP;
    const unsigned int word = static_cast<unsigned int>(pattern) * 0x01010101u;
    const long long units = static_cast<long long>(entries) * tiles, step = warps_of_grid();
    for (long long unit = warp_of_grid(); unit < units; unit += step) {
        const int entry = static_cast<int>(unit / tiles);
        const int which = row_of(row_ptr, row_count, entry);
        const Row row = rows[which];
        const long long from = unit % tiles * TILE_BYTES, left = row.bytes - from;
        if (left <= 0) continue;
        unsigned char* to =
            block_at(row.destination, row.destination_stride, destination, entry, row_ptr[which]) + from;
        const int bytes = left < TILE_BYTES ? static_cast<int>(left) : TILE_BYTES;
        int done = 0;
        if (aligned(to, to)) {
            for (int i = lane; i < bytes / 16; i += WARP) {
                reinterpret_cast<uint4*>(to)[i] = make_uint4(word, word, word, word);
            }
            done = bytes / 16 * 16;
        }
        for (int i = done + lane; i < bytes; i += WARP) to[i] = static_cast<unsigned char>(pattern);
    }
}
