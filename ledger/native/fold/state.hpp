// State of the core, as kvsweep.ledger.state has it, in values that are changed in place: what a fold of facts gives.
// Every name means what it means there.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "buffer.hpp"

namespace kvsweep::fold {

constexpr std::size_t closed_kept = 1024;
constexpr std::size_t prefixes_kept = 4096;
constexpr std::size_t commands_kept = 64;

// ---- words

enum class Life : std::uint8_t { fresh, running, preempted, finishing, closed };
enum class Phase : std::uint8_t {
    idle, selected, planned, leased, moving, moved, committed, published,  // upload (and store: idle, moving)
    applying, applied, retired,                                             // retain has planned and committed too
};
enum class LaneName : std::uint8_t { upload, retain, store };
enum class PlanKind : std::uint8_t { diff, full };
enum class SourceKind : std::uint8_t { source_only, copy };
enum class RetainMode : std::uint8_t { shared, layer, move, pack };
enum class Attention : std::uint8_t { same, joined };  // joined is "union" in words
enum class Outcome : std::uint8_t { completed, failed, cancelled, epoch_ended };
enum class RetireCause : std::uint8_t { upload, retain, preempt, finish };
enum class TailPhase : std::uint8_t { open, dirty, clean, lost };
enum class HolderKind : std::uint8_t { dst, fence, owner, prefix, src, tail, view };  // in the order of their words

// ---- identities

struct Key {
    std::string id;
    std::int64_t epoch = 0;
    bool operator==(const Key&) const = default;
};

// Of one request's stream; the request itself is known where it stands.
struct Operation {
    std::int64_t id = 0, pool_generation = 0, map_revision = 0;
    bool operator==(const Operation&) const = default;
};

using Pair = std::pair<std::int64_t, std::int64_t>;  // (rank, process epoch)
using RankEpochs = std::vector<Pair>;

// ---- what a request has

struct View {
    std::int64_t generation = 0;
    Rows logical, physical;
    std::int64_t row = hole;
    std::optional<RetireCause> replaced_by;
};

struct OpenOperation {
    Operation operation;
    LaneName lane = LaneName::upload;
    std::int64_t generation = 0;
    RankEpochs ranks;
    std::vector<std::pair<std::int64_t, Outcome>> outcomes;  // by rank
    PlanKind kind = PlanKind::diff;
    RetainMode mode = RetainMode::layer;
    Attention attention = Attention::same;
    Rows logical, destination, adopted, table, table_logical;
    std::int64_t row = hole;
    std::int64_t replaced = 0;
    Ids stored, stored_to;
};

struct ClosedOperation {
    Operation operation;
    std::vector<std::pair<std::int64_t, Outcome>> outcomes;
};

struct Lane {
    Phase phase = Phase::idle;
    std::optional<OpenOperation> open;
    std::optional<ClosedOperation> closed;
};

struct TailBlock {
    std::int64_t logical = 0;
    std::vector<std::int64_t> physical;  // one a group; hole where the group has dropped it
    TailPhase phase = TailPhase::open;
};

struct KeepMap {
    std::int64_t selection_revision = 0, map_revision = 0;
    Rows keep;
};

// What Python was given for a value that does not change any more. A copy of the value is another one.
class Shown {
  public:
    Shown() = default;
    Shown(const Shown&) {}
    Shown& operator=(const Shown&) {
        Py_CLEAR(object_);
        return *this;
    }
    ~Shown() { Py_XDECREF(object_); }

    explicit operator bool() const { return object_ != nullptr; }
    PyObject* object() const { return object_; }
    void keep(PyObject* object) const { Py_XSETREF(object_, Py_NewRef(object)); }

  private:
    mutable PyObject* object_ = nullptr;
};

struct Remembered {
    std::string key, what;
    Operation operation;
    std::string aborted;
    Shown shown{};
};

struct Holder {
    HolderKind kind = HolderKind::view;
    std::int64_t number = 0, group = 0;
    bool operator==(const Holder&) const = default;
};

struct Holding {
    Rows areas;
    Ids sources;                     // CPU blocks
    std::vector<std::int64_t> rows;  // table rows
};

struct Held {
    Holder holder;
    Holding holding;
};

struct Request {
    Key key;
    std::int64_t seq = 0;
    Life life = Life::fresh;
    std::int64_t rows = 0, map_revision = 0, selection_revision = 0;
    std::string selected_key, selected_digest;
    std::int64_t next_generation = 1, next_fence = 1, current = 0;
    std::vector<View> views;
    Lane upload, retain, store;
    std::vector<OpenOperation> settling;
    std::vector<TailBlock> tail;
    std::vector<std::int64_t> fences;
    Ids source, stale;
    std::int64_t whole_blocks = 0;
    std::optional<KeepMap> keep_map;
    std::deque<std::shared_ptr<const Remembered>> commands;

    // The request's part of the relation: changed by `Relation` alone.
    std::vector<Held> held;
    std::vector<Ids> own;  // a list a group, ascending; empty where nothing is owned
    std::uint32_t relation = 0;  // another number whenever that part has changed

    // Since Python last looked: whether anything is another, and the relation's number then.
    bool changed = false;
    std::uint32_t relation_seen = 0;

    const View* view() const {
        for (const View& one : views) {
            if (one.generation == current) {
                return &one;
            }
        }
        return nullptr;
    }
    Lane& lane(LaneName name) { return name == LaneName::upload ? upload : name == LaneName::retain ? retain : store; }
    const Holding* holding(const Holder& holder) const {
        for (const Held& one : held) {
            if (one.holder == holder) {
                return &one.holding;
            }
        }
        return nullptr;
    }
    std::int32_t source_of(std::int64_t logical) const {
        return logical >= 0 && logical < source.count() ? source[static_cast<std::uint32_t>(logical)] : hole;
    }
};

// ---- the pool

struct Prefix {
    std::int64_t number = 0;
    std::string key;
    std::int64_t logical = 0;
    std::vector<std::int64_t> physical;
    std::int64_t source = 0;
};

struct Layer {
    std::int64_t group = 0;
    bool full = true;
    std::int64_t row_in_group = 0;  // its place among the layers of its group
};

// What the fold needs of a layout.
struct Layout {
    std::vector<Layer> layers;
    std::vector<std::vector<std::int32_t>> layers_of_group;
    Ids active;  // layers of kind full, as rows over them begin
    std::int64_t block_size = 0;

    std::size_t groups() const { return layers_of_group.size(); }
    bool is_active(std::int32_t layer) const {
        return layer >= 0 && static_cast<std::size_t>(layer) < layers.size() && layers[static_cast<std::size_t>(layer)].full;
    }
};

struct Pool {
    std::int64_t seq = 0;
    std::string run;  // the body of RunConfigured, without what did the work; empty while the pool is not configured
    Layout layout;
    std::vector<std::int64_t> device_blocks;  // pool size of each group
    std::int64_t cpu_full_blocks = 0, cpu_total_blocks = 0;

    std::int64_t pool_generation = 1;
    RankEpochs ranks;
    std::vector<std::int64_t> lost;
    std::int64_t producer_epoch = 0, next_operation_id = 1;
    std::deque<std::string> closed;
    std::int64_t epoch_floor = 0;
    std::vector<Prefix> prefixes;
    std::int64_t next_prefix = 1;

    bool configured() const { return !run.empty(); }
};

}  // namespace kvsweep::fold
