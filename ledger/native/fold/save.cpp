#include "../sink.hpp"
#include "snapshot.hpp"
#include "words.hpp"

namespace kvsweep::fold {
namespace {

// Writes what msgspec would: structs with names as maps, those without as arrays.
class Out {
  public:
    std::string bytes;

    // ---- what ledger/native/sink.hpp writes to
    void put(const void* from, std::size_t size) { bytes.append(static_cast<const char*>(from), size); }
    template <class T>
    void big_endian(std::uint8_t head, T value) {
        std::uint8_t all[1 + sizeof(T)];
        ledger::write_head(all, head, value);
        put(all, sizeof all);
    }
    void byte(std::uint8_t value) { bytes.push_back(static_cast<char>(value)); }

    // ---- values
    void array(std::size_t items) { ledger::put_array(*this, static_cast<std::int64_t>(items)); }
    void map(std::size_t items) {
        if (items < 16) {
            byte(static_cast<std::uint8_t>(0x80 | items));
        } else {
            big_endian(0xde, static_cast<std::uint16_t>(items));
        }
    }
    void nil() { byte(0xc0); }
    void value(std::int64_t number) { ledger::put_integer(*this, number); }
    void value(std::string_view text) {
        const std::size_t size = text.size();
        if (size < 32) {
            byte(static_cast<std::uint8_t>(0xa0 | size));
        } else if (size <= 0xff) {
            big_endian(0xd9, static_cast<std::uint8_t>(size));
        } else if (size <= 0xffff) {
            big_endian(0xda, static_cast<std::uint16_t>(size));
        } else {
            big_endian(0xdb, static_cast<std::uint32_t>(size));
        }
        put(text.data(), size);
    }
    void value(const std::string& text) { value(std::string_view(text)); }
    void value(const Ids& ids) {
        const Span span = ids.span();
        ledger::put_bytes(*this, reinterpret_cast<const char*>(span.data), static_cast<std::int64_t>(span.bytes()));
    }
    void value(const Rows& rows) {
        array(3);
        value(rows.layers);
        value(rows.row_ptr);
        value(rows.ids);
    }
    void value(const Pair& pair) {
        array(2);
        value(pair.first);
        value(pair.second);
    }
    void value(const std::pair<std::int64_t, Outcome>& pair) {
        array(2);
        value(pair.first);
        value(word_of(outcome_words, pair.second));
    }
    void value(const Key& key) {
        array(2);
        value(key.id);
        value(key.epoch);
    }
    template <class Items>
    void list(const Items& items) {
        array(items.size());
        for (const auto& item : items) {
            value(item);
        }
    }

    // ---- fields of a map
    template <class Value>
    void field(std::string_view name, const Value& of) {
        value(name);
        value(of);
    }
    template <class Items>
    void fields(std::string_view name, const Items& items) {
        value(name);
        list(items);
    }
    void name(std::string_view text) { value(text); }
};

class Saver {
  public:
    explicit Saver(Out& out) : out_(out) {}

    void pool(const Pool& pool) {
        out_.map(11);
        out_.field("seq", pool.seq);
        out_.name("run");
        out_.put(pool.run.data(), pool.run.size());
        out_.field("pool_generation", pool.pool_generation);
        out_.fields("ranks", pool.ranks);
        out_.fields("lost", pool.lost);
        out_.field("producer_epoch", pool.producer_epoch);
        out_.field("next_operation_id", pool.next_operation_id);
        out_.fields("closed", pool.closed);
        out_.field("epoch_floor", pool.epoch_floor);
        out_.name("prefixes");
        out_.array(pool.prefixes.size());
        for (const Prefix& prefix : pool.prefixes) {
            out_.map(5);
            out_.field("number", prefix.number);
            out_.field("key", prefix.key);
            out_.field("logical", prefix.logical);
            out_.fields("physical", prefix.physical);
            out_.field("source", prefix.source);
        }
        out_.field("next_prefix", pool.next_prefix);
    }

    void request(const Request& request) {
        key_ = &request.key;
        out_.map(22);
        out_.field("key", request.key);
        out_.field("seq", request.seq);
        out_.field("life", word_of(life_words, request.life));
        out_.field("rows", request.rows);
        out_.field("map_revision", request.map_revision);
        out_.field("selection_revision", request.selection_revision);
        out_.name("selected");
        out_.array(2);
        out_.value(request.selected_key);
        out_.value(request.selected_digest);
        out_.field("next_generation", request.next_generation);
        out_.field("next_fence", request.next_fence);
        out_.field("current", request.current);
        out_.name("views");
        out_.array(request.views.size());
        for (const View& view : request.views) {
            this->view(view);
        }
        lane("upload", request.upload);
        lane("retain", request.retain);
        lane("store", request.store);
        out_.name("settling");
        out_.array(request.settling.size());
        for (const OpenOperation& one : request.settling) {
            open(one);
        }
        out_.name("tail");
        out_.array(request.tail.size());
        for (const TailBlock& block : request.tail) {
            out_.map(3);
            out_.field("logical", block.logical);
            out_.fields("physical", block.physical);
            out_.field("phase", word_of(tail_words, block.phase));
        }
        out_.fields("fences", request.fences);
        out_.field("source", request.source);
        out_.field("stale", request.stale);
        out_.field("whole_blocks", request.whole_blocks);
        out_.name("keep_map");
        if (request.keep_map) {
            out_.map(3);
            out_.field("selection_revision", request.keep_map->selection_revision);
            out_.field("map_revision", request.keep_map->map_revision);
            out_.field("keep", request.keep_map->keep);
        } else {
            out_.nil();
        }
        out_.name("commands");
        out_.array(request.commands.size());
        for (const auto& command : request.commands) {
            out_.map(4);
            out_.field("key", command->key);
            out_.field("what", command->what);
            operation(command->operation);
            out_.field("aborted", command->aborted);
        }
    }

    void held(const Key& key, const std::vector<Held>& held) {
        out_.array(2);
        out_.value(key);
        out_.array(held.size());
        for (const auto& [holder, holding] : held) {
            out_.array(2);
            out_.array(3);
            out_.value(word_of(holder_words, holder.kind));
            out_.value(holder.number);
            out_.value(holder.group);
            out_.array(3);
            out_.value(holding.areas);
            out_.value(holding.sources);
            out_.list(holding.rows);
        }
    }

  private:
    void operation(const Operation& operation) {
        out_.name("operation");
        out_.array(4);
        out_.value(*key_);
        out_.value(operation.id);
        out_.value(operation.pool_generation);
        out_.value(operation.map_revision);
    }

    void view(const View& view) {
        out_.map(5);
        out_.field("generation", view.generation);
        out_.field("logical", view.logical);
        out_.field("physical", view.physical);
        out_.field("row", view.row);
        out_.name("replaced_by");
        if (view.replaced_by) {
            out_.value(word_of(cause_words, *view.replaced_by));
        } else {
            out_.nil();
        }
    }

    void lane(std::string_view name, const Lane& lane) {
        out_.name(name);
        out_.map(3);
        out_.field("phase", word_of(phase_words, lane.phase));
        out_.name("open");
        if (lane.open) {
            open(*lane.open);
        } else {
            out_.nil();
        }
        out_.name("closed");
        if (lane.closed) {
            out_.map(2);
            operation(lane.closed->operation);
            out_.fields("outcomes", lane.closed->outcomes);
        } else {
            out_.nil();
        }
    }

    void open(const OpenOperation& one) {
        out_.map(17);
        operation(one.operation);
        out_.field("lane", word_of(lane_words, one.lane));
        out_.field("generation", one.generation);
        out_.fields("ranks", one.ranks);
        out_.fields("outcomes", one.outcomes);
        out_.field("kind", word_of(plan_words, one.kind));
        out_.field("mode", word_of(mode_words, one.mode));
        out_.field("attention", word_of(attention_words, one.attention));
        out_.field("logical", one.logical);
        out_.field("destination", one.destination);
        out_.field("adopted", one.adopted);
        out_.field("table", one.table);
        out_.field("table_logical", one.table_logical);
        out_.field("row", one.row);
        out_.field("replaced", one.replaced);
        out_.field("stored", one.stored);
        out_.field("stored_to", one.stored_to);
    }

    Out& out_;
    const Key* key_ = nullptr;  // of the request that is being written
};

bool owns_any(const Request& request) {
    for (const Ids& ids : request.own) {
        if (!ids.empty()) {
            return true;
        }
    }
    return false;
}

}  // namespace

std::string save(const Machine& machine) {
    Out out;
    Saver saver(out);
    out.array(6);
    saver.pool(machine.pool);
    out.array(machine.requests.size());
    std::size_t holding = machine.relation.pool_held().empty() ? 0 : 1, owning = 0;
    for (const auto& request : machine.requests) {
        out.array(2);
        out.value(request->key.id);
        saver.request(*request);
        holding += request->held.empty() ? 0 : 1;
        owning += owns_any(*request) ? 1 : 0;
    }
    out.array(holding);
    if (!machine.relation.pool_held().empty()) {
        saver.held(Key{pool_stream, 0}, machine.relation.pool_held());
    }
    for (const auto& request : machine.requests) {
        if (!request->held.empty()) {
            saver.held(request->key, request->held);
        }
    }
    out.array(owning);
    for (const auto& request : machine.requests) {
        if (owns_any(*request)) {
            out.array(2);
            out.value(request->key);
            out.list(request->own);
        }
    }
    out.list(machine.relation.shared());
    out.value(machine.relation.shared_sources());
    return std::move(out.bytes);
}

}  // namespace kvsweep::fold
