// The best k of each row by (-score, id), -0.0 equal to +0.0.
//
// A sample says what score the k-th best has, roughly; one pass checks that every score is finite and sets a bit for
// what is at least that good, which leaves some more than k survivors in id order. A bisection over their keys finds
// the exact bound; ties at the bound go to the lower ids. Only what is chosen is sorted, by radix.
#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <utility>
#include <vector>

#include "core.hpp"
#include "parallel.hpp"
#include "sets.hpp"
#include "topk.hpp"

namespace kvsweep {
namespace {

constexpr std::int64_t kSample = 512;
constexpr std::int64_t kSampleFrom = 4096;       // shorter rows: everything survives
constexpr std::int64_t kLeastOfThread = 1 << 17; // scores

// What one thread works in.
class Selector {
  public:
    Selector(std::int64_t n, std::int64_t k, Emit emit, Isa isa)
        : n_(n),
          k_(k),
          emit_(emit),
          ops_(rank_ops(isa)),
          sets_(set_ops(isa)),
          bits_(static_cast<std::size_t>((n + 63) / 64)),
          keys_(padded(n)),
          ids_(padded(n)),
          sorted_keys_(emit == Emit::best_first ? padded(k) : 0),
          sorted_ids_(emit == Emit::best_first ? padded(k) : 0),
          sample_(n >= kSampleFrom ? padded(kSample) : 0) {}

    // False for a score that is not finite.
    bool row(const float* scores, std::int32_t* out) {
        if (!ops_.reach(scores, n_, sampled_bound(scores), bits_.data())) {
            return false;
        }
        const auto count = static_cast<std::int64_t>(bits_.size());
        std::int64_t found = sets_.count(bits_.data(), count);
        if (found < k_) {  // the sample was not like the row
            ops_.reach(scores, n_, -std::numeric_limits<float>::infinity(), bits_.data());
            found = n_;
        }
        sets_.emit(bits_.data(), count, ids_.data(), n_);
        if (found > k_ || emit_ == Emit::best_first) {
            ops_.keys(scores, ids_.data(), found, keys_.data());
        }
        if (found > k_) {
            keep_best(found);
        }
        if (emit_ == Emit::ascending) {
            std::copy_n(ids_.data(), k_, out);
        } else {
            sort(out);
        }
        return true;
    }

  private:
    static std::size_t padded(std::int64_t count) { return static_cast<std::size_t>(count) + 16; }

    float sampled_bound(const float* scores) {
        if (sample_.empty() || k_ > n_ / 2) {
            return -std::numeric_limits<float>::infinity();
        }
        // Four neighbours at each place: they share a line of the cache, and reaching it is what costs.
        const std::int64_t step = n_ / (kSample / 4);
        for (std::int64_t at = 0; at < kSample; ++at) {
            sample_[static_cast<std::size_t>(at)] = key_of(scores[at / 4 * step + at % 4]);
        }
        // Four standard deviations above the expected rank, so that fewer than k survive once in many thousand rows.
        const double expected = static_cast<double>(k_) * kSample / static_cast<double>(n_);
        const std::int64_t rank = static_cast<std::int64_t>(expected + 4.0 * __builtin_sqrt(expected) + 4.0);
        const std::uint32_t bound = bound_of(sample_.data(), kSample, std::min(rank, kSample), rank / 8);
        return score_of(bound);
    }

    // A key that at least `rank` and at most rank + slack of the keys reach, or the exact bound where ties forbid it.
    std::uint32_t bound_of(const std::uint32_t* keys, std::int64_t count, std::int64_t rank, std::int64_t slack) const {
        std::uint32_t low = 0, high = 0;  // low is reached by enough keys, what is above high by too few
        ops_.range(keys, count, &low, &high);
        while (low < high) {
            const std::uint32_t middle = low + (high - low) / 2 + 1;
            const std::int64_t reached = ops_.count_from(keys, count, middle);
            if (reached >= rank) {
                low = middle;
                if (reached <= rank + slack) {
                    break;
                }
            } else {
                high = middle - 1;
            }
        }
        return low;
    }

    // Leaves the k best of the first `found` survivors, still in id order.
    void keep_best(std::int64_t found) {
        if (k_ == 0) {
            return;
        }
        const std::uint32_t bound = bound_of(keys_.data(), found, k_, 0);
        const std::int64_t over = ops_.count_from(keys_.data(), found, bound) - k_;
        ops_.keep(keys_.data(), ids_.data(), found, bound);
        const std::int64_t left = k_ + over;
        if (over == 0) {
            return;
        }
        // Ties at the bound: the lower ids stay. No key is the largest number, so bound + 1 is one too.
        std::int64_t ties = k_ - ops_.count_from(keys_.data(), left, bound + 1);
        std::int64_t kept = 0;
        for (std::int64_t at = 0; at < left; ++at) {
            const auto from = static_cast<std::size_t>(at), to = static_cast<std::size_t>(kept);
            const bool tie = keys_[from] == bound;
            keys_[to] = keys_[from];
            ids_[to] = ids_[from];
            kept += !tie || ties > 0;
            ties -= tie;
        }
    }

    // The first k survivors by falling key. Stable, so equal keys stay in id order.
    void sort(std::int32_t* out) {
        if (k_ == 0) {
            return;
        }
        std::uint32_t low = 0, high = 0;
        ops_.range(keys_.data(), k_, &low, &high);
        const int bits = std::bit_width(high - low);
        const int widest = k_ < 2048 ? 8 : 11;
        const int passes = std::max(1, (bits + widest - 1) / widest);
        const int width = (bits + passes - 1) / passes;
        const std::uint32_t mask = (1u << width) - 1;
        std::uint32_t places[4][2048];
        for (int pass = 0; pass < passes; ++pass) {
            std::fill_n(places[pass], mask + 1, 0u);
        }
        for (std::int64_t at = 0; at < k_; ++at) {
            const std::uint32_t key = high - keys_[static_cast<std::size_t>(at)];  // best first is ascending now
            keys_[static_cast<std::size_t>(at)] = key;
            for (int pass = 0; pass < passes; ++pass) {
                ++places[pass][key >> (pass * width) & mask];
            }
        }
        std::uint32_t *keys = keys_.data(), *next_keys = sorted_keys_.data();
        std::int32_t *ids = ids_.data(), *next_ids = sorted_ids_.data();
        for (int pass = 0; pass < passes; ++pass) {
            std::uint32_t before = 0;
            for (std::uint32_t digit = 0; digit <= mask; ++digit) {
                before += std::exchange(places[pass][digit], before);
            }
            std::int32_t* to_ids = pass + 1 == passes ? out : next_ids;
            for (std::int64_t at = 0; at < k_; ++at) {
                const std::uint32_t place = places[pass][keys[at] >> (pass * width) & mask]++;
                next_keys[place] = keys[at];
                to_ids[place] = ids[at];
            }
            std::swap(keys, next_keys);
            std::swap(ids, next_ids);
        }
    }

    std::int64_t n_, k_;
    Emit emit_;
    const RankOps& ops_;
    const SetOps& sets_;
    std::vector<std::uint64_t> bits_;
    std::vector<std::uint32_t> keys_;
    std::vector<std::int32_t> ids_;
    std::vector<std::uint32_t> sorted_keys_;
    std::vector<std::int32_t> sorted_ids_;
    std::vector<std::uint32_t> sample_;
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
