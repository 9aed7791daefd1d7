// Retention: tables of kept slots, which rows are equal, and which blocks nobody reads any more.
#include <algorithm>
#include <cstring>
#include <vector>

#include "checks.hpp"
#include "core.hpp"
#include "sets.hpp"
#include "target.hpp"

namespace kvsweep {
namespace {

// A number that equal rows share; rows that share it are compared.
BODY std::uint64_t digest_body(const std::int32_t* ids, std::int64_t size) {
    constexpr int lanes = 64;
    std::uint32_t state[lanes];
    for (int lane = 0; lane < lanes; ++lane) {
        state[lane] = 0x9E3779B9u * static_cast<std::uint32_t>(lane + 1);
    }
    std::int64_t at = 0;
    for (; at + lanes <= size; at += lanes) {
        for (int lane = 0; lane < lanes; ++lane) {
            const std::uint32_t mixed = (state[lane] ^ static_cast<std::uint32_t>(ids[at + lane])) * 0x85EBCA6Bu;
            state[lane] = mixed ^ (mixed >> 15);
        }
    }
    std::uint64_t all = static_cast<std::uint64_t>(size);
    for (; at < size; ++at) {
        all = (all ^ static_cast<std::uint32_t>(ids[at])) * 0x9E3779B97F4A7C15ULL;
    }
    for (const std::uint32_t lane : state) {
        all = (all ^ lane) * 0x9E3779B97F4A7C15ULL;
        all ^= all >> 29;
    }
    return all;
}

#if KVSWEEP_X86
AVX512 std::uint64_t digest_avx512(const std::int32_t* ids, std::int64_t size) { return digest_body(ids, size); }
AVX2 std::uint64_t digest_avx2(const std::int32_t* ids, std::int64_t size) { return digest_body(ids, size); }
#endif

std::uint64_t digest(const std::int32_t* ids, std::int64_t size, Isa isa) {
#if KVSWEEP_X86
    if (isa == Isa::avx512) {
        return digest_avx512(ids, size);
    }
    if (isa == Isa::avx2) {
        return digest_avx2(ids, size);
    }
#endif
    (void)isa;
    return digest_body(ids, size);
}

bool same(const Rows& rows, std::int64_t one, std::int64_t other) {
    return rows.size(one) == rows.size(other) &&
           (rows.size(one) == 0 ||
            std::memcmp(rows.row(one), rows.row(other), static_cast<std::size_t>(rows.size(one)) * 4) == 0);
}

// Looks up one row; false where a slot is outside, out of order or empty.
BODY bool remap_body(const std::int32_t* table, std::int64_t slots, const std::int32_t* keep, std::int64_t size,
                     std::int32_t* out) {
    if (size == 0) {
        return true;
    }
    std::int32_t falls = 0;
    for (std::int64_t at = 1; at < size; ++at) {
        falls |= keep[at] <= keep[at - 1];
    }
    if (falls || keep[0] < 0 || keep[size - 1] >= slots) {
        return false;
    }
    std::int32_t signs = 0;
    for (std::int64_t at = 0; at < size; ++at) {
        const std::int32_t block = table[keep[at]];
        out[at] = block;
        signs |= block;
    }
    return signs >= 0;
}

using Remap = bool (*)(const std::int32_t*, std::int64_t, const std::int32_t*, std::int64_t, std::int32_t*);

bool remap_scalar(const std::int32_t* t, std::int64_t s, const std::int32_t* k, std::int64_t n, std::int32_t* o) {
    return remap_body(t, s, k, n, o);
}

#if KVSWEEP_X86
AVX512 bool remap_avx512(const std::int32_t* t, std::int64_t s, const std::int32_t* k, std::int64_t n,
                         std::int32_t* o) {
    return remap_body(t, s, k, n, o);
}
AVX2 bool remap_avx2(const std::int32_t* t, std::int64_t s, const std::int32_t* k, std::int64_t n, std::int32_t* o) {
    return remap_body(t, s, k, n, o);
}
#endif

}  // namespace

void remap_rows(const Rows& physical, const Rows& keep, std::int32_t* out, Run run) {
    check_rows("physical.row_ptr", physical);
    check_rows("keep.row_ptr", keep);
    if (keep.rows != physical.rows) {
        throw Refused("keep: expected as many rows as physical");
    }
    Remap remap = remap_scalar;
#if KVSWEEP_X86
    remap = run.isa == Isa::avx512 ? remap_avx512 : run.isa == Isa::avx2 ? remap_avx2 : remap_scalar;
#else
    (void)run;
#endif
    for (std::int64_t row = 0; row < keep.rows; ++row) {
        const std::int64_t size = keep.size(row);
        if (!remap(physical.row(row), physical.size(row), keep.row(row), size, out + keep.begin(row))) {
            throw Refused("keep.ids: expected ascending slots of the row, each of which holds a block");
        }
    }
}

void row_classes(const Rows& rows, std::int32_t* out, Run run) {
    check_rows("row_ptr", rows);
    // Open addressing over the first row of each class, at most half full.
    std::size_t places = 4;
    while (places < 2 * static_cast<std::size_t>(rows.rows)) {
        places *= 2;
    }
    struct First {
        std::uint64_t digest;
        std::int32_t row;
    };
    std::vector<First> table(places, First{0, -1});
    std::int32_t last = -1;  // neighbours are often equal: one comparison, no digest
    for (std::int64_t row = 0; row < rows.rows; ++row) {
        if (last >= 0 && same(rows, row, last)) {
            out[row] = last;
            continue;
        }
        const std::uint64_t mine = digest(rows.row(row), rows.size(row), run.isa);
        std::size_t place = mine & (places - 1);
        while (table[place].row >= 0 && (table[place].digest != mine || !same(rows, row, table[place].row))) {
            place = (place + 1) & (places - 1);
        }
        if (table[place].row < 0) {
            table[place] = {mine, static_cast<std::int32_t>(row)};
        }
        last = out[row] = table[place].row;
    }
}

std::int64_t retired(const std::int32_t* owned, std::int64_t owned_count, const std::int32_t* referenced,
                     std::int64_t referenced_count, std::int64_t blocks, std::int32_t* out, std::int64_t room,
                     Run run) {
    const Bounds mine = bounds(owned, owned_count, run.isa);
    const Bounds theirs = bounds(referenced, referenced_count, run.isa);
    if (owned_count && (mine.least < 0 || mine.most >= blocks)) {
        throw Refused("owned: expected blocks of the pool");
    }
    if (referenced_count && (theirs.least < 0 || theirs.most >= blocks)) {
        throw Refused("referenced: expected blocks of the pool");
    }
    const std::int64_t count = (std::int64_t{mine.most > theirs.most ? mine.most : theirs.most} + 64) / 64;
    std::uint64_t* left = words(0, count);
    std::fill_n(left, count, std::uint64_t{0});
    set_bits(owned, owned_count, left);
    clear_bits(referenced, referenced_count, left);
    return set_ops(run.isa).emit(left, count, out, room);
}

}  // namespace kvsweep
