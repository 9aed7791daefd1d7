#include "areas.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace kvsweep {
namespace {

constexpr std::int32_t LAST_BLOCK = (1 << 24) - 1;  // of those that a table of places is made for

thread_local std::vector<std::int32_t> table;  // one for all calls: each leaves it as it was, all -1

// Where each block stands in a list.
class Places {
  public:
    Places(const std::int32_t* blocks, std::int64_t size) : blocks_(blocks), size_(size) {
        for (std::int64_t at = 0; at < size; ++at) {
            const std::int32_t block = blocks[at];
            if (block < 0 || block > LAST_BLOCK) {
                size_ = at;
                forget();
                Ids::refuse("blocks", "ids from 0 on, below 2^24");
            }
            if (static_cast<std::size_t>(block) >= table.size()) {
                table.resize(static_cast<std::size_t>(block) + 1, -1);
            }
            table[static_cast<std::size_t>(block)] = static_cast<std::int32_t>(at);
        }
    }
    Places(const Places&) = delete;
    Places& operator=(const Places&) = delete;
    ~Places() { forget(); }

    // To be asked in a loop that writes bytes, which might be anybody's: nothing of it is in memory then.
    struct Table {
        const std::int32_t* places;
        std::uint32_t size;
        std::int32_t of(std::int32_t block) const {
            const auto at = static_cast<std::uint32_t>(block);
            return at < size ? places[at] : -1;
        }
    };
    static Table whole() { return {table.data(), static_cast<std::uint32_t>(table.size())}; }

  private:
    void forget() {
        for (std::int64_t at = 0; at < size_; ++at) {
            table[static_cast<std::size_t>(blocks_[at])] = -1;
        }
    }

    const std::int32_t* blocks_;
    std::int64_t size_;
};

// The group's row of the n-th listed layer, or -1.
std::int64_t row_of(const Areas& areas, std::int64_t at) {
    const std::int32_t layer = areas.layers[at];
    if (layer < 0 || layer >= areas.row_of_layer.size()) {
        Ids::refuse("layers", "layers of the layout");
    }
    return areas.row_of_layer[layer];
}

// Calls change(held, place) for each area of a block that is there; false where that says so.
template <class Change>
bool each(Counts& counts, const Places::Table places, const Areas& areas, Place& where, Change change) {
    const auto width = static_cast<std::int64_t>(counts.blocks.size());
    for (std::int64_t at = 0; at < areas.ids.rows(); ++at) {
        const std::int64_t row = row_of(areas, at);
        if (row < 0) {
            continue;
        }
        std::uint8_t* const held = counts.held.data() + row * width;
        const std::int32_t* const end = areas.ids.end(at);
        for (const std::int32_t* id = areas.ids.begin(at); id != end; ++id) {
            if (!change(held, places.of(*id))) {
                where = {areas.layers[at], *id};
                return false;
            }
        }
    }
    return true;
}

// In how many rows each block has a holder.
std::vector<std::int32_t> fullness(const std::uint8_t* held, std::int64_t rows, std::size_t width) {
    std::vector<std::int32_t> full(width);
    for (std::int64_t row = 0; row < rows; ++row) {
        const std::uint8_t* one = held + row * static_cast<std::int64_t>(width);
        for (std::size_t at = 0; at < width; ++at) {
            full[at] += one[at] != 0;
        }
    }
    return full;
}

}  // namespace

std::int64_t rows_of(const Ids& row_of_layer) {
    std::int32_t last = -1;
    for (const std::int32_t row : row_of_layer) {
        if (row < -1 || row >= row_of_layer.size()) {
            Ids::refuse("row_of_layer", "rows of the group's layers, or -1");
        }
        last = std::max(last, row);
    }
    return last + 1;
}

bool open(Counts& counts, const Ids& blocks, const std::uint8_t* held, std::int64_t rows, const Ids& reserve,
          Place& at) {
    const auto width = static_cast<std::size_t>(blocks.size());
    counts.rows = rows;
    counts.blocks.assign(blocks.begin(), blocks.end());
    if (reserve.size() == 0) {
        counts.held.assign(held, held + width * static_cast<std::size_t>(rows));
        return true;
    }
    counts.blocks.insert(counts.blocks.end(), reserve.begin(), reserve.end());
    std::vector<std::size_t> order(counts.blocks.size());
    std::iota(order.begin(), order.end(), 0);
    const auto& unsorted = counts.blocks;
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return unsorted[a] < unsorted[b]; });
    std::vector<std::int32_t> sorted(order.size());
    for (std::size_t to = 0; to < order.size(); ++to) {
        sorted[to] = unsorted[order[to]];
        if (to > 0 && sorted[to] == sorted[to - 1]) {
            at = {-1, sorted[to]};
            return false;
        }
    }
    counts.blocks = std::move(sorted);
    counts.held.assign(order.size() * static_cast<std::size_t>(rows), 0);
    for (std::int64_t row = 0; row < rows; ++row) {
        const std::uint8_t* from = held + static_cast<std::size_t>(row) * width;
        std::uint8_t* into = counts.held.data() + static_cast<std::size_t>(row) * order.size();
        for (std::size_t to = 0; to < order.size(); ++to) {
            into[to] = order[to] < width ? from[order[to]] : 0;
        }
    }
    return true;
}

bool add(Counts& counts, const std::vector<Areas>& parts, Place& at) {
    const Places places(counts.blocks.data(), static_cast<std::int64_t>(counts.blocks.size()));
    for (const Areas& areas : parts) {
        if (!each(counts, Places::whole(), areas, at,
                  [](std::uint8_t* held, std::int32_t place) { return place < 0 || ++held[place] != 0; })) {
            return false;
        }
    }
    return true;
}

bool drop(Counts& counts, const std::vector<Areas>& parts, Place& at) {
    const Places places(counts.blocks.data(), static_cast<std::int64_t>(counts.blocks.size()));
    for (const Areas& areas : parts) {
        if (!each(counts, Places::whole(), areas, at,
                  [](std::uint8_t* held, std::int32_t place) { return place < 0 || held[place]-- != 0; })) {
            return false;
        }
    }
    return true;
}

bool fill(Counts& counts, const Areas& areas) {
    const Places places(counts.blocks.data(), static_cast<std::int64_t>(counts.blocks.size()));
    Place at;
    return each(counts, Places::whole(), areas, at,
                [](std::uint8_t* held, std::int32_t place) { return place >= 0 && held[place]++ == 0; });
}

bool all_held(const Counts& counts, const Ids& blocks) {
    for (const std::int32_t block : blocks) {
        const auto place = std::lower_bound(counts.blocks.begin(), counts.blocks.end(), block) - counts.blocks.begin();
        bool held = false;
        for (std::int64_t row = 0; row < counts.rows && !held; ++row) {
            held = counts.held[static_cast<std::size_t>(row) * counts.blocks.size() + static_cast<std::size_t>(place)];
        }
        if (!held) {
            return false;
        }
    }
    return true;
}

std::vector<std::int32_t> take_free(Counts& counts) {
    const std::size_t width = counts.blocks.size();
    std::vector<std::uint8_t> any(width);
    for (std::int64_t row = 0; row < counts.rows; ++row) {
        const std::uint8_t* held = counts.held.data() + static_cast<std::size_t>(row) * width;
        for (std::size_t at = 0; at < width; ++at) {
            any[at] |= held[at];
        }
    }
    std::vector<std::int32_t> gone;
    std::vector<std::size_t> left;
    for (std::size_t at = 0; at < width; ++at) {
        if (!any[at]) {
            gone.push_back(counts.blocks[at]);
        } else {
            left.push_back(at);
        }
    }
    if (gone.empty()) {
        return gone;
    }
    for (std::int64_t row = 0; row < counts.rows; ++row) {
        const std::uint8_t* from = counts.held.data() + static_cast<std::size_t>(row) * width;
        std::uint8_t* into = counts.held.data() + static_cast<std::size_t>(row) * left.size();  // never ahead of `from`
        for (std::size_t to = 0; to < left.size(); ++to) {
            into[to] = from[left[to]];
        }
    }
    for (std::size_t to = 0; to < left.size(); ++to) {
        counts.blocks[to] = counts.blocks[left[to]];
    }
    counts.blocks.resize(left.size());
    counts.held.resize(left.size() * static_cast<std::size_t>(counts.rows));
    return gone;
}

Fullest fullest(const Ids& blocks, const std::uint8_t* held, std::int64_t rows, const Areas& wanted) {
    const auto width = static_cast<std::size_t>(blocks.size());
    const std::vector<std::int32_t> full = fullness(held, rows, width);
    std::vector<std::int32_t> order(width);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&full](std::int32_t a, std::int32_t b) {
        return full[static_cast<std::size_t>(a)] > full[static_cast<std::size_t>(b)];
    });
    Fullest found;
    for (std::int64_t at = 0; at < wanted.ids.rows(); ++at) {
        const std::int64_t row = row_of(wanted, at);
        std::int64_t left = row < 0 ? 0 : wanted.ids.count(at);
        if (row >= 0) {
            const std::uint8_t* one = held + row * static_cast<std::int64_t>(width);
            found.vacant += std::count(one, one + width, 0);
            for (std::size_t next = 0; next < width && left > 0; ++next) {
                if (!one[order[next]]) {
                    found.blocks.push_back(blocks[order[next]]);
                    --left;
                }
            }
        }
        found.ptr.push_back(static_cast<std::int32_t>(found.blocks.size()));
        found.missing.push_back(static_cast<std::int32_t>(left));
        found.most = std::max(found.most, found.missing.back());
    }
    return found;
}

bool add_totals(const Ids& blocks, std::vector<std::uint32_t>& total, const Areas& areas, bool more) {
    const Places places(blocks.begin(), blocks.size());
    for (std::int64_t at = 0; at < areas.ids.rows(); ++at) {
        if (row_of(areas, at) < 0) {
            continue;
        }
        for (const std::int32_t* id = areas.ids.begin(at); id != areas.ids.end(at); ++id) {
            const std::int32_t place = Places::whole().of(*id);
            if (place >= 0 && (more ? ++total[static_cast<std::size_t>(place)] == 0
                                    : total[static_cast<std::size_t>(place)]-- == 0)) {
                return false;
            }
        }
    }
    return true;
}

std::int64_t mark(std::uint8_t* marks, std::int64_t size, const Ids& ids, bool value) {
    for (std::int64_t at = 0; at < ids.size(); ++at) {
        const std::int32_t block = ids[at];
        if (block < 0 || block >= size || marks[block] == static_cast<std::uint8_t>(value)) {
            for (std::int64_t back = 0; back < at; ++back) {
                marks[ids[back]] = !value;
            }
            return at;
        }
        marks[block] = value;
    }
    return -1;
}

bool count(std::uint16_t* counts, std::int64_t size, const Ids& more, const Ids& less,
           std::vector<std::int32_t>& gone) {
    std::int64_t added = 0, taken = 0;
    while (added < more.size() && more[added] >= 0 && more[added] < size && counts[more[added]] != UINT16_MAX) {
        ++counts[more[added++]];
    }
    if (added == more.size()) {
        while (taken < less.size() && less[taken] >= 0 && less[taken] < size && counts[less[taken]] != 0) {
            if (--counts[less[taken]] == 0) {
                gone.push_back(less[taken]);
            }
            ++taken;
        }
    }
    if (added == more.size() && taken == less.size()) {
        std::sort(gone.begin(), gone.end());
        return true;
    }
    while (taken > 0) {
        ++counts[less[--taken]];
    }
    while (added > 0) {
        --counts[more[--added]];
    }
    return false;
}

std::int64_t first_counted(const std::uint16_t* counts, std::int64_t size, const Ids& ids) {
    for (std::int64_t at = 0; at < ids.size(); ++at) {
        if (ids[at] < 0 || ids[at] >= size || counts[ids[at]] != 0) {
            return at;
        }
    }
    return -1;
}

}  // namespace kvsweep
