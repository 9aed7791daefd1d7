#include <algorithm>

#include "load_values.hpp"

namespace kvsweep::fold {
namespace {

// Reads one state front to back.
class Loader : Values {
  public:
    Loader(std::string_view body, Machine& machine) : Values(body, machine) {}

    bool state() {
        return in_.array_of(6) && pool() && configure() && requests() && held() && own() && shared() && take_up() &&
               in_.left() == 0;
    }

  private:
    // ---- the pool

    bool pool() {
        Pool& pool = machine_.pool;
        return in_.map_of(11) && counted("seq", pool.seq) && named("run") && run() &&
               counted("pool_generation", pool.pool_generation) && ranks("ranks", pool.ranks) && each("lost", [&] {
                   return counted(pool.lost.emplace_back());
               }) &&
               counted("producer_epoch", pool.producer_epoch) && counted("next_operation_id", pool.next_operation_id) &&
               each("closed", [&] { return text(pool.closed.emplace_back()); }) &&
               counted("epoch_floor", pool.epoch_floor) && each("prefixes", [&] { return prefix(); }) &&
               counted("next_prefix", pool.next_prefix);
    }
    // RunConfigured, whose bytes are kept as they are.
    bool run() {
        Pool& pool = machine_.pool;
        const unsigned char* start = in_.at();
        std::uint32_t items = 0;
        std::int64_t number = 0;
        Key key;
        std::string_view unused;
        RankEpochs ranks;
        const auto pair = [&] {
            Pair& one = ranks.emplace_back();
            return in_.array_of(2) && in_.count(one.first) && in_.count(one.second);
        };
        const bool fine =
            in_.array(items) && (items == 10 || items == 11) && in_.count(number) &&
            number == static_cast<std::int64_t>(Tag::run_configured) && this->key(key) && in_.count(number) &&
            layout() && each(pair) && in_.count(number) &&
            each([&] {
                std::int64_t& blocks = pool.device_blocks.emplace_back();
                return in_.count(blocks) && blocks >= 1 && blocks <= most_blocks;
            }) &&
            in_.count(pool.cpu_full_blocks) && in_.count(pool.cpu_total_blocks) &&
            pool.cpu_total_blocks <= most_blocks && pool.cpu_full_blocks <= pool.cpu_total_blocks &&
            in_.text(unused) && (items == 10 || (in_.array(items) && items <= 1 && (items == 0 || in_.text(unused))));
        if (!fine || pool.device_blocks.size() != pool.layout.groups()) {
            return false;
        }
        pool.run.assign(reinterpret_cast<const char*>(start), static_cast<std::size_t>(in_.at() - start));
        return true;
    }
    bool layout() {
        constexpr std::string_view packings[] = {"natural", "vnni"};
        Layout& layout = machine_.pool.layout;
        std::string_view unused;
        std::uint32_t items = 0;
        int packing = 0;
        if (!in_.array(items) || items < 4 || items > 5 || !in_.text(unused) || !in_.text(unused) ||
            !in_.count(layout.block_size) || layout.block_size < 1 || !each([&] { return layer(); }) ||
            (items == 5 && !(in_.text(unused) && meaning(packings, unused, packing)))) {
            return false;
        }
        std::vector<std::int32_t> active;
        for (std::size_t at = 0; at < layout.layers.size(); ++at) {
            if (layout.layers[at].full) {
                active.push_back(static_cast<std::int32_t>(at));
            }
        }
        for (const std::vector<std::int32_t>& members : layout.layers_of_group) {
            if (members.empty()) {
                return false;
            }
        }
        layout.active = Ids::uninitialized(static_cast<std::uint32_t>(active.size()));
        std::copy(active.begin(), active.end(), layout.active.writable());
        return !active.empty();
    }
    bool layer() {
        constexpr std::int64_t most_layers = 1 << 16;
        constexpr std::string_view kinds[] = {"full", "sliding"};
        Layout& layout = machine_.pool.layout;
        std::uint32_t items = 0;
        std::int64_t number = 0, unused = 0;
        std::string_view found;
        int kind = 0;
        Layer layer;
        if (!in_.array(items) || items < 5 || items > 6 || !in_.count(number) ||
            number != static_cast<std::int64_t>(layout.layers.size()) || number == most_layers ||
            !block(layer.group, most_layers) || !in_.text(found) || !meaning(kinds, found, kind)) {
            return false;
        }
        for (; items != 3; --items) {
            if (!in_.count(unused)) {
                return false;
            }
        }
        layer.full = kind == 0;
        const auto group = static_cast<std::size_t>(layer.group);
        if (layout.layers_of_group.size() <= group) {
            layout.layers_of_group.resize(group + 1);
        }
        std::vector<std::int32_t>& members = layout.layers_of_group[group];
        layer.row_in_group = static_cast<std::int64_t>(members.size());
        members.push_back(static_cast<std::int32_t>(number));
        layout.layers.push_back(layer);
        return true;
    }
    bool prefix() {
        Prefix& prefix = machine_.pool.prefixes.emplace_back();
        return in_.map_of(5) && counted("number", prefix.number) && text("key", prefix.key) &&
               counted("logical", prefix.logical) && physical(prefix.physical, false) && named("source") &&
               block(prefix.source, machine_.pool.cpu_total_blocks);
    }
    bool configure() {
        const Pool& pool = machine_.pool;
        machine_.relation.configure(pool.layout, pool.device_blocks, pool.cpu_total_blocks);
        return true;
    }

    // ---- requests

    bool requests() {
        return each([&] {
            std::string_view id;
            auto made = std::make_unique<Request>();
            request_ = made.get();
            if (!in_.array_of(2) || !in_.text(id) || !request() || request_->key.id != id ||
                machine_.find(id) != nullptr) {
                return false;
            }
            machine_.add(std::move(made));
            return true;
        });
    }
    bool request() {
        Request& one = *request_;
        return in_.map_of(22) && named("key") && key(one.key) && counted("seq", one.seq) &&
               word("life", life_words, one.life) && counted("rows", one.rows) &&
               counted("map_revision", one.map_revision) && counted("selection_revision", one.selection_revision) &&
               named("selected") && in_.array_of(2) && text(one.selected_key) && text(one.selected_digest) &&
               counted("next_generation", one.next_generation) && counted("next_fence", one.next_fence) &&
               counted("current", one.current) && each("views", [&] { return view(); }) && lane("upload", one.upload) &&
               lane("retain", one.retain) && lane("store", one.store) &&
               each("settling", [&] { return open(one.settling.emplace_back()); }) &&
               each("tail", [&] { return tail_block(); }) &&
               each("fences", [&] { return counted(one.fences.emplace_back()); }) && named("source") &&
               cpu_table(one.source) && named("stale") && cpu_table(one.stale) &&
               counted("whole_blocks", one.whole_blocks) && maybe("keep_map", [&] { return keep_map(); }) &&
               each("commands", [&] { return command(); });
    }
    bool view() {
        View& view = request_->views.emplace_back();
        return in_.map_of(5) && counted("generation", view.generation) && rows("logical", view.logical) &&
               areas("physical", view.physical) && table(view.logical, view.physical) && row(view.row) &&
               maybe("replaced_by", [&] {
                   std::string_view found;
                   return in_.text(found) && meaning(cause_words, found, view.replaced_by.emplace());
               });
    }
    bool lane(std::string_view name, Lane& lane) {
        return named(name) && in_.map_of(3) && word("phase", phase_words, lane.phase) &&
               maybe("open", [&] { return open(lane.open.emplace()); }) && maybe("closed", [&] {
                   ClosedOperation& closed = lane.closed.emplace();
                   return in_.map_of(2) && operation(closed.operation) && outcomes(closed.outcomes);
               });
    }
    bool open(OpenOperation& one) {
        return in_.map_of(17) && operation(one.operation) && word("lane", lane_words, one.lane) &&
               counted("generation", one.generation) && ranks("ranks", one.ranks) && outcomes(one.outcomes) &&
               word("kind", plan_words, one.kind) && word("mode", mode_words, one.mode) &&
               word("attention", attention_words, one.attention) && rows("logical", one.logical) &&
               areas("destination", one.destination) && rows("adopted", one.adopted) && areas("table", one.table) &&
               rows("table_logical", one.table_logical) && table(one.table_logical, one.table) && row(one.row) &&
               counted("replaced", one.replaced) && named("stored") && ids(one.stored) && named("stored_to") &&
               cpu_blocks(one.stored_to) && one.stored.count() == one.stored_to.count();
    }
    bool tail_block() {
        TailBlock& block = request_->tail.emplace_back();
        return in_.map_of(3) && counted("logical", block.logical) && physical(block.physical, true) &&
               word("phase", tail_words, block.phase);
    }
    bool keep_map() {
        KeepMap& map = request_->keep_map.emplace();
        return in_.map_of(3) && counted("selection_revision", map.selection_revision) &&
               counted("map_revision", map.map_revision) && rows("keep", map.keep);
    }
    bool command() {
        auto one = std::make_shared<Remembered>();
        const bool fine = in_.map_of(4) && text("key", one->key) && text("what", one->what) &&
                          operation(one->operation) && text("aborted", one->aborted);
        request_->commands.push_back(std::move(one));
        return fine;
    }

    // ---- the relation

    // The request of a key that comes; none where it is the pool's.
    bool holder_of(Request*& found) {
        Key key;
        if (!this->key(key)) {
            return false;
        }
        found = key == Key{pool_stream, 0} ? nullptr : machine_.find(key.id);
        return found == nullptr ? key == Key{pool_stream, 0} : found->key == key;
    }
    bool held() {
        return each([&] {
            Request* request = nullptr;
            if (!in_.array_of(2) || !holder_of(request)) {
                return false;
            }
            std::vector<Held>& all = request == nullptr ? pool_held_ : request->held;
            return all.empty() && each([&] { return holding(all.emplace_back()); });
        });
    }
    bool holding(Held& one) {
        std::string_view kind;
        return in_.array_of(2) && in_.array_of(3) && in_.text(kind) && meaning(holder_words, kind, one.holder.kind) &&
               counted(one.holder.number) && counted(one.holder.group) && in_.array_of(3) &&
               areas(one.holding.areas) && cpu_blocks(one.holding.sources) &&
               each([&] { return counted(one.holding.rows.emplace_back()); });
    }
    bool by_group(std::vector<Ids>& value) {
        const std::vector<std::int64_t>& pools = machine_.pool.device_blocks;
        return each([&] {
            Ids& one = value.emplace_back();
            return value.size() <= pools.size() && ids(one) && below(one.span(), pools[value.size() - 1]);
        });
    }
    bool own() {
        return each([&] {
            Request* request = nullptr;
            return in_.array_of(2) && holder_of(request) && request != nullptr && request->own.empty() &&
                   by_group(request->own) && request->own.size() == machine_.pool.device_blocks.size();
        });
    }
    bool shared() {
        return by_group(shared_) && (shared_.empty() || shared_.size() == machine_.pool.device_blocks.size()) &&
               cpu_blocks(shared_sources_);
    }
    bool take_up() {
        for (const std::string& id : machine_.pool.closed) {
            const Request* request = machine_.find(id);
            if (request == nullptr || request->life != Life::closed) {
                return false;
            }
        }
        if (!machine_.relation.take_up_shared(std::move(shared_), std::move(shared_sources_)) ||
            !machine_.relation.take_up_pool(std::move(pool_held_))) {
            return false;
        }
        for (const auto& request : machine_.requests) {
            if (!machine_.relation.take_up(*request)) {
                return false;
            }
        }
        return held_as_made(machine_);
    }

    std::vector<Held> pool_held_;
    std::vector<Ids> shared_;
    Ids shared_sources_;
};

}  // namespace

bool load(std::string_view body, Machine& machine) { return Loader(body, machine).state(); }

}  // namespace kvsweep::fold
