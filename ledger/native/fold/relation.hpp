// Ownership: which holder holds which area, CPU block and table row. The one place that changes it is `Relation`.
// What it means stands in kvsweep.ledger.ownership; here each area counts its holders instead of being looked for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rows.hpp"
#include "state.hpp"

namespace kvsweep::fold {

class Relation {
  public:
    using Count = std::uint32_t;  // of holders: more than that have no place in memory

    // A block that somebody holds from here on, or that nobody holds any more.
    struct Step {
        std::int32_t group = 0;  // -1: a CPU block
        std::int32_t block = 0;
        bool freed = false;
    };
    std::vector<Step>* steps = nullptr;  // where they are noted, in their order, while somebody wants to know

    // Nothing is held. Sizes are those of the pools; `layout` outlives this.
    void configure(const Layout& layout, const std::vector<std::int64_t>& device_blocks, std::int64_t cpu_total_blocks);

    // Take up what a snapshot says, in this order: all that is shared, what the pool itself holds, then each request,
    // whose `held` and `own` are filled in. False where a block is outside the pools, or held by somebody who neither
    // owns nor shares it; then `configure` has to begin again.
    bool take_up_shared(std::vector<Ids> shared, Ids shared_sources);
    bool take_up_pool(std::vector<Held> held);
    bool take_up(Request& request);

    // Pairs are added first, then removed, so nothing is free in between. `put` adds a holder or replaces what it holds;
    // `reserve` adds newly reserved blocks to the request's own, a span a group or none at all. All of it was checked:
    // areas that are put are held by somebody or in a reserved block, CPU blocks are inside the pool, holders of `drop`
    // are there.
    void change(Request& request, std::vector<Held> put, const std::vector<Holder>& drop,
                const std::vector<Span>& reserve = {});

    // Drops this one holder if that frees just these blocks, a list a group, ascending. False, and nothing is changed,
    // where it would free others or the holder is not there. With `found`, whatever becomes free is put there instead of
    // being compared.
    bool release(Request& request, const Holder& drop, const std::vector<Span>& freed,
                 std::vector<Ids>* found = nullptr);

    // ---- prefixes: held by the pool itself

    // Shares one block of each group, which the request owns, and one CPU block.
    void publish(Request& request, std::int64_t number, const std::vector<std::int64_t>& blocks, std::int64_t source);
    // One reference less, if that frees just these blocks.
    bool evict(std::int64_t number, const std::vector<Span>& freed);

    // ---- questions

    // Ids that can be put. Where a pool is larger than most_id, the rest of it is left to the reference.
    bool in_pool(std::size_t group, std::int64_t block) const;
    bool in_cpu_pool(std::int64_t block) const;

    // Anybody holds it; false beyond the pool.
    bool taken(std::size_t group, std::int64_t block) const;
    bool cpu_taken(std::int64_t block) const;
    bool row_taken(const Request& request, std::int64_t row) const;
    bool owns(const Request& request, std::size_t group, std::int64_t block) const;
    bool is_shared(std::size_t group, std::int64_t block) const;
    // A byte a block, up to the last that was ever held: 1 where anybody holds it.
    std::string marks(std::size_t group) const;
    std::string cpu_marks() const;

    // Every area is vacant, in a block of the request's own or a newly reserved one, and named once; newly reserved
    // blocks are in the pool, taken by nobody, apart, and each has an area.
    bool placeable(const Request& request, const RowsSpan& areas, const std::vector<Span>& reserve);

    // Holders of each area of the block, one a layer of the group; null where nobody holds any.
    const Count* areas(std::size_t group, std::int64_t block) const;

    // Somebody holds each of these areas.
    bool all_held(const RowsSpan& areas) const;

    // ---- what a snapshot keeps
    const std::vector<Held>& pool_held() const { return pool_held_; }
    const std::vector<Ids>& shared() const { return shared_; }  // empty where nothing is shared
    const Ids& shared_sources() const { return shared_sources_; }

  private:
    struct Block {
        Count* areas = nullptr;  // null: nobody holds any
        const Request* owner = nullptr;
        std::uint32_t held = 0;  // areas that somebody holds
        bool shared = false;
    };
    struct Group {
        std::int64_t size = 0;
        std::vector<Block> blocks;    // as far as any was ever held
        std::vector<Count*> columns;  // to be used again: all zero
        std::vector<std::unique_ptr<Count[]>> memory;
        Seen named, fresh, used;          // while `placeable` looks
        std::vector<std::int32_t> freed;  // while pairs are removed
    };

    // Calls with (group, place of the layer in it, ids) for each row.
    template <class Row>
    void each_row(const RowsSpan& areas, const Row& row) const {
        for (std::uint32_t at = 0; at < areas.rows(); ++at) {
            const Layer& layer = layout_->layers[static_cast<std::size_t>(areas.layers[at])];
            row(static_cast<std::size_t>(layer.group), static_cast<std::size_t>(layer.row_in_group), areas.row(at));
        }
    }
    bool in_layout(Span layers) const {
        return layers.empty() || static_cast<std::size_t>(layers[layers.count - 1]) < layout_->layers.size();
    }

    const Block* known(std::size_t group, std::int64_t block) const;
    Block& claim(std::size_t group, std::int32_t block);  // with a column
    bool in_pools(const Holding& holding, const Request* owner) const;
    void hold(const Holding& holding);
    void let_go(const Holding& holding);
    void take_back(const Holding& holding);
    bool let_go_if(std::vector<Held>& held, const Holder& drop, const std::vector<Span>& freed,
                   std::vector<Ids>* found);
    void note(std::int32_t group, std::int32_t block, bool freed) {
        if (steps != nullptr) {
            steps->push_back({group, block, freed});
        }
    }
    void reserve(Request& request, const std::vector<Span>& blocks);
    void free(Request* request);

    const Layout* layout_ = nullptr;
    std::vector<Group> groups_;
    std::int64_t cpu_size_ = 0;
    std::vector<Count> cpu_;               // holders of each CPU block, as far as any was ever held
    std::vector<std::int32_t> cpu_freed_;  // while pairs are removed
    std::vector<Held> pool_held_;
    std::vector<Ids> shared_;
    Ids shared_sources_;
};

}  // namespace kvsweep::fold
