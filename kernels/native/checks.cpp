#include "checks.hpp"

#include <algorithm>
#include <memory>
#include <string>

#include "target.hpp"

namespace kvsweep {
namespace {

BODY Bounds bounds_body(const std::int32_t* ids, std::int64_t count) {
    std::int32_t least = ids[0], most = ids[0];
    for (std::int64_t at = 0; at < count; ++at) {
        const std::int32_t id = ids[at];
        least = id < least ? id : least;
        most = id > most ? id : most;
    }
    return {least, most};
}

BODY bool ascending_body(const std::int32_t* ids, std::int64_t count) {
    std::int32_t falls = 0;
    for (std::int64_t at = 1; at < count; ++at) {
        falls |= ids[at] <= ids[at - 1];
    }
    return falls == 0;
}

#if KVSWEEP_X86
AVX512 Bounds bounds_avx512(const std::int32_t* ids, std::int64_t count) { return bounds_body(ids, count); }
AVX2 Bounds bounds_avx2(const std::int32_t* ids, std::int64_t count) { return bounds_body(ids, count); }
AVX512 bool ascending_avx512(const std::int32_t* ids, std::int64_t count) { return ascending_body(ids, count); }
AVX2 bool ascending_avx2(const std::int32_t* ids, std::int64_t count) { return ascending_body(ids, count); }
#endif

[[noreturn]] void refuse(const char* argument, const char* expected) {
    throw Refused(std::string(argument) + ": expected " + expected);
}

}  // namespace

Isa best_isa() {
#if KVSWEEP_X86
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512vbmi2")) {
        return Isa::avx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")) {
        return Isa::avx2;
    }
#endif
    return Isa::scalar;
}

Bounds bounds(const std::int32_t* ids, std::int64_t count, Isa isa) {
    if (count == 0) {
        return {0, -1};
    }
#if KVSWEEP_X86
    if (isa == Isa::avx512) {
        return bounds_avx512(ids, count);
    }
    if (isa == Isa::avx2) {
        return bounds_avx2(ids, count);
    }
#endif
    (void)isa;
    return bounds_body(ids, count);
}

bool ascending(const std::int32_t* ids, std::int64_t count, Isa isa) {
#if KVSWEEP_X86
    if (isa == Isa::avx512) {
        return ascending_avx512(ids, count);
    }
    if (isa == Isa::avx2) {
        return ascending_avx2(ids, count);
    }
#endif
    (void)isa;
    return ascending_body(ids, count);
}

void check_rows(const char* argument, const Rows& rows) {
    if (rows.row_ptr[0] != 0) {
        refuse(argument, "row pointers that start at 0");
    }
    for (std::int64_t row = 0; row < rows.rows; ++row) {
        if (rows.row_ptr[row + 1] < rows.row_ptr[row]) {
            refuse(argument, "row pointers that never fall");
        }
    }
    if (rows.row_ptr[rows.rows] != rows.count) {
        refuse(argument, "row pointers that end at the number of ids");
    }
}

void check_layers(const Pool& pool, std::int64_t rows) {
    std::int64_t before = -1;
    for (std::int64_t row = 0; row < rows; ++row) {
        if (pool.layer_of_row[row] <= before || pool.layer_of_row[row] >= pool.layers) {
            refuse("layers", "ascending layers of the pool, each once");
        }
        before = pool.layer_of_row[row];
    }
}

void check_ids(const char* argument, const Rows& rows, std::int32_t least, std::int64_t limit, Run run) {
    const Bounds found = bounds(rows.ids, rows.count, run.isa);
    if (rows.count && (found.least < least || found.most >= limit)) {
        refuse(argument, "ids inside their range");
    }
}

void check_unique(const char* argument, const Rows& rows, std::int64_t limit) {
    std::uint8_t* seen = nullptr;
    for (std::int64_t row = 0; row < rows.rows; ++row) {
        const std::int32_t* ids = rows.row(row);
        const std::int64_t size = rows.size(row);
        if (ascending_body(ids, size)) {
            continue;
        }
        seen = seen ? seen : marks(limit);
        bool twice = false;
        for (std::int64_t at = 0; at < size; ++at) {
            twice |= seen[ids[at]];
            seen[ids[at]] = 1;
        }
        for (std::int64_t at = 0; at < size; ++at) {
            seen[ids[at]] = 0;
        }
        if (twice) {
            refuse(argument, "each id once in a row");
        }
    }
}

void check_apart(const char* argument, const Rows& rows, const std::int32_t* others, std::int64_t limit) {
    std::uint8_t* seen = marks(limit);
    for (std::int64_t row = 0; row < rows.rows; ++row) {
        const std::int64_t begin = rows.begin(row), end = begin + rows.size(row);
        bool both = false;
        for (std::int64_t at = begin; at < end; ++at) {
            seen[others[at]] = 1;
        }
        for (std::int64_t at = begin; at < end; ++at) {
            both |= seen[rows.ids[at]];
        }
        for (std::int64_t at = begin; at < end; ++at) {
            seen[others[at]] = 0;
        }
        if (both) {
            refuse(argument, "no source of its row");
        }
    }
}

std::int64_t row_holding(const Rows& rows, std::int64_t item) {
    const std::int32_t* end = rows.row_ptr + rows.rows + 1;
    return std::upper_bound(rows.row_ptr, end, static_cast<std::int32_t>(item)) - rows.row_ptr - 1;
}

std::uint8_t* marks(std::int64_t limit) {
    thread_local std::unique_ptr<std::uint8_t[]> bytes;
    thread_local std::int64_t room = -1;
    if (limit > room) {
        bytes.reset();
        room = -1;
        bytes = std::make_unique<std::uint8_t[]>(static_cast<std::size_t>(limit));
        room = limit;
    }
    return bytes.get();
}

std::uint64_t* words(int slot, std::int64_t count) {
    struct Buffer {
        std::unique_ptr<std::uint64_t[]> data;
        std::int64_t room = -1;
    };
    thread_local Buffer buffers[4];
    Buffer& buffer = buffers[slot];
    if (count > buffer.room) {
        buffer.data.reset();
        buffer.room = -1;
        buffer.data = std::make_unique_for_overwrite<std::uint64_t[]>(static_cast<std::size_t>(count));
        buffer.room = count;
    }
    return buffer.data.get();
}

}  // namespace kvsweep
