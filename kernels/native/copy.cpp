// Whole blocks of bytes from place to place, and the limits of a copy.
//
// Several blocks are copied side by side, a step of each in turn: one block after another leaves the processor one
// stream of reads to fetch ahead, and a page boundary stops it. Where the next blocks start is known long before, so
// their first bytes are asked for while these are copied. Large results are written past the caches, which
// saves reading every line before it is overwritten.
#include <cstring>
#include <utility>

#include "checks.hpp"
#include "core.hpp"
#include "parallel.hpp"
#include "target.hpp"

namespace kvsweep {
namespace {

constexpr int kLanes = 8;                      // blocks copied side by side
constexpr std::int64_t kStep = 256;            // bytes of each block in turn
constexpr std::int64_t kStreamFrom = 4 << 20;  // bytes of a call's result from which the caches are bypassed
constexpr std::int64_t kAhead = 16384;         // bytes of a coming block that are asked for
constexpr std::int64_t kLeastOfThread = 1 << 20;

struct Lane {
    const std::uint8_t* from;
    std::uint8_t* to;
    const std::uint8_t* ahead;  // what will be read later: of the next lanes, or `from` again
};

using CopyLanes = void (*)(const Lane* lanes, int count, std::int64_t bytes);

void copy_plain(const Lane* lanes, int count, std::int64_t bytes) {
    for (int lane = 0; lane < count; ++lane) {
        std::memcpy(lanes[lane].to, lanes[lane].from, static_cast<std::size_t>(bytes));
    }
}

#if KVSWEEP_X86

// Bytes from `to` up to the next multiple of 64.
std::int64_t head_of(const std::uint8_t* to) {
    return static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(to) & 63);
}

// Lanes whose destinations lie equally far from a multiple of 64; bytes >= 64.
AVX512 void stream_lanes_avx512(const Lane* lanes, int count, std::int64_t bytes) {
    const std::int64_t head = head_of(lanes[0].to);
    for (int lane = 0; lane < count && head; ++lane) {
        _mm512_storeu_si512(lanes[lane].to, _mm512_loadu_si512(lanes[lane].from));
    }
    std::int64_t at = head;
    for (; at + kStep <= bytes; at += kStep) {
        for (int lane = 0; lane < count; ++lane) {
            const std::uint8_t* from = lanes[lane].from + at;
            std::uint8_t* to = lanes[lane].to + at;
            const std::uint8_t* ahead = lanes[lane].ahead + at;
            for (int line = 0; line < kStep / 64 && at < kAhead; ++line) {
                _mm_prefetch(ahead + 64 * line, _MM_HINT_T1);
            }
            for (int line = 0; line < kStep / 64; ++line) {
                _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 64 * line), _mm512_loadu_si512(from + 64 * line));
            }
        }
    }
    for (int lane = 0; lane < count; ++lane) {
        const std::uint8_t* from = lanes[lane].from;
        std::uint8_t* to = lanes[lane].to;
        std::int64_t line = at;
        for (; line + 64 <= bytes; line += 64) {
            _mm512_stream_si512(reinterpret_cast<__m512i*>(to + line), _mm512_loadu_si512(from + line));
        }
        if (line < bytes) {
            _mm512_storeu_si512(to + bytes - 64, _mm512_loadu_si512(from + bytes - 64));
        }
    }
}

AVX2 void stream_lanes_avx2(const Lane* lanes, int count, std::int64_t bytes) {
    const auto line_over = [](const Lane& lane, std::int64_t at) __attribute__((target("avx2"))) {
        const auto* from = reinterpret_cast<const __m256i*>(lane.from + at);
        auto* to = reinterpret_cast<__m256i*>(lane.to + at);
        const __m256i low = _mm256_loadu_si256(from), high = _mm256_loadu_si256(from + 1);
        _mm256_storeu_si256(to, low);
        _mm256_storeu_si256(to + 1, high);
    };
    const std::int64_t head = head_of(lanes[0].to);
    for (int lane = 0; lane < count && head; ++lane) {
        line_over(lanes[lane], 0);
    }
    std::int64_t at = head;
    for (; at + 64 <= bytes;) {
        const std::int64_t stop = at + kStep <= bytes ? at + kStep : at + (bytes - at) / 64 * 64;
        for (int lane = 0; lane < count; ++lane) {
            for (std::int64_t half = at; half < stop; half += 32) {
                _mm256_stream_si256(reinterpret_cast<__m256i*>(lanes[lane].to + half),
                                    _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes[lane].from + half)));
            }
        }
        at = stop;
    }
    for (int lane = 0; lane < count && at < bytes; ++lane) {
        line_over(lanes[lane], bytes - 64);
    }
}

template <CopyLanes aligned>
void copy_stream(const Lane* lanes, int count, std::int64_t bytes) {
    if (bytes < 64) {
        copy_plain(lanes, count, bytes);
        return;
    }
    bool alike = true;
    for (int lane = 1; lane < count; ++lane) {
        alike = alike && head_of(lanes[lane].to) == head_of(lanes[0].to);
    }
    for (int lane = 0; lane < count; lane += alike ? count : 1) {
        aligned(lanes + lane, alike ? count : 1, bytes);
    }
}

AVX512 std::uint64_t read_avx512(const std::uint8_t* from, std::int64_t bytes) {
    __m512i sum[4] = {};
    std::int64_t at = 0;
    for (; at + 256 <= bytes; at += 256) {
        for (int lane = 0; lane < 4; ++lane) {
            sum[lane] = _mm512_add_epi64(sum[lane], _mm512_loadu_si512(from + at + 64 * lane));
        }
    }
    for (; at + 64 <= bytes; at += 64) {
        sum[0] = _mm512_add_epi64(sum[0], _mm512_loadu_si512(from + at));
    }
    if (at < bytes) {
        const __mmask64 rest = _bzhi_u64(~0ULL, static_cast<unsigned>(bytes - at));
        sum[0] = _mm512_add_epi64(sum[0], _mm512_maskz_loadu_epi8(rest, from + at));
    }
    const __m512i all = _mm512_add_epi64(_mm512_add_epi64(sum[0], sum[1]), _mm512_add_epi64(sum[2], sum[3]));
    return static_cast<std::uint64_t>(_mm512_reduce_add_epi64(all));
}

#endif

std::uint64_t read_words(const std::uint8_t* from, std::int64_t bytes) {
    std::uint64_t sum = 0;
    for (std::int64_t at = 0; at < bytes; at += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, from + at, static_cast<std::size_t>(bytes - at < 8 ? bytes - at : 8));
        sum += word;
    }
    return sum;
}

CopyLanes copier(Isa isa, std::int64_t total_bytes) {
#if KVSWEEP_X86
    if (total_bytes >= kStreamFrom && isa == Isa::avx512) {
        return copy_stream<stream_lanes_avx512>;
    }
    if (total_bytes >= kStreamFrom && isa == Isa::avx2) {
        return copy_stream<stream_lanes_avx2>;
    }
#else
    (void)isa, (void)total_bytes;
#endif
    return copy_plain;
}

void finish_stores() {
#if KVSWEEP_X86
    _mm_sfence();  // stores past the caches are seen by nobody in order until this
#endif
}

// Copies item i of [0, count) as lane_of(row, i) says; row is the one whose range of row_ptr holds i.
template <class LaneOf>
void copy_items(const Rows& rows, std::int64_t bytes, Run run, const LaneOf& lane_of) {
    if (bytes == 0) {
        return;
    }
    const CopyLanes copy = copier(run.isa, rows.count * bytes);
    split(rows.count, run.threads, kLeastOfThread / bytes + 1, [&](std::int64_t begin, std::int64_t end) {
        Lane groups[2][kLanes];
        std::int64_t row = row_holding(rows, begin);
        const auto fill = [&](Lane* lanes, std::int64_t from) {
            int filled = 0;
            for (std::int64_t item = from; item < end && filled < kLanes; ++item) {
                while (item >= rows.row_ptr[row + 1]) {
                    ++row;
                }
                lanes[filled++] = lane_of(row, item);
            }
            return filled;
        };
        Lane *now = groups[0], *next = groups[1];
        int filled = fill(now, begin);
        for (std::int64_t item = begin; filled; item += kLanes) {
            const int following = fill(next, item + kLanes);
            for (int lane = 0; lane < filled; ++lane) {
                now[lane].ahead = lane < following ? next[lane].from : now[lane].from;
            }
            copy(now, filled, bytes);
            std::swap(now, next);
            filled = following;
        }
        finish_stores();
    });
}

}  // namespace

void gather(const Pool& pool, const Rows& source, std::uint8_t* out, Run run) {
    check_layers(pool, source.rows);
    check_ids("source", source, 0, pool.blocks, run);
    copy_items(source, pool.block_bytes, run, [&](std::int64_t row, std::int64_t item) {
        return Lane{pool.area(row, source.ids[item]), out + item * pool.block_bytes, nullptr};
    });
}

void scatter(const std::uint8_t* staging, const Pool& pool, const Rows& destination, Run run) {
    check_layers(pool, destination.rows);
    check_ids("destination", destination, 0, pool.blocks, run);
    check_unique("destination", destination, pool.blocks);
    copy_items(destination, pool.block_bytes, run, [&](std::int64_t row, std::int64_t item) {
        return Lane{staging + item * pool.block_bytes, pool.area(row, destination.ids[item]), nullptr};
    });
}

void move(const Pool& pool, const Rows& source, const std::int32_t* destination, Run run) {
    check_layers(pool, source.rows);
    check_ids("source", source, 0, pool.blocks, run);
    const Rows to{source.row_ptr, destination, source.rows, source.count};
    check_ids("destination", to, 0, pool.blocks, run);
    check_unique("destination", to, pool.blocks);
    check_apart("destination", to, source.ids, pool.blocks);
    copy_items(source, pool.block_bytes, run, [&](std::int64_t row, std::int64_t item) {
        return Lane{pool.area(row, source.ids[item]), pool.area(row, destination[item]), nullptr};
    });
}

void stream_copy(const std::uint8_t* from, std::uint8_t* to, std::int64_t bytes, Run run) {
    const Lane lane{from, to, from};
    copier(run.isa, kStreamFrom)(&lane, 1, bytes);
    finish_stores();
}

std::uint64_t read_all(const std::uint8_t* from, std::int64_t bytes, Run run) {
#if KVSWEEP_X86
    if (run.isa == Isa::avx512) {
        return read_avx512(from, bytes);
    }
#else
    (void)run;
#endif
    return read_words(from, bytes);
}

}  // namespace kvsweep
