// What `Relation` is asked, and what it takes up from a snapshot.
#include <algorithm>

#include "relation.hpp"

namespace kvsweep::fold {
namespace {

bool ascending(const Ids& ids) {
    return std::adjacent_find(ids.begin(), ids.end(), [](std::int32_t a, std::int32_t b) { return a >= b; }) ==
           ids.end();
}

}  // namespace

// ---- what a snapshot says

bool Relation::take_up_shared(std::vector<Ids> shared, Ids shared_sources) {
    if (!shared.empty() && shared.size() != groups_.size()) {
        return false;
    }
    for (std::size_t group = 0; group < shared.size(); ++group) {
        if (!ascending(shared[group])) {
            return false;
        }
        for (const std::int32_t block : shared[group]) {
            if (!in_pool(group, block)) {
                return false;
            }
            claim(group, block).shared = true;
        }
    }
    shared_ = std::move(shared);
    shared_sources_ = std::move(shared_sources);
    return ascending(shared_sources_);
}

bool Relation::take_up_pool(std::vector<Held> held) {
    for (const Held& one : held) {
        if (!in_pools(one.holding, nullptr)) {
            return false;
        }
        hold(one.holding);
    }
    pool_held_ = std::move(held);
    return true;
}

bool Relation::take_up(Request& request) {
    if (!request.own.empty() && request.own.size() != groups_.size()) {
        return false;
    }
    for (std::size_t group = 0; group < request.own.size(); ++group) {
        if (!ascending(request.own[group])) {
            return false;
        }
        for (const std::int32_t block : request.own[group]) {
            if (!in_pool(group, block) || taken(group, block)) {
                return false;
            }
            claim(group, block).owner = &request;
        }
    }
    for (const Held& one : request.held) {
        if (!in_pools(one.holding, &request)) {
            return false;
        }
        hold(one.holding);
    }
    for (std::size_t group = 0; group < request.own.size(); ++group) {
        for (const std::int32_t block : request.own[group]) {
            if (known(group, block)->held == 0) {
                return false;
            }
        }
    }
    return true;
}

// Every area is in a block of this owner, or a shared one.
bool Relation::in_pools(const Holding& holding, const Request* owner) const {
    const RowsSpan areas = holding.areas.span();
    if (!in_layout(areas.layers)) {
        return false;
    }
    bool well = true;
    each_row(areas, [&](std::size_t group, std::size_t, Span ids) {
        for (std::uint32_t at = 0; at < ids.count; ++at) {
            const Block* block = known(group, ids[at]);
            well = well && block != nullptr && (block->shared || (owner != nullptr && block->owner == owner));
        }
    });
    return well && std::all_of(holding.sources.begin(), holding.sources.end(),
                               [this](std::int32_t block) { return in_cpu_pool(block); });
}

// ---- questions

bool Relation::in_pool(std::size_t group, std::int64_t block) const {
    return group < groups_.size() && block >= 0 && block < std::min<std::int64_t>(groups_[group].size, most_id);
}

bool Relation::in_cpu_pool(std::int64_t block) const {
    return block >= 0 && block < std::min<std::int64_t>(cpu_size_, most_id);
}

const Relation::Block* Relation::known(std::size_t group, std::int64_t block) const {
    if (group >= groups_.size() || block < 0) {
        return nullptr;
    }
    const std::vector<Block>& blocks = groups_[group].blocks;
    return static_cast<std::uint64_t>(block) < blocks.size() ? &blocks[static_cast<std::size_t>(block)] : nullptr;
}

bool Relation::taken(std::size_t group, std::int64_t block) const {
    const Block* found = known(group, block);
    return found != nullptr && (found->owner != nullptr || found->shared);
}

std::string Relation::marks(std::size_t group) const {
    std::string made;
    made.reserve(groups_[group].blocks.size());
    for (const Block& block : groups_[group].blocks) {
        made.push_back(block.areas != nullptr);
    }
    return made;
}

std::string Relation::cpu_marks() const {
    std::string made(cpu_.size(), 0);
    std::transform(cpu_.begin(), cpu_.end(), made.begin(), [](Count holders) { return holders != 0; });
    return made;
}

bool Relation::cpu_taken(std::int64_t block) const {
    return block >= 0 && static_cast<std::uint64_t>(block) < cpu_.size() && cpu_[static_cast<std::size_t>(block)] != 0;
}

bool Relation::row_taken(const Request& request, std::int64_t row) const {
    return std::any_of(request.held.begin(), request.held.end(), [row](const Held& one) {
        const std::vector<std::int64_t>& rows = one.holding.rows;
        return std::find(rows.begin(), rows.end(), row) != rows.end();
    });
}

bool Relation::owns(const Request& request, std::size_t group, std::int64_t block) const {
    const Block* found = known(group, block);
    return found != nullptr && found->owner == &request;
}

bool Relation::is_shared(std::size_t group, std::int64_t block) const {
    const Block* found = known(group, block);
    return found != nullptr && found->shared;
}

const Relation::Count* Relation::areas(std::size_t group, std::int64_t block) const {
    const Block* found = known(group, block);
    return found == nullptr ? nullptr : found->areas;
}

bool Relation::placeable(const Request& request, const RowsSpan& areas, const std::vector<Span>& reserve) {
    if (reserve.size() != groups_.size() || !in_layout(areas.layers)) {
        return false;
    }
    std::size_t unused = 0;
    for (std::size_t of = 0; of < groups_.size(); ++of) {
        Group& group = groups_[of];
        std::size_t room = group.blocks.size();
        for (std::uint32_t at = 0; at < reserve[of].count; ++at) {
            if (!in_pool(of, reserve[of][at]) || taken(of, reserve[of][at])) {
                return false;
            }
            room = std::max(room, static_cast<std::size_t>(reserve[of][at]) + 1);
        }
        group.named.begin(room);
        group.used.begin(room);
        group.fresh.begin(room);
        for (std::uint32_t at = 0; at < reserve[of].count; ++at) {
            if (group.fresh.set(reserve[of][at])) {
                return false;
            }
        }
        unused += reserve[of].count;
    }
    bool well = true;
    each_row(areas, [&](std::size_t of, std::size_t row, Span ids) {
        Group& group = groups_[of];
        group.named.begin();
        for (std::uint32_t at = 0; at < ids.count && well; ++at) {
            const std::int32_t id = ids[at];
            if (group.fresh.has(id)) {
                unused -= !group.used.set(id);
            } else {
                const Block* block = known(of, id);
                well = block != nullptr && block->owner == &request && block->areas[row] == 0;
            }
            well = well && !group.named.set(id);
        }
    });
    return well && unused == 0;
}

bool Relation::all_held(const RowsSpan& areas) const {
    if (!in_layout(areas.layers)) {
        return false;
    }
    bool held = true;
    each_row(areas, [&](std::size_t group, std::size_t row, Span ids) {
        for (std::uint32_t at = 0; at < ids.count; ++at) {
            const Count* column = this->areas(group, ids[at]);
            held = held && column != nullptr && column[row] != 0;
        }
    });
    return held;
}

}  // namespace kvsweep::fold
