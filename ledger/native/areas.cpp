#include "areas.hpp"

#include <algorithm>
#include <numeric>

namespace kvsweep {
namespace {

// For all calls one: each leaves it as it was, all -1.
thread_local std::vector<std::int32_t> table;

// Where each block stands in a list, or in two of them, the second one's places behind those of the first.
class Places {
  public:
    explicit Places(std::initializer_list<const Ids*> lists) : lists_(lists) {
        std::int32_t at = 0;
        for (const Ids* list : lists_) {
            for (const std::int32_t block : *list) {
                if (block < 0) {
                    forget();
                    Ids::refuse("blocks", "ids from 0 on");
                }
                if (static_cast<std::size_t>(block) >= table.size()) {
                    table.resize(static_cast<std::size_t>(block) + 1, -1);
                }
                table[static_cast<std::size_t>(block)] = at++;
            }
        }
    }
    Places(const Places&) = delete;
    Places& operator=(const Places&) = delete;
    ~Places() { forget(); }

    std::int32_t of(std::int32_t block) const {
        return block < 0 || static_cast<std::size_t>(block) >= table.size() ? -1
                                                                             : table[static_cast<std::size_t>(block)];
    }

  private:
    void forget() {
        for (const Ids* list : lists_) {
            for (const std::int32_t block : *list) {
                if (block >= 0 && static_cast<std::size_t>(block) < table.size()) {
                    table[static_cast<std::size_t>(block)] = -1;
                }
            }
        }
    }

    std::vector<const Ids*> lists_;
};

// The group's row of the layer, or -1; a layer that is in no table is in no group.
std::int64_t row_of(const Areas& areas, std::int64_t at) {
    const std::int32_t layer = areas.layers[at];
    return layer < 0 || layer >= areas.layer_row.size() ? -1 : areas.layer_row[layer];
}

}  // namespace

void mark(const Held& held, const Ids& blocks, const Areas& areas) {
    const Places places{&blocks};
    for (std::int64_t at = 0; at < areas.ids.rows(); ++at) {
        const std::int64_t row = row_of(areas, at);
        if (row < 0) {
            continue;
        }
        std::uint8_t* marks = held.marks + row * held.blocks;
        for (const std::int32_t* id = areas.ids.begin(at); id != areas.ids.end(at); ++id) {
            const std::int32_t place = places.of(*id);
            if (place >= 0) {
                marks[place] = 1;
            }
        }
    }
}

bool placed_well(const Held& held, const Ids& own, const Ids& fresh, const Areas& areas) {
    const Places places{&own, &fresh};
    const std::int64_t width = own.size() + fresh.size();
    std::vector<std::uint8_t> named(static_cast<std::size_t>(width)), used(static_cast<std::size_t>(fresh.size()));
    for (std::int64_t at = 0; at < areas.ids.rows(); ++at) {
        if (areas.layers[at] < 0 || areas.layers[at] >= areas.layer_row.size()) {
            return false;
        }
        const std::int64_t row = row_of(areas, at);
        if (row < 0 || areas.ids.count(at) == 0) {
            continue;
        }
        std::fill(named.begin(), named.end(), 0);
        const std::uint8_t* marks = held.marks + row * held.blocks;
        for (const std::int32_t* id = areas.ids.begin(at); id != areas.ids.end(at); ++id) {
            const std::int32_t place = places.of(*id);
            if (place < 0 || named[static_cast<std::size_t>(place)] || (place < own.size() && marks[place])) {
                return false;
            }
            named[static_cast<std::size_t>(place)] = 1;
            if (place >= own.size()) {
                used[static_cast<std::size_t>(place - own.size())] = 1;
            }
        }
    }
    return std::all_of(used.begin(), used.end(), [](std::uint8_t one) { return one; });
}

Fullest fullest(const Held& held, const Ids& blocks, const Ids& rows, const Ids& wanted) {
    std::vector<std::int32_t> full(static_cast<std::size_t>(held.blocks)), order(full.size());
    for (std::int64_t row = 0; row < held.rows; ++row) {
        for (std::int64_t at = 0; at < held.blocks; ++at) {
            full[static_cast<std::size_t>(at)] += held.marks[row * held.blocks + at] != 0;
        }
    }
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&full](std::int32_t a, std::int32_t b) {
        return full[static_cast<std::size_t>(a)] > full[static_cast<std::size_t>(b)];
    });
    Fullest found;
    found.counts.reserve(static_cast<std::size_t>(rows.size()));
    for (std::int64_t at = 0; at < rows.size(); ++at) {
        const std::uint8_t* marks = held.marks + rows[at] * held.blocks;
        std::int32_t count = 0;
        for (const std::int32_t place : order) {
            if (!marks[place]) {
                ++found.vacant;
                if (count < wanted[at]) {
                    found.blocks.push_back(blocks[place]);
                    ++count;
                }
            }
        }
        found.counts.push_back(count);
    }
    return found;
}

}  // namespace kvsweep
