// Reducers of device-written tail blocks, their store to the CPU, and fences. See kvsweep.ledger.reducers.tail.
#include <algorithm>

#include "change.hpp"
#include "fold.hpp"
#include "sources.hpp"
#include "tail.hpp"

namespace kvsweep::fold {
namespace {

// Blocks that every group has dropped leave.
void leave(std::vector<TailBlock>& tail) {
    std::erase_if(tail, [](const TailBlock& block) {
        return std::all_of(block.physical.begin(), block.physical.end(), [](std::int64_t area) { return area == hole; });
    });
}

// A row a layer, of every kind: the areas of these blocks that their group has not dropped.
Rows areas_of(const Layout& layout, const std::vector<const TailBlock*>& blocks) {
    const auto rows = static_cast<std::uint32_t>(layout.layers.size());
    const auto most = static_cast<std::uint32_t>(layout.layers.size() * blocks.size());
    Ids layers = Ids::uninitialized(rows), ends = Ids::uninitialized(rows + 1), ids = Ids::uninitialized(most);
    std::int32_t *layer = layers.writable(), *end = ends.writable(), *next = ids.writable();
    *end = 0;
    for (std::uint32_t row = 0; row < rows; ++row) {
        const auto group = static_cast<std::size_t>(layout.layers[row].group);
        for (const TailBlock* block : blocks) {
            if (block->physical[group] != hole) {
                *next++ = static_cast<std::int32_t>(block->physical[group]);
            }
        }
        layer[row] = static_cast<std::int32_t>(row);
        end[row + 1] = static_cast<std::int32_t>(next - ids.writable());
    }
    const auto kept = static_cast<std::uint32_t>(next - ids.writable());
    return {std::move(layers), std::move(ends), std::move(ids).first(kept)};
}

}  // namespace

bool tail_opened(Machine& machine, Request& request, const Fact& fact) {
    const Layout& layout = machine.pool.layout;
    const Span physical = fact.physical_by_group;
    const std::int64_t logical = fact.one_logical;
    if (physical.count != layout.groups() || logical <= newest_logical(request) || request.source_of(logical) != hole) {
        return false;
    }
    for (std::uint32_t group = 0; group < physical.count; ++group) {
        if (!machine.relation.in_pool(group, physical[group]) || machine.relation.taken(group, physical[group])) {
            return false;
        }
    }
    TailBlock block{logical, {}, TailPhase::open};
    std::vector<Held> put;
    std::vector<Span> reserve;
    for (std::uint32_t group = 0; group < physical.count; ++group) {
        const Holder holder{HolderKind::tail, logical, group};
        put.push_back({holder, {block_areas(layout, group, {physical[group]}), {}, {}}});
        reserve.push_back({physical.data + std::size_t{4} * group, 1});
        block.physical.push_back(physical[group]);
    }
    machine.relation.change(request, std::move(put), {}, reserve);
    request.tail.push_back(std::move(block));
    return true;
}

bool tail_sealed(Machine&, Request& request, const Fact& fact) {
    TailBlock* block = find_block(request, fact.one_logical);
    if (block == nullptr || block->phase != TailPhase::open) {
        return false;
    }
    block->phase = TailPhase::dirty;
    return true;
}

// Starts only on dirty blocks: every step that wrote them has ended.
bool store_started(Machine& machine, Request& request, const Fact& fact) {
    const Span logical = fact.logical_list, source = fact.source_list;
    if (!begins(machine, request, fact) || !expected_ranks(machine, fact.ranks) || logical.empty() ||
        logical.count != source.count || !distinct(logical) || !distinct(source)) {
        return false;
    }
    std::vector<const TailBlock*> blocks;
    for (std::uint32_t at = 0; at < logical.count; ++at) {
        const TailBlock* block = find_block(request, logical[at]);
        if (block == nullptr || block->phase != TailPhase::dirty || source[at] >= machine.pool.cpu_full_blocks ||
            !machine.relation.in_cpu_pool(source[at]) || machine.relation.cpu_taken(source[at])) {
            return false;
        }
        blocks.push_back(block);
    }
    OpenOperation open;
    open.operation = fact.operation;
    open.lane = LaneName::store;
    open.ranks = fact.ranks;
    open.stored = Ids(logical);
    open.stored_to = Ids(source);
    std::vector<Held> put;
    put.push_back({{HolderKind::src, open.operation.id}, {areas_of(machine.pool.layout, blocks), {}, {}}});
    put.push_back({{HolderKind::dst, open.operation.id}, {{}, open.stored_to, {}}});
    machine.relation.change(request, std::move(put), {});
    request.store.open = std::move(open);
    take_number(machine);
    return true;
}

bool rank_stored(Machine&, Request& request, const Fact& fact) {
    OpenOperation* open = open_in(request, LaneName::store, fact);
    if (open == nullptr || !awaited(*open, fact.rank, fact.process_epoch)) {
        return false;
    }
    report(*open, fact.rank, Outcome::completed);
    return true;
}

// Valid on every rank: from here on the blocks are sources, and may be adopted or dropped.
bool store_completed(Machine& machine, Request& request, const Fact& fact) {
    const OpenOperation* open = open_in(request, LaneName::store, fact);
    if (open == nullptr || !all_reported(*open) || !in_table(open->stored.span())) {
        return false;
    }
    const Span logical = open->stored.span();
    for (std::uint32_t at = 0; at < logical.count; ++at) {
        if (TailBlock* block = find_block(request, logical[at])) {
            block->phase = TailPhase::clean;
        }
    }
    request.source = with_blocks(request.source, logical, open->stored_to.span());
    request.stale = without(request.stale, logical);
    const std::vector<Holder> drop{{HolderKind::dst, open->operation.id}, {HolderKind::src, open->operation.id}};
    machine.relation.change(request, {owned_sources(request)}, drop);
    request.store.closed = closed_record(*open);
    request.store.open.reset();
    return true;
}

bool sources_registered(Machine& machine, Request& request, const Fact& fact) {
    const Span logical = fact.logical_list, source = fact.source_list;
    if (logical.count != source.count || !distinct(logical) || !distinct(source) || !in_table(logical)) {
        return false;
    }
    for (std::uint32_t at = 0; at < logical.count; ++at) {
        const auto entry = static_cast<std::uint32_t>(logical[at]);
        // A block that is held already is the one that stood at this very entry before the producer restarted.
        const bool again = entry < request.stale.count() && request.stale[entry] == source[at];
        if (request.source_of(entry) != hole || source[at] >= machine.pool.cpu_full_blocks ||
            !machine.relation.in_cpu_pool(source[at]) || (machine.relation.cpu_taken(source[at]) && !again)) {
            return false;
        }
    }
    request.source = with_blocks(request.source, logical, source);
    request.stale = without(request.stale, logical);
    machine.relation.change(request, {owned_sources(request)}, {});
    return true;
}

// Declared, never silent: from here on the block may be dropped without a store.
bool block_lost(Machine&, Request& request, const Fact& fact) {
    TailBlock* block = find_block(request, fact.one_logical);
    if (block == nullptr || (block->phase != TailPhase::open && block->phase != TailPhase::dirty)) {
        return false;
    }
    block->phase = TailPhase::lost;
    return true;
}

bool tail_dropped(Machine& machine, Request& request, const Fact& fact) {
    const Layout& layout = machine.pool.layout;
    const Span leaving = fact.logical_list;
    const auto group = static_cast<std::size_t>(fact.group);
    if (fact.fence != request.next_fence || !countable(fact.fence) || group >= layout.groups() || leaving.empty() ||
        !distinct(leaving)) {
        return false;
    }
    std::vector<std::int32_t> blocks;
    std::vector<Holder> drop;
    for (std::uint32_t at = 0; at < leaving.count; ++at) {
        const TailBlock* block = find_block(request, leaving[at]);
        if (block == nullptr || block->physical[group] == hole) {
            return false;
        }
        const bool may_leave = block->phase == TailPhase::clean || block->phase == TailPhase::lost;
        if (!may_leave && request.life != Life::finishing) {
            return false;
        }
        blocks.push_back(static_cast<std::int32_t>(block->physical[group]));
        drop.push_back({HolderKind::tail, leaving[at], fact.group});
    }
    machine.relation.change(request, {{{HolderKind::fence, fact.fence}, {block_areas(layout, group, blocks), {}, {}}}},
                            drop);
    for (std::uint32_t at = 0; at < leaving.count; ++at) {
        find_block(request, leaving[at])->physical[group] = hole;
    }
    leave(request.tail);
    request.fences.push_back(fact.fence);
    request.next_fence = fact.fence + 1;
    return true;
}

bool fence_opened(Machine& machine, Request& request, const Fact& fact) {
    const auto fence = std::find(request.fences.begin(), request.fences.end(), fact.fence);
    if (fence == request.fences.end() ||
        !machine.relation.release(request, {HolderKind::fence, fact.fence}, fact.freed, fact.found)) {
        return false;
    }
    request.fences.erase(fence);
    return true;
}

}  // namespace kvsweep::fold
