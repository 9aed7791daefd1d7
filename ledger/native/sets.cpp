#include "sets.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvsweep {
namespace {

// One for all calls: each leaves it as it was, all zero.
thread_local std::vector<std::uint64_t> marks;

constexpr std::int64_t sparse = 64;  // a set of ids that spreads further than this times their number is sorted

std::pair<std::int32_t, std::int32_t> bounds(const std::vector<const Ids*>& parts) {
    std::int32_t low = INT32_MAX, high = INT32_MIN;
    for (const Ids* part : parts) {
        for (const std::int32_t id : *part) {
            low = std::min(low, id);
            high = std::max(high, id);
        }
    }
    return {low, high};
}

// The first row with an id that is not in [0, limit(row)), or -1. As unsigned, a negative id is above every limit.
template <class Limit>
std::int64_t first_from(const Ragged& rows, const Limit& limit) {
    for (std::int64_t row = 0; row < rows.rows(); ++row) {
        std::uint32_t most = 0;
        for (const std::int32_t* id = rows.begin(row); id != rows.end(row); ++id) {
            most = std::max(most, static_cast<std::uint32_t>(*id));
        }
        if (rows.count(row) && static_cast<std::int64_t>(most) >= static_cast<std::int64_t>(limit(row))) {
            return row;
        }
    }
    return -1;
}

}  // namespace

Marks::Marks(std::int64_t limit) : words_(marks), count_(static_cast<std::size_t>((limit + 63) / 64)) {
    if (words_.size() < count_) {
        words_.resize(count_);
    }
}

Marks::~Marks() { std::fill_n(words_.begin(), count_, 0); }

std::int64_t Marks::count() const {
    std::int64_t set = 0;
    for (std::size_t word = 0; word < count_; ++word) {
        set += std::popcount(words_[word]);
    }
    return set;
}

std::int64_t Marks::emit(std::int32_t low, std::int32_t* out) const {
    std::int32_t* next = out;
    for (std::size_t word = 0; word < count_; ++word) {
        for (std::uint64_t bits = words_[word]; bits; bits &= bits - 1) {
            *next++ = low + static_cast<std::int32_t>(64 * word) + std::countr_zero(bits);
        }
    }
    return next - out;
}

bool markable(const Ids& ids) {
    std::uint32_t most = 0;
    for (const std::int32_t id : ids) {
        most = std::max(most, static_cast<std::uint32_t>(id));  // a negative one is above every limit
    }
    return most < static_cast<std::uint32_t>(most_id);
}

std::int32_t largest(const Ids& ids) {
    std::int32_t most = -1;
    for (const std::int32_t id : ids) {
        most = std::max(most, id);
    }
    return most;
}

bool rows_fit(const Ids& layers, const Ids& ptr, const Ids& ids) {
    if (ptr.size() != layers.size() + 1 || ptr[0] != 0 || ptr[layers.size()] != ids.size()) {
        return false;
    }
    std::int32_t before = -1;
    for (std::int64_t row = 0; row < layers.size(); ++row) {
        if (layers[row] <= before || ptr[row + 1] < ptr[row]) {
            return false;
        }
        before = layers[row];
    }
    return true;
}

std::int64_t first_unsorted(const Ragged& rows) {
    for (std::int64_t row = 0; row < rows.rows(); ++row) {
        const std::int32_t *id = rows.begin(row), *end = rows.end(row);
        bool wrong = false;
        for (; id + 1 < end; ++id) {
            wrong |= id[1] <= id[0];
        }
        if (wrong) {
            return row;
        }
    }
    return -1;
}

std::int64_t first_outside(const Ragged& rows, std::int64_t limit) {
    return first_from(rows, [limit](std::int64_t) { return limit; });
}

std::int64_t first_beyond(const Ragged& rows, const Ids& ends) {
    return first_from(rows,
                      [&ends](std::int64_t row) { return static_cast<std::uint32_t>(ends[row + 1] - ends[row]); });
}

std::int64_t first_repeated(const Ragged& rows) {
    Marks seen(largest(rows.ids()) + 1);
    for (std::int64_t row = 0; row < rows.rows(); ++row) {
        bool twice = false;
        for (const std::int32_t* id = rows.begin(row); id != rows.end(row); ++id) {
            twice |= seen.set(*id);
        }
        if (twice) {
            return row;
        }
        seen.unset(rows.begin(row), rows.end(row));
    }
    return -1;
}

std::int64_t first_common(const Ragged& first, const Ragged& second) {
    Marks seen(std::max(largest(first.ids()), largest(second.ids())) + 1);
    for (std::int64_t row = 0; row < first.rows(); ++row) {
        for (const std::int32_t* id = first.begin(row); id != first.end(row); ++id) {
            seen.set(*id);
        }
        bool both = false;
        for (const std::int32_t* id = second.begin(row); id != second.end(row); ++id) {
            both |= seen.has(*id);
        }
        if (both) {
            return row;
        }
        seen.unset(first.begin(row), first.end(row));
    }
    return -1;
}

std::vector<std::int32_t> distinct(const std::vector<const Ids*>& parts) {
    std::int64_t count = 0;
    for (const Ids* part : parts) {
        count += part->size();
    }
    if (count == 0) {
        return {};
    }
    const auto [low, high] = bounds(parts);
    const std::int64_t range = static_cast<std::int64_t>(high) - low + 1;
    std::vector<std::int32_t> found(static_cast<std::size_t>(std::min(count, range)));
    if (range <= sparse * count) {
        Marks seen(range);
        for (const Ids* part : parts) {
            for (const std::int32_t id : *part) {
                seen.set(id - low);
            }
        }
        seen.emit(low, found.data());
        found.resize(static_cast<std::size_t>(seen.count()));
        return found;
    }
    found.clear();
    for (const Ids* part : parts) {
        found.insert(found.end(), part->begin(), part->end());
    }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
}

std::int64_t slots_of(const Ragged& rows, const Ragged& wanted, std::int32_t* ends, std::int32_t* slots) {
    Marks seen(std::max(largest(rows.ids()), largest(wanted.ids())) + 1);
    std::int32_t* next = slots;
    ends[0] = 0;
    for (std::int64_t row = 0; row < rows.rows(); ++row) {
        for (const std::int32_t* id = wanted.begin(row); id != wanted.end(row); ++id) {
            seen.set(*id);
        }
        const std::int32_t* id = rows.begin(row);
        for (std::int32_t slot = 0; id != rows.end(row); ++id, ++slot) {
            *next = slot;
            next += seen.has(*id);
        }
        ends[row + 1] = static_cast<std::int32_t>(next - slots);
        seen.unset(wanted.begin(row), wanted.end(row));
    }
    return next - slots;
}

void join(const Ragged& first, const Ragged& second, std::int32_t* ends, std::int32_t* ids) {
    ends[0] = 0;
    std::int32_t* next = ids;
    for (std::int64_t row = 0; row < first.rows(); ++row) {
        next = std::copy(first.begin(row), first.end(row), next);
        next = std::copy(second.begin(row), second.end(row), next);
        ends[row + 1] = static_cast<std::int32_t>(next - ids);
    }
}

bool look_up(const Ids& table, const Ids& ids, std::int32_t* found) {
    bool fine = true;
    for (const std::int32_t id : ids) {
        if (id < 0 || id >= table.size()) {
            return false;
        }
        *found = table[id];
        fine &= *found++ >= 0;
    }
    return fine;
}

bool take(const Ragged& rows, const Ragged& slots, std::int32_t* ids) {
    for (std::int64_t row = 0; row < slots.rows(); ++row) {
        const std::int32_t* from = rows.begin(row);
        const auto count = static_cast<std::uint32_t>(rows.count(row));
        for (const std::int32_t* slot = slots.begin(row); slot != slots.end(row); ++slot) {
            if (static_cast<std::uint32_t>(*slot) >= count) {
                return false;
            }
            *ids++ = from[*slot];
        }
    }
    return true;
}

}  // namespace kvsweep
