#include "relation.hpp"

#include <algorithm>
#include <utility>

namespace kvsweep::fold {
namespace {

constexpr std::size_t columns_at_once = 64;

std::vector<Held>::iterator find(std::vector<Held>& held, const Holder& holder) {
    return std::find_if(held.begin(), held.end(), [&holder](const Held& one) { return one.holder == holder; });
}

bool all_empty(const std::vector<Ids>& lists) {
    return std::all_of(lists.begin(), lists.end(), [](const Ids& list) { return list.empty(); });
}

bool same_ids(const std::vector<std::int32_t>& ids, Span other) {
    return ids.size() == other.count && (ids.empty() || std::memcmp(ids.data(), other.data, other.bytes()) == 0);
}

}  // namespace

void Relation::configure(const Layout& layout, const std::vector<std::int64_t>& device_blocks,
                         std::int64_t cpu_total_blocks) {
    std::vector<Step>* const noted = steps;
    *this = Relation();
    steps = noted;
    layout_ = &layout;
    groups_.resize(layout.groups());
    for (std::size_t group = 0; group < groups_.size(); ++group) {
        groups_[group].size = device_blocks[group];
    }
    cpu_size_ = cpu_total_blocks;
}

void Relation::change(Request& request, std::vector<Held> put, const std::vector<Holder>& drop,
                      const std::vector<Span>& blocks) {
    ++request.relation;
    reserve(request, blocks);
    for (Held& one : put) {
        hold(one.holding);
        const auto before = find(request.held, one.holder);
        if (before == request.held.end()) {
            request.held.push_back(std::move(one));
        } else {
            std::swap(before->holding, one.holding);
        }
    }
    for (const Held& one : put) {  // what was replaced, and nothing where a holder was added
        let_go(one.holding);
    }
    for (const Holder& holder : drop) {
        const auto dropped = find(request.held, holder);
        let_go(dropped->holding);
        request.held.erase(dropped);
    }
    free(&request);
}

bool Relation::release(Request& request, const Holder& drop, const std::vector<Span>& freed,
                       std::vector<Ids>* found) {
    if (!let_go_if(request.held, drop, freed, found)) {
        return false;
    }
    ++request.relation;
    free(&request);
    return true;
}

void Relation::publish(Request& request, std::int64_t number, const std::vector<std::int64_t>& blocks,
                       std::int64_t source) {
    ++request.relation;
    const std::vector<std::int32_t> new_source{static_cast<std::int32_t>(source)};
    shared_.resize(groups_.size());
    for (std::size_t group = 0; group < groups_.size(); ++group) {
        const std::vector<std::int32_t> block{static_cast<std::int32_t>(blocks[group])};
        Block& shared = claim(group, block[0]);
        shared.owner = nullptr;
        shared.shared = true;
        request.own[group] = without_ids(request.own[group], block);
        shared_[group] = with_ids(shared_[group], block);
    }
    if (all_empty(request.own)) {
        request.own.clear();
    }
    if (!std::binary_search(shared_sources_.begin(), shared_sources_.end(), new_source[0])) {
        shared_sources_ = with_ids(shared_sources_, new_source);
    }

    const auto layers = static_cast<std::uint32_t>(layout_->layers.size());
    Ids all = Ids::uninitialized(layers), ends = Ids::uninitialized(layers + 1), ids = Ids::uninitialized(layers);
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
        all.writable()[layer] = ends.writable()[layer] = static_cast<std::int32_t>(layer);
        ids.writable()[layer] =
            static_cast<std::int32_t>(blocks[static_cast<std::size_t>(layout_->layers[layer].group)]);
    }
    ends.writable()[layers] = static_cast<std::int32_t>(layers);
    Holding holding{Rows(std::move(all), std::move(ends), std::move(ids)), with_ids(Ids(), new_source), {}};
    hold(holding);
    pool_held_.push_back({{HolderKind::prefix, number, 0}, std::move(holding)});
}

bool Relation::evict(std::int64_t number, const std::vector<Span>& freed) {
    if (!let_go_if(pool_held_, {HolderKind::prefix, number, 0}, freed, nullptr)) {
        return false;
    }
    free(nullptr);
    return true;
}

Relation::Block& Relation::claim(std::size_t of, std::int32_t id) {
    Group& group = groups_[of];
    const auto at = static_cast<std::size_t>(id);
    if (at >= group.blocks.size()) {
        const auto most = static_cast<std::size_t>(std::min<std::int64_t>(group.size, most_id));
        group.blocks.resize(std::min(most, std::max(at + 1, 2 * group.blocks.size())));
    }
    Block& block = group.blocks[at];
    if (block.areas == nullptr) {
        if (group.columns.empty()) {
            const std::size_t width = layout_->layers_of_group[of].size();
            group.memory.push_back(std::make_unique<Count[]>(columns_at_once * width));
            for (std::size_t column = 0; column < columns_at_once; ++column) {
                group.columns.push_back(group.memory.back().get() + column * width);
            }
        }
        block.areas = group.columns.back();
        group.columns.pop_back();
    }
    return block;
}

void Relation::reserve(Request& request, const std::vector<Span>& blocks) {
    for (std::size_t group = 0; group < blocks.size(); ++group) {
        if (blocks[group].empty()) {
            continue;
        }
        std::vector<std::int32_t> more;
        more.reserve(blocks[group].count);
        for (std::uint32_t at = 0; at < blocks[group].count; ++at) {
            more.push_back(blocks[group][at]);
            claim(group, more.back()).owner = &request;
            note(static_cast<std::int32_t>(group), more.back(), false);
        }
        std::sort(more.begin(), more.end());
        request.own.resize(groups_.size());
        request.own[group] = with_ids(request.own[group], more);
    }
}

void Relation::hold(const Holding& holding) {
    const RowsSpan areas = holding.areas.span();
    each_row(areas, [&](std::size_t group, std::size_t row, Span ids) {
        Block* const blocks = groups_[group].blocks.data();
        for (std::uint32_t at = 0; at < ids.count; ++at) {
            Block& block = blocks[ids[at]];
            if (block.areas[row]++ == 0) {
                ++block.held;
            }
        }
    });
    for (const std::int32_t source : holding.sources) {
        const auto at = static_cast<std::size_t>(source);
        if (at >= cpu_.size()) {
            cpu_.resize(std::max(at + 1, 2 * cpu_.size()));
        }
        if (cpu_[at]++ == 0) {
            note(-1, source, false);
        }
    }
}

// What has no holder any more stands in `freed` from here on, and is not free yet.
void Relation::let_go(const Holding& holding) {
    const RowsSpan areas = holding.areas.span();
    each_row(areas, [&](std::size_t of, std::size_t row, Span ids) {
        Group& group = groups_[of];
        Block* const blocks = group.blocks.data();
        for (std::uint32_t at = 0; at < ids.count; ++at) {
            Block& block = blocks[ids[at]];
            if (--block.areas[row] == 0 && --block.held == 0) {
                group.freed.push_back(ids[at]);
            }
        }
    });
    for (const std::int32_t source : holding.sources) {
        if (--cpu_[static_cast<std::size_t>(source)] == 0) {
            cpu_freed_.push_back(source);
        }
    }
}

bool Relation::let_go_if(std::vector<Held>& held, const Holder& drop, const std::vector<Span>& freed,
                         std::vector<Ids>* found) {
    const auto dropped = find(held, drop);
    if (dropped == held.end() || (found == nullptr && freed.size() != groups_.size())) {
        return false;
    }
    let_go(dropped->holding);
    for (Group& group : groups_) {
        std::sort(group.freed.begin(), group.freed.end());
    }
    if (found != nullptr) {
        found->clear();
        for (const Group& group : groups_) {
            found->push_back(with_ids(Ids(), group.freed));
        }
    } else if (!std::equal(groups_.begin(), groups_.end(), freed.begin(),
                           [](const Group& group, Span said) { return same_ids(group.freed, said); })) {
        take_back(dropped->holding);
        return false;
    }
    held.erase(dropped);
    return true;
}

// As if `let_go` had not been asked.
void Relation::take_back(const Holding& holding) {
    std::vector<Step>* const noted = std::exchange(steps, nullptr);
    hold(holding);
    steps = noted;
    for (Group& group : groups_) {
        group.freed.clear();
    }
    cpu_freed_.clear();
}

// What `let_go` found leaves what is owned and shared.
void Relation::free(Request* request) {
    for (std::size_t of = 0; of < groups_.size(); ++of) {
        Group& group = groups_[of];
        if (group.freed.empty()) {
            continue;
        }
        std::sort(group.freed.begin(), group.freed.end());
        bool owned = false, shared = false;
        for (const std::int32_t id : group.freed) {
            Block& block = group.blocks[static_cast<std::size_t>(id)];
            owned = owned || block.owner != nullptr;
            shared = shared || block.shared;
            group.columns.push_back(block.areas);
            block = Block();
            note(static_cast<std::int32_t>(of), id, true);
        }
        if (owned && request != nullptr) {
            request->own[of] = without_ids(request->own[of], group.freed);
        }
        if (shared) {
            shared_[of] = without_ids(shared_[of], group.freed);
        }
        group.freed.clear();
    }
    if (request != nullptr && all_empty(request->own)) {
        request->own.clear();
    }
    if (all_empty(shared_)) {
        shared_.clear();
    }
    for (const std::int32_t source : cpu_freed_) {
        note(-1, source, true);
    }
    if (!shared_sources_.empty() && !cpu_freed_.empty()) {
        std::sort(cpu_freed_.begin(), cpu_freed_.end());
        shared_sources_ = without_ids(shared_sources_, cpu_freed_);
    }
    cpu_freed_.clear();
}

}  // namespace kvsweep::fold
