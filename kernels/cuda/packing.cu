// Packed (VNNI) blocks of bfloat16 to natural order and back, joined with the scatter or gather of whole blocks.
//
// Packed, a head is a K tile and a V tile of B x D elements each (B tokens of a block, D head_dim, both multiples of
// 32):
//   K  (t/16)*16*D + (d/2)*32 + (t%16)*2 + d%2      pairs along d
//   V  (d/16)*16*B + (t/2)*32 + (d%16)*2 + t%2      pairs along t
// Every thread takes whole 16-byte words on both sides and turns them in registers, so nothing is shared and nobody
// waits.

static __device__ inline unsigned int low_halves(unsigned int a, unsigned int b) { return (a & 0xFFFFu) | (b << 16); }

static __device__ inline unsigned int high_halves(unsigned int a, unsigned int b) {
    return (a >> 16) | (b & 0xFFFF0000u);
}

// K: 4 tokens x 8 elements. Packed words are 4 tokens of one pair, natural words 4 pairs of one token: a 4 x 4
// transpose of 32-bit words, which is its own inverse.
template <bool PACK>
static __device__ inline void turn_keys(const uint4* source, uint4* destination, int item, int head_dim) {
    const int eighths = head_dim / 8;
    const int quarter = item % 4, eighth = item / 4 % eighths, tile = item / 4 / eighths;
    const int packed = tile * 2 * head_dim + eighth * 16 + quarter;    // + 4 a pair
    const int natural = (tile * 16 + quarter * 4) * eighths + eighth;  // + eighths a token
    const int from = PACK ? natural : packed, from_step = PACK ? eighths : 4;
    const int to = PACK ? packed : natural, to_step = PACK ? 4 : eighths;
    const uint4 a = source[from], b = source[from + from_step];
    const uint4 c = source[from + 2 * from_step], d = source[from + 3 * from_step];
    destination[to] = make_uint4(a.x, b.x, c.x, d.x);
    destination[to + to_step] = make_uint4(a.y, b.y, c.y, d.y);
    destination[to + 2 * to_step] = make_uint4(a.z, b.z, c.z, d.z);
    destination[to + 3 * to_step] = make_uint4(a.w, b.w, c.w, d.w);
}

// V: 2 tokens x 8 elements. Packed, the two tokens of an element are the halves of one word.
template <bool PACK>
static __device__ inline void turn_values(const uint4* source, uint4* destination, int item, int head_dim,
                                          int block_size) {
    const int eighths = head_dim / 8;
    const int eighth = item % eighths, pair = item / eighths;
    const int packed = eighth / 2 * 2 * block_size + pair * 4 + eighth % 2 * 2;  // two words, one after the other
    const int natural = 2 * pair * eighths + eighth;                             // one word in each of two tokens
    if (PACK) {
        const uint4 a = source[natural], b = source[natural + eighths];
        destination[packed] =
            make_uint4(low_halves(a.x, b.x), high_halves(a.x, b.x), low_halves(a.y, b.y), high_halves(a.y, b.y));
        destination[packed + 1] =
            make_uint4(low_halves(a.z, b.z), high_halves(a.z, b.z), low_halves(a.w, b.w), high_halves(a.w, b.w));
    } else {
        const uint4 a = source[packed], b = source[packed + 1];
        destination[natural] =
            make_uint4(low_halves(a.x, a.y), low_halves(a.z, a.w), low_halves(b.x, b.y), low_halves(b.z, b.w));
        destination[natural + eighths] =
            make_uint4(high_halves(a.x, a.y), high_halves(a.z, a.w), high_halves(b.x, b.y), high_halves(b.z, b.w));
    }
}

// A unit of one warp is the K or the V of one head of one block.
template <bool PACK>
static __device__ inline void turn_blocks(const Row* rows, const int* row_ptr, const int* source,
                                          const int* destination, int row_count, int entries, int most_heads,
                                          int block_size) {
    const int lane = threadIdx.x % WARP;
    const long long units = static_cast<long long>(entries) * most_heads * 2, step = warps_of_grid();
    for (long long unit = warp_of_grid(); unit < units; unit += step) {
        const int part = static_cast<int>(unit % 2), head = static_cast<int>(unit / 2 % most_heads);
        const int entry = static_cast<int>(unit / 2 / most_heads);
        const int which = row_of(row_ptr, row_count, entry);
        const Row row = rows[which];
        if (head >= row.heads) continue;
        const int first = row_ptr[which];
        const long long tile =
            static_cast<long long>(block_size) * row.head_dim * 2;  // bytes of the K or V of one head
        const long long packed = (2 * head + part) * tile, natural = (part * row.heads + head) * tile;
        const unsigned char* from =
            block_at(row.source, row.source_stride, source, entry, first) + (PACK ? natural : packed);
        unsigned char* to =
            block_at(row.destination, row.destination_stride, destination, entry, first) + (PACK ? packed : natural);
        const uint4* words = reinterpret_cast<const uint4*>(from);
        uint4* out = reinterpret_cast<uint4*>(to);
        const int elements = block_size * row.head_dim;
        if (part == 0) {
            for (int item = lane; item < elements / 32; item += WARP) turn_keys<PACK>(words, out, item, row.head_dim);
        } else {
            for (int item = lane; item < elements / 16; item += WARP) {
                turn_values<PACK>(words, out, item, row.head_dim, block_size);
            }
        }
    }
}

// Arguments as copy_blocks; most_heads is the largest of any row. Both sides are aligned to 16 bytes.
extern "C" __global__ void unpack_blocks(const Row* rows, const int* row_ptr, const int* source, const int* destination,
                                         int row_count, int entries, int most_heads, int block_size) {
    turn_blocks<false>(rows, row_ptr, source, destination, row_count, entries, most_heads, block_size);
}

extern "C" __global__ void pack_blocks(const Row* rows, const int* row_ptr, const int* source, const int* destination,
                                       int row_count, int entries, int most_heads, int block_size) {
    turn_blocks<true>(rows, row_ptr, source, destination, row_count, entries, most_heads, block_size);
}
