#include "selection.hpp"

#include <algorithm>
#include <vector>

#include "rows.hpp"

namespace kvsweep::fold {
namespace {

bool all_within(Span ids, std::int64_t limit) {
    bool wrong = false;
    for (std::uint32_t at = 0; at < ids.count; ++at) {
        wrong |= ids[at] < 0 || ids[at] >= limit;
    }
    return !wrong;
}

bool stands_in(std::int32_t id, RowsSpan rows, std::uint32_t row) {
    for (std::uint32_t at = rows.begin(row); at < rows.end(row); ++at) {
        if (rows.ids[at] == id) {
            return true;
        }
    }
    return false;
}

// Logical blocks whose clean tail block still stands in the group, ascending.
std::vector<std::int32_t> clean_tail(const Request& request, std::size_t group) {
    std::vector<std::int32_t> found;
    for (const TailBlock& block : request.tail) {
        if (block.phase == TailPhase::clean && group < block.physical.size() && block.physical[group] != hole) {
            found.push_back(static_cast<std::int32_t>(block.logical));
        }
    }
    std::sort(found.begin(), found.end());
    return found;
}

// A new table before it is made: the ids that stand at slots of the resident rows, then the adopted ones.
struct Kept {
    const RowsSpan &resident, &slots, &adopted;

    std::uint32_t kept(std::uint32_t row) const { return slots.end(row) - slots.begin(row); }
    std::uint32_t count(std::uint32_t row) const { return kept(row) + adopted.end(row) - adopted.begin(row); }
    std::int32_t id(std::uint32_t row, std::uint32_t at) const {
        if (at >= kept(row)) {
            return adopted.ids[adopted.begin(row) + at - kept(row)];
        }
        const std::uint32_t place = resident.begin(row) + static_cast<std::uint32_t>(slots.ids[slots.begin(row) + at]);
        return place < resident.end(row) ? resident.ids[place] : hole;
    }
    bool same(std::uint32_t row, std::uint32_t other) const {
        bool equal = count(row) == count(other);
        for (std::uint32_t at = 0; equal && at < count(row); ++at) {
            equal = id(row, at) == id(other, at);
        }
        return equal;
    }
};

}  // namespace

bool acceptable(const Selection& selection, const Layout& layout, const Request& request) {
    const View* view = request.view();
    const Span active = layout.active.span();
    if (selection.block_size != layout.block_size || selection.revision <= request.selection_revision ||
        selection.whole_blocks < 0 || (view != nullptr && !all_below(view->logical.ids.span(), selection.whole_blocks)) ||
        !(selection.wanted.layers == active) || !(selection.tail.layers == active) ||
        selection.groups.count != active.count) {
        return false;
    }
    for (std::uint32_t row = 0; row < active.count; ++row) {
        if (selection.groups[row] != layout.layers[static_cast<std::size_t>(active[row])].group) {
            return false;
        }
    }
    return all_within(selection.wanted.ids, selection.whole_blocks) &&
           all_within(selection.tail.ids, selection.whole_blocks) && rows_ascend(selection.wanted) &&
           (selection.tail.ids.empty() ||
            (rows_apart(selection.tail) && rows_disjoint(selection.wanted, selection.tail)));
}

Rows adoptable(const Request& request, const Layout& layout, RowsSpan wanted, RowsSpan resident) {
    if (std::none_of(request.tail.begin(), request.tail.end(),
                     [](const TailBlock& block) { return block.phase == TailPhase::clean; })) {
        return empty_rows(wanted.layers);
    }
    std::vector<std::vector<std::int32_t>> clean;
    for (std::size_t group = 0; group < layout.groups(); ++group) {
        clean.push_back(clean_tail(request, group));
    }
    std::vector<std::int32_t> ends{0}, found;
    for (std::uint32_t row = 0; row < wanted.rows(); ++row) {
        const auto layer = static_cast<std::size_t>(wanted.layers[row]);
        for (const std::int32_t logical : clean[static_cast<std::size_t>(layout.layers[layer].group)]) {
            if (stands_in(logical, wanted, row) && !(row < resident.rows() && stands_in(logical, resident, row))) {
                found.push_back(logical);
            }
        }
        ends.push_back(static_cast<std::int32_t>(found.size()));
    }
    const auto ids = [](const std::vector<std::int32_t>& list) {
        return Ids(Span{reinterpret_cast<const unsigned char*>(list.data()), static_cast<std::uint32_t>(list.size())});
    };
    return {Ids(wanted.layers), ids(ends), ids(found)};
}

bool sources_of(const Request& request, Span logical, Ids& sources) {
    sources = Ids::uninitialized(logical.count);
    bool all = true;
    for (std::uint32_t at = 0; at < logical.count; ++at) {
        const std::int32_t source = request.source_of(logical[at]);
        sources.writable()[at] = source;
        all &= source != hole;
    }
    return all;
}

Rows slots_of(RowsSpan resident, RowsSpan wanted) {
    static Seen seen;  // whoever asks holds Python's lock
    std::vector<std::int32_t> slots;
    Ids ends = Ids::uninitialized(resident.rows() + 1);
    ends.writable()[0] = 0;
    for (std::uint32_t row = 0; row < resident.rows(); ++row) {
        const std::uint32_t last = wanted.end(row);
        // They ascend, so the last one is the largest.
        seen.begin(last == wanted.begin(row) ? 0 : static_cast<std::size_t>(wanted.ids[last - 1]) + 1);
        for (std::uint32_t at = wanted.begin(row); at < last; ++at) {
            seen.set(wanted.ids[at]);
        }
        for (std::uint32_t at = resident.begin(row); at < resident.end(row); ++at) {
            if (seen.has(resident.ids[at])) {
                slots.push_back(static_cast<std::int32_t>(at - resident.begin(row)));
            }
        }
        ends.writable()[row + 1] = static_cast<std::int32_t>(slots.size());
    }
    const Span found{reinterpret_cast<const unsigned char*>(slots.data()), static_cast<std::uint32_t>(slots.size())};
    return {Ids(resident.layers), std::move(ends), Ids(found)};
}

bool alike(const Layout& layout, RowsSpan resident, RowsSpan slots, RowsSpan adopted) {
    const Kept table{resident, slots, adopted};
    constexpr std::uint32_t none = ~std::uint32_t{0};
    std::vector<std::uint32_t> first(layout.groups(), none);  // of each group, the row that others are held against
    for (std::uint32_t row = 0; row < slots.rows(); ++row) {
        const Layer& layer = layout.layers[static_cast<std::size_t>(slots.layers[row])];
        std::uint32_t& other = first[static_cast<std::size_t>(layer.group)];
        if (other == none) {
            other = row;
        } else if (!table.same(row, other)) {
            return false;
        }
    }
    return true;
}

}  // namespace kvsweep::fold
