#include "place.hpp"

#include <algorithm>

namespace kvsweep::fold {
namespace {

// An own block that has vacant areas: those from `begin` to `end` of a list.
struct Candidate {
    std::int32_t block;
    std::uint32_t begin, end;

    std::uint32_t vacant() const { return end - begin; }
};

// The fullest first, the lowest id among equals. `vacant` gets their vacant areas.
std::vector<Candidate> candidates(const Relation& relation, const Ids& own, std::size_t group, std::uint32_t areas,
                                  std::vector<std::uint32_t>& vacant) {
    std::vector<Candidate> found;
    found.reserve(own.count());
    vacant.resize(std::size_t{own.count()} * areas);
    std::uint32_t end = 0;
    for (const std::int32_t block : own) {
        const Relation::Count* holders = relation.areas(group, block);
        const std::uint32_t begin = end;
        for (std::uint32_t area = 0; area < areas; ++area) {  // without a branch that is hard to foretell
            vacant[end] = area;
            end += holders == nullptr || holders[area] == 0;
        }
        if (begin != end) {
            found.push_back({block, begin, end});
        }
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const Candidate& a, const Candidate& b) { return a.vacant() < b.vacant(); });
    return found;
}

}  // namespace

Placement::Placement(const Relation& relation, const Layout& layout, const Request& request, RowsSpan blocks)
    : ids_(blocks.ids.count), new_blocks_(layout.groups()) {
    std::vector<std::vector<Row*>> row_of_area;  // a list a group; null where the layer has no row
    for (const std::vector<std::int32_t>& layers : layout.layers_of_group) {
        row_of_area.emplace_back(layers.size());
    }
    rows_.resize(blocks.rows());
    for (std::uint32_t at = 0; at < blocks.rows(); ++at) {
        const Layer& layer = layout.layers[static_cast<std::size_t>(blocks.layers[at])];
        const auto group = static_cast<std::size_t>(layer.group);
        rows_[at] = {group, blocks.begin(at), blocks.end(at), 0};
        row_of_area[group][static_cast<std::size_t>(layer.row_in_group)] = &rows_[at];
    }
    std::vector<std::uint32_t> vacant;
    for (std::size_t group = 0; group < layout.groups() && group < request.own.size(); ++group) {
        const std::vector<Row*>& row_of = row_of_area[group];
        const auto areas = static_cast<std::uint32_t>(row_of.size());
        for (const Candidate& one : candidates(relation, request.own[group], group, areas, vacant)) {
            for (std::uint32_t at = one.begin; at != one.end; ++at) {
                Row* const row = row_of[vacant[at]];
                if (row != nullptr && row->missing() != 0) {
                    ids_[row->begin + row->found++] = one.block;
                }
            }
        }
    }
    for (const Row& row : rows_) {
        new_blocks_[row.group] = std::max(new_blocks_[row.group], std::int64_t{row.missing()});
    }
}

bool Placement::needs_new() const {
    return std::any_of(new_blocks_.begin(), new_blocks_.end(), [](std::int64_t count) { return count != 0; });
}

bool Placement::areas(const std::vector<Span>& reserved, bool scatter, Ids& ids) const {
    if (reserved.size() != new_blocks_.size()) {
        return false;
    }
    for (std::size_t group = 0; group < reserved.size(); ++group) {
        if (reserved[group].count != new_blocks_[group]) {
            return false;
        }
    }
    ids = Ids::uninitialized(static_cast<std::uint32_t>(ids_.size()));
    std::copy(ids_.begin(), ids_.end(), ids.writable());
    for (std::size_t at = 0; at < rows_.size(); ++at) {
        const Row& row = rows_[at];
        const Span& blocks = reserved[row.group];
        const std::uint32_t missing = row.missing();
        for (std::uint32_t index = 0; index < missing; ++index) {
            const std::size_t place = (index + (scatter ? at : 0)) % missing;
            ids.writable()[row.begin + row.found + place] = blocks[index];
        }
    }
    return true;
}

}  // namespace kvsweep::fold
