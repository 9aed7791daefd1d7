// The compute core: plain C++20, no Python headers. Every entry point checks its ids before it reads or writes
// through them and throws Refused; nothing has been written then. Memory is borrowed for the length of a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace kvsweep {

// Instruction sets that are used. avx512 stands for F, BW, VL, DQ, VBMI and VBMI2 together.
enum class Isa : int { scalar = 0, avx2 = 1, avx512 = 2 };

// The best one of this processor.
Isa best_isa();

// How a call runs: an instruction set the processor has, and how many threads share the work (at least 1).
struct Run {
    Isa isa;
    int threads;
};

// An argument is not accepted. The message names it; the Python edge says the rest.
struct Refused : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

// Ragged rows: row r is ids[row_ptr[r] .. row_ptr[r+1]).
struct Rows {
    const std::int32_t* row_ptr;
    const std::int32_t* ids;
    std::int64_t rows;
    std::int64_t count;

    std::int64_t begin(std::int64_t row) const { return row_ptr[row]; }
    std::int64_t size(std::int64_t row) const { return std::int64_t{row_ptr[row + 1]} - row_ptr[row]; }
    const std::int32_t* row(std::int64_t row) const { return ids + row_ptr[row]; }
};

// A pool of areas [layers, blocks, block_bytes] and the layer of each row.
struct Pool {
    std::uint8_t* data;
    std::int64_t layers;
    std::int64_t blocks;
    std::int64_t block_bytes;
    const std::int32_t* layer_of_row;

    std::uint8_t* area(std::int64_t row, std::int32_t block) const {
        return data + (std::int64_t{layer_of_row[row]} * blocks + block) * block_bytes;
    }
};

// ---- moving whole blocks (copy.cpp); limits of a copy, for measuring against
void gather(const Pool& pool, const Rows& source, std::uint8_t* out, Run run);
void scatter(const std::uint8_t* staging, const Pool& pool, const Rows& destination, Run run);
void move(const Pool& pool, const Rows& source, const std::int32_t* destination, Run run);
void stream_copy(const std::uint8_t* from, std::uint8_t* to, std::int64_t bytes, Run run);
std::uint64_t read_all(const std::uint8_t* from, std::int64_t bytes, Run run);

// ---- packing for matrix units (vnni.cpp)
enum class Order : int { heads_first = 0, tokens_first = 1 };  // [2, head, token, dim] or [2, token, head, dim]
enum Parts : int { keys = 1, values = 2 };

struct Tiles {
    std::int64_t blocks, kv_heads, block_size, head_dim;
    Order order;
    int parts;      // which of K and V; the other is left as it is
    bool together;  // K and V share blocks; false: the arrays hold only the one that `parts` names
};

void unpack_vnni(const std::uint16_t* packed, std::uint16_t* natural, const Tiles& tiles, Run run);
void pack_vnni(const std::uint16_t* natural, std::uint16_t* packed, const Tiles& tiles, Run run);

// ---- packing tokens (tokens.cpp)
struct TokenShape {
    std::int64_t kv_heads, block_size, head_dim, element_bytes;
    bool packed;  // for matrix units: 16-bit words, sizes multiples of 32
};

// Copies the tokens of each row (block * block_size + place) into its destination blocks, ceil(size / block_size) a
// row.
void pack_tokens(const Pool& pool, const Rows& tokens, const Rows& destination, const TokenShape& shape, Run run);

// ---- planning an upload (diff.cpp)
struct DiffOut {
    std::int32_t *upload_ptr, *upload_ids, *pad_ptr, *pad_ids, *new_per_row, *unfilled_per_row;
    std::int64_t capacity;  // of upload_ids and of pad_ids
};

struct DiffSummary {
    bool full;
    std::int32_t common, largest;
};

// Ids `capacity` must have room for: what want can become in the worst case.
std::int64_t diff_capacity(const Rows& want, bool shared_table);
DiffSummary plan_diff(const Rows& want, const Rows& tail, const Rows& held, std::int64_t limit, bool shared_table,
                      const DiffOut& out, Run run);

// ---- ranking (topk.cpp)
enum class Emit : int { best_first = 0, ascending = 1 };

// The k best of each row by (-score, id); throws Refused for a score that is not finite.
void select_top(const float* scores, std::int64_t rows, std::int64_t n, std::int64_t k, Emit emit, std::int32_t* out,
                Run run);

// ---- retention (retain.cpp)
void remap_rows(const Rows& physical, const Rows& keep, std::int32_t* out, Run run);
void row_classes(const Rows& rows, std::int32_t* out, Run run);
// Ids of `owned` that are not in `referenced`, ascending, each once; returns how many. `out` has room for `count`.
std::int64_t retired(const std::int32_t* owned, std::int64_t owned_count, const std::int32_t* referenced,
                     std::int64_t referenced_count, std::int64_t blocks, std::int32_t* out, std::int64_t room, Run run);

}  // namespace kvsweep
