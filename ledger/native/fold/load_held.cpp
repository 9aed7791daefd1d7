// Whether a snapshot's holders are there for all that needs them: reducers drop them, and add to them, without looking.
#include <algorithm>
#include <tuple>

#include "rows.hpp"
#include "snapshot.hpp"
#include "sources.hpp"
#include "tail.hpp"

namespace kvsweep::fold {
namespace {

// What is held, by holder.
class Holders {
  public:
    explicit Holders(const std::vector<Held>& held) {
        ordered_.reserve(held.size());
        for (const Held& one : held) {
            ordered_.push_back(&one);
        }
        std::sort(ordered_.begin(), ordered_.end(),
                  [](const Held* one, const Held* other) { return order(one->holder) < order(other->holder); });
    }
    // No holder stands there twice.
    bool apart() const {
        return std::adjacent_find(ordered_.begin(), ordered_.end(), [](const Held* one, const Held* next) {
                   return one->holder == next->holder;
               }) == ordered_.end();
    }
    // Null where it is not there.
    const Holding* find(const Holder& holder) const {
        const auto found =
            std::lower_bound(ordered_.begin(), ordered_.end(), holder,
                             [](const Held* one, const Holder& sought) { return order(one->holder) < order(sought); });
        return found != ordered_.end() && (*found)->holder == holder ? &(*found)->holding : nullptr;
    }

  private:
    static std::tuple<HolderKind, std::int64_t, std::int64_t> order(const Holder& holder) {
        return {holder.kind, holder.number, holder.group};
    }

    std::vector<const Held*> ordered_;
};

// One for all calls: whoever asks holds Python's lock.
Seen seen;

std::size_t room(Span ids) {
    std::size_t most = 0;
    for (std::uint32_t at = 0; at < ids.count; ++at) {
        most = std::max(most, static_cast<std::size_t>(ids[at]) + 1);
    }
    return most;
}

// Each area stands in one of the others, which are held.
bool covered(const RowsSpan& areas, const std::vector<RowsSpan>& others) {
    std::size_t limit = 0;
    for (const RowsSpan& other : others) {
        limit = std::max(limit, room(other.ids));
    }
    std::vector<std::uint32_t> rows(others.size());  // of each, its row of the layer, or of a later one
    for (std::uint32_t row = 0; row < areas.rows(); ++row) {
        seen.begin(limit);
        for (std::size_t of = 0; of < others.size(); ++of) {
            const RowsSpan& other = others[of];
            while (rows[of] < other.rows() && other.layers[rows[of]] < areas.layers[row]) {
                ++rows[of];
            }
            if (rows[of] < other.rows() && other.layers[rows[of]] == areas.layers[row]) {
                const Span ids = other.row(rows[of]);
                for (std::uint32_t at = 0; at < ids.count; ++at) {
                    seen.set(ids[at]);
                }
            }
        }
        const Span ids = areas.row(row);
        for (std::uint32_t at = 0; at < ids.count; ++at) {
            if (!seen.has(ids[at])) {
                return false;
            }
        }
    }
    return true;
}

bool is(const Holding& holding, const Rows& areas, const Ids& sources, const std::vector<std::int64_t>& rows) {
    return holding.areas == areas && holding.sources == sources && holding.rows == rows;
}

// A restart of the producer makes one table of two, which changes their order.
bool same_blocks(const Ids& one, const Ids& other) {
    if (one == other) {
        return true;
    }
    std::vector<std::int32_t> first(one.begin(), one.end()), second(other.begin(), other.end());
    std::sort(first.begin(), first.end());
    std::sort(second.begin(), second.end());
    return first == second;
}

// What one request holds.
class RequestHeld {
  public:
    RequestHeld(const Machine& machine, const Request& request)
        : pool_(machine.pool), request_(request), holders_(request.held) {}

    bool as_made() const {
        return holders_.apart() && views() && operations() && tail() && fences() && owner() && closed();
    }

  private:
    bool views() const {
        std::int64_t last = 0;
        for (const View& view : request_.views) {
            const Holding* held = holders_.find({HolderKind::view, view.generation});
            if (view.generation <= last || held == nullptr || !is(*held, view.physical, {}, {view.row})) {
                return false;
            }
            last = view.generation;
        }
        return last < request_.next_generation && (request_.current == 0 || request_.view() != nullptr);
    }
    bool operations() const {
        std::vector<std::int64_t> numbers;
        const auto number = [&numbers](const OpenOperation& open) { numbers.push_back(open.operation.id); };
        for (const Lane* lane : {&request_.upload, &request_.retain, &request_.store}) {
            if (lane->open) {
                number(*lane->open);
            }
        }
        std::for_each(request_.settling.begin(), request_.settling.end(), number);
        std::sort(numbers.begin(), numbers.end());
        if (std::adjacent_find(numbers.begin(), numbers.end()) != numbers.end() ||
            (!numbers.empty() && numbers.back() >= pool_.next_operation_id)) {
            return false;
        }
        return lane(request_.upload, LaneName::upload) && lane(request_.retain, LaneName::retain) &&
               lane(request_.store, LaneName::store) &&
               std::all_of(request_.settling.begin(), request_.settling.end(),
                           [this](const OpenOperation& open) { return in_flight(open) != nullptr; });
    }
    bool lane(const Lane& lane, LaneName name) const {
        const Phase phase = lane.phase;
        if (lane.open.has_value() != (phase != Phase::idle && phase != Phase::selected)) {
            return false;
        }
        if (!lane.open || phase == Phase::published || phase == Phase::committed || phase == Phase::retired) {
            return true;
        }
        const OpenOperation& open = *lane.open;
        if (open.lane != name || (name != LaneName::store && !new_generation(open.generation))) {
            return false;
        }
        if (name == LaneName::upload && phase == Phase::planned) {  // nothing is leased yet
            return true;
        }
        const Holding* read = in_flight(open);
        if (read == nullptr || name == LaneName::store) {
            return read != nullptr;
        }
        const View* base = request_.view();  // whose generation stays while the lane is under way
        return covered(open.table.span(), {base == nullptr ? RowsSpan() : base->physical.span(), read->areas.span(),
                                           open.destination.span()});
    }
    bool new_generation(std::int64_t generation) const {
        return generation < request_.next_generation &&
               (request_.views.empty() || request_.views.back().generation < generation);
    }
    // What is held for it to be read; null where that or what it writes is not as it began.
    const Holding* in_flight(const OpenOperation& open) const {
        const Holding* written = holders_.find({HolderKind::dst, open.operation.id});
        const Holding* read = holders_.find({HolderKind::src, open.operation.id});
        if (written == nullptr || read == nullptr || !read->rows.empty()) {
            return nullptr;
        }
        const bool well = open.lane == LaneName::store
                              ? is(*written, {}, open.stored_to, {})
                              : is(*written, open.destination, {}, {open.row}) &&
                                    read->areas.span().same_shape(open.adopted.span());
        return well ? read : nullptr;
    }
    bool tail() const {
        std::int64_t last = hole;
        for (const TailBlock& block : request_.tail) {
            if (block.logical <= last) {
                return false;
            }
            last = block.logical;
            for (std::size_t group = 0; group < block.physical.size(); ++group) {
                if (block.physical[group] == hole) {
                    continue;
                }
                const Holder holder{HolderKind::tail, block.logical, static_cast<std::int64_t>(group)};
                const Holding* held = holders_.find(holder);
                const auto physical = static_cast<std::int32_t>(block.physical[group]);
                if (held == nullptr || !is(*held, block_areas(pool_.layout, group, {physical}), {}, {})) {
                    return false;
                }
            }
        }
        return true;
    }
    bool fences() const {
        std::int64_t last = 0;
        for (const std::int64_t fence : request_.fences) {
            if (fence <= last || holders_.find({HolderKind::fence, fence}) == nullptr) {
                return false;
            }
            last = fence;
        }
        return last < request_.next_fence;
    }
    bool owner() const {
        const Holding* held = holders_.find({HolderKind::owner});
        const Ids sources = blocks_of(request_.source, request_.stale);
        return held == nullptr ? sources.empty()
                               : held->areas == Rows() && held->rows.empty() && same_blocks(held->sources, sources);
    }
    bool closed() const {
        const bool open = request_.upload.open || request_.retain.open || request_.store.open;
        return request_.life != Life::closed || (!open && request_.held.empty());
    }

    const Pool& pool_;
    const Request& request_;
    Holders holders_;
};

// Numbers that come next are new.
bool prefixes_apart(const Machine& machine) {
    const Pool& pool = machine.pool;
    const std::vector<Held>& held = machine.relation.pool_held();
    const auto numbered = [&pool](const Held& one) {
        return one.holder.kind == HolderKind::prefix && one.holder.number < pool.next_prefix;
    };
    const auto in_disorder = [](const Prefix& one, const Prefix& next) { return one.number >= next.number; };
    return Holders(held).apart() && std::all_of(held.begin(), held.end(), numbered) &&
           std::adjacent_find(pool.prefixes.begin(), pool.prefixes.end(), in_disorder) == pool.prefixes.end() &&
           (pool.prefixes.empty() || pool.prefixes.back().number < pool.next_prefix);
}

}  // namespace

bool held_as_made(const Machine& machine) {
    return prefixes_apart(machine) &&
           std::all_of(machine.requests.begin(), machine.requests.end(), [&machine](const auto& request) {
               return RequestHeld(machine, *request).as_made();
           });
}

}  // namespace kvsweep::fold
