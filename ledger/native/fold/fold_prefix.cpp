// Reducers of shared prefix blocks: references, never written, free with the last one. See kvsweep.ledger.reducers.prefix.
#include <algorithm>

#include "change.hpp"
#include "fold.hpp"
#include "sources.hpp"
#include "tail.hpp"

namespace kvsweep::fold {

// Only a clean tail block is whole in every layer of every group, and belongs to one request alone.
bool prefix_published(Machine& machine, Request& request, const Fact& fact) {
    Pool& pool = machine.pool;
    const TailBlock* block = find_block(request, fact.one_logical);
    const std::int32_t source = request.source_of(fact.one_logical);
    if (fact.number != pool.next_prefix || !countable(fact.number) || pool.prefixes.size() >= prefixes_kept ||
        block == nullptr || block->phase != TailPhase::clean || source == hole) {
        return false;
    }
    for (std::size_t group = 0; group < block->physical.size(); ++group) {
        if (!machine.relation.owns(request, group, block->physical[group])) {  // nobody owns a hole
            return false;
        }
    }
    if (std::any_of(pool.prefixes.begin(), pool.prefixes.end(),
                    [&fact](const Prefix& prefix) { return prefix.key == fact.key; })) {
        return false;
    }
    machine.relation.publish(request, fact.number, block->physical, source);
    pool.prefixes.push_back({fact.number, std::string(fact.key), fact.one_logical, block->physical, source});
    pool.next_prefix = fact.number + 1;
    return true;
}

// The block stands clean in the tail, as if this request had written and stored it.
bool prefix_attached(Machine& machine, Request& request, const Fact& fact) {
    const Pool& pool = machine.pool;
    const std::int64_t logical = fact.one_logical;
    const auto prefix = std::find_if(pool.prefixes.begin(), pool.prefixes.end(),
                                     [&fact](const Prefix& one) { return one.number == fact.number; });
    if (prefix == pool.prefixes.end() || prefix->logical != logical || logical <= newest_logical(request) ||
        !in_table(logical) || request.source_of(logical) != hole) {
        return false;
    }
    for (std::size_t group = 0; group < prefix->physical.size(); ++group) {
        if (!machine.relation.is_shared(group, prefix->physical[group])) {  // in a snapshot of who knows what
            return false;
        }
    }
    const auto at = static_cast<std::int32_t>(logical), source = static_cast<std::int32_t>(prefix->source);
    request.source = with_blocks(request.source, one_id(at), one_id(source));
    request.stale = without(request.stale, one_id(at));
    std::vector<Held> put{owned_sources(request)};
    for (std::size_t group = 0; group < prefix->physical.size(); ++group) {
        const Holder holder{HolderKind::tail, logical, static_cast<std::int64_t>(group)};
        const auto block = static_cast<std::int32_t>(prefix->physical[group]);
        put.push_back({holder, {block_areas(pool.layout, group, {block}), {}, {}}});
    }
    machine.relation.change(request, std::move(put), {});
    request.tail.push_back({logical, prefix->physical, TailPhase::clean});
    return true;
}

}  // namespace kvsweep::fold
