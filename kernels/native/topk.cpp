// The best k of each row by (-score, id), -0.0 equal to +0.0.
//
// A sample says what score the k-th best has, roughly; one pass checks that every score is finite and collects what is
// at least that good, some more than k survivors in id order. A search over their keys finds the exact bound; ties at
// the bound go to the lower ids. Only what is chosen is sorted, by radix.
#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <utility>

#include "checks.hpp"
#include "core.hpp"
#include "parallel.hpp"
#include "topk.hpp"

namespace kvsweep {
namespace {

constexpr std::int64_t kSample = 512;
constexpr std::int64_t kSampleFrom = 4096;        // shorter rows: everything survives
constexpr std::int64_t kLeastOfThread = 1 << 17;  // scores
constexpr int kDigit = 9;                         // bits a pass of the sort
constexpr std::uint64_t kDigitMask = (1 << kDigit) - 1;

// What one thread works in.
class Selector {
  public:
    Selector(std::int64_t n, std::int64_t k, Emit emit, Isa isa)
        : n_(n),
          k_(k),
          emit_(emit),
          ops_(rank_ops(isa)),
          keys_(reinterpret_cast<std::uint32_t*>(words(0, n / 2 + 16))),
          ids_(reinterpret_cast<std::int32_t*>(words(1, n / 2 + 16))),
          pairs_(words(2, emit == Emit::best_first ? k : 0)),  // key, then id
          sorted_(words(3, emit == Emit::best_first ? k : 0)) {}

    // False for a score that is not finite.
    bool row(const float* scores, std::int32_t* out) {
        std::int64_t found = ops_.collect(scores, n_, sampled_bound(scores), keys_, ids_);
        if (found < 0) {
            return false;
        }
        if (found < k_) {  // the sample was not like the row
            found = ops_.collect(scores, n_, -std::numeric_limits<float>::infinity(), keys_, ids_);
        }
        if (found > k_) {
            keep_best(found);
        }
        if (emit_ == Emit::ascending) {
            std::copy_n(ids_, k_, out);
        } else {
            sort(out);
        }
        return true;
    }

  private:
    float sampled_bound(const float* scores) {
        if (n_ < kSampleFrom || k_ > n_ / 2) {
            return -std::numeric_limits<float>::infinity();
        }
        // Four neighbours at each place: they share a line of the cache, and reaching it is what costs.
        const std::int64_t step = n_ / (kSample / 4);
        std::uint32_t sample[kSample];
        for (std::int64_t at = 0; at < kSample; ++at) {
            sample[at] = key_of(scores[at / 4 * step + at % 4]);
        }
        // Four standard deviations above the expected rank, so that fewer than k survive once in many thousand rows.
        const double expected = static_cast<double>(k_) * kSample / static_cast<double>(n_);
        const std::int64_t rank = static_cast<std::int64_t>(expected + 4.0 * __builtin_sqrt(expected) + 4.0);
        const std::uint32_t bound = bound_of(sample, kSample, std::min(rank, kSample), rank / 8);
        return score_of(bound);
    }

    // A key that at least `rank` and at most rank + slack of the keys reach, or the exact bound where ties forbid it.
    // Every second step is a guess by proportion, which is near at once where keys lie evenly; the others halve.
    std::uint32_t bound_of(const std::uint32_t* keys, std::int64_t count, std::int64_t rank, std::int64_t slack) const {
        std::uint32_t least = 0, most = 0;
        ops_.range(keys, count, &least, &most);
        std::int64_t low = least, high = std::int64_t{most} + 1;  // low is reached by enough keys, high by too few
        std::int64_t at_low = count, at_high = 0;
        for (bool halve = false; high - low > 1; halve = !halve) {
            const double part = static_cast<double>(at_low - rank) / static_cast<double>(at_low - at_high);
            const auto guess = static_cast<std::int64_t>(part * static_cast<double>(high - low));
            const std::int64_t step = halve ? (high - low) / 2 : std::clamp<std::int64_t>(guess, 1, high - low - 1);
            const std::int64_t reached = ops_.count_from(keys, count, static_cast<std::uint32_t>(low + step));
            if (reached >= rank) {
                low += step;
                at_low = reached;
                if (reached <= rank + slack) {
                    break;
                }
            } else {
                high = low + step;
                at_high = reached;
            }
        }
        return static_cast<std::uint32_t>(low);
    }

    // Leaves the k best of the first `found` survivors, still in id order.
    void keep_best(std::int64_t found) {
        if (k_ == 0) {
            return;
        }
        const std::uint32_t bound = bound_of(keys_, found, k_, 0);
        const std::int64_t over = ops_.count_from(keys_, found, bound) - k_;
        ops_.keep(keys_, ids_, found, bound);
        const std::int64_t left = k_ + over;
        if (over == 0) {
            return;
        }
        // Ties at the bound: the lower ids stay. No key is the largest number, so bound + 1 is one too.
        std::int64_t ties = k_ - ops_.count_from(keys_, left, bound + 1);
        std::int64_t kept = 0;
        for (std::int64_t at = 0; at < left; ++at) {
            const bool tie = keys_[at] == bound;
            keys_[kept] = keys_[at];
            ids_[kept] = ids_[at];
            kept += !tie || ties > 0;
            ties -= tie;
        }
    }

    // The first k survivors by falling key, equal keys in id order: two passes by radix over the leading digits of what
    // the keys differ in, then the few neighbours that these do not tell apart.
    void sort(std::int32_t* out) {
        if (k_ == 0) {
            return;
        }
        std::uint32_t low = 0, high = 0;
        ops_.range(keys_, k_, &low, &high);
        const int bits = std::bit_width(high - low);
        const int digits[] = {32 + std::max(0, bits - 2 * kDigit), 32 + std::max(0, bits - kDigit)};
        std::uint32_t places[2][1 << kDigit] = {};
        for (std::int64_t at = 0; at < k_; ++at) {
            // Key, then id: best first is ascending, and no two are equal.
            const std::uint64_t pair = std::uint64_t{high - keys_[at]} << 32 | static_cast<std::uint32_t>(ids_[at]);
            pairs_[at] = pair;
            ++places[0][pair >> digits[0] & kDigitMask];
            ++places[1][pair >> digits[1] & kDigitMask];
        }
        std::uint64_t *from = pairs_, *to = sorted_;
        for (int pass = bits > kDigit ? 0 : 1; pass < 2; ++pass) {
            std::uint32_t before = 0;
            for (std::uint32_t& place : places[pass]) {
                before += std::exchange(place, before);
            }
            for (std::int64_t at = 0; at < k_; ++at) {
                to[places[pass][from[at] >> digits[pass] & kDigitMask]++] = from[at];
            }
            std::swap(from, to);
        }
        finish(from);
        for (std::int64_t at = 0; at < k_; ++at) {
            out[at] = static_cast<std::int32_t>(from[at]);
        }
    }

    // Sorts what is nearly sorted, by insertion; scores made so that it is not are sorted by comparison.
    void finish(std::uint64_t* pairs) const {
        std::int64_t moves = 4 * k_;
        for (std::int64_t at = 1; at < k_; ++at) {
            const std::uint64_t pair = pairs[at];
            std::int64_t to = at;
            for (; to > 0 && pairs[to - 1] > pair; --to, --moves) {
                pairs[to] = pairs[to - 1];
            }
            pairs[to] = pair;
            if (moves < 0) {
                std::sort(pairs, pairs + k_);
                return;
            }
        }
    }

    std::int64_t n_, k_;
    Emit emit_;
    const RankOps& ops_;
    // This thread's scratch; keys and ids have room for 16 more than n.
    std::uint32_t* keys_;
    std::int32_t* ids_;
    std::uint64_t *pairs_, *sorted_;
};

}  // namespace

void select_top(const float* scores, std::int64_t rows, std::int64_t n, std::int64_t k, Emit emit, std::int32_t* out,
                Run run) {
    if (k < 0 || k > n) {
        throw Refused("k: expected between 0 and the length of a row");
    }
    std::atomic<bool> finite{true};
    split(rows, run.threads, kLeastOfThread / std::max<std::int64_t>(n, 1) + 1, [&](auto begin, auto end) {
        Selector selector(n, k, emit, run.isa);
        for (std::int64_t row = begin; row < end && finite; ++row) {
            if (!selector.row(scores + row * n, out + row * k)) {
                finite = false;
            }
        }
    });
    if (!finite) {
        throw Refused("scores: expected finite numbers");
    }
}

}  // namespace kvsweep
