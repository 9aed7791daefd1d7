// The values of which states are made, as `load` reads them: whatever the fold would follow blindly is looked at.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "snapshot.hpp"
#include "wire.hpp"
#include "words.hpp"

namespace kvsweep::fold {

class Values {
  protected:
    Values(std::string_view body, Machine& machine) : in_(body), machine_(machine) {}

    // ---- values

    bool named(std::string_view name) {
        std::string_view found;
        return in_.text(found) && found == name;
    }
    bool counted(std::int64_t& value) { return in_.count(value) && value <= most_counted; }
    bool counted(std::string_view name, std::int64_t& value) { return named(name) && counted(value); }
    bool block(std::int64_t& value, std::int64_t blocks) { return in_.count(value) && value < blocks; }
    bool text(std::string& value) {
        std::string_view found;
        if (!in_.text(found)) {
            return false;
        }
        value = found;
        return true;
    }
    bool text(std::string_view name, std::string& value) { return named(name) && text(value); }
    template <class Enum, std::size_t size>
    bool word(std::string_view name, const std::string_view (&words)[size], Enum& value) {
        std::string_view found;
        return named(name) && in_.text(found) && meaning(words, found, value);
    }
    // Calls `read` for each item of a list.
    template <class Read>
    bool each(Read read) {
        std::uint32_t items = 0;
        if (!in_.array(items)) {
            return false;
        }
        for (; items != 0; --items) {
            if (!read()) {
                return false;
            }
        }
        return true;
    }
    template <class Read>
    bool each(std::string_view name, Read read) {
        return named(name) && each(read);
    }
    // Where a value may be missing: calls `read` where it is there.
    template <class Read>
    bool maybe(std::string_view name, Read read) {
        return named(name) && (in_.nil() || read());
    }
    bool key(Key& value) { return in_.array_of(2) && text(value.id) && counted(value.epoch); }
    bool own_key() {
        Key found;
        return key(found) && found == request_->key;
    }
    bool operation(Operation& value) {
        return named("operation") && in_.array_of(4) && own_key() && counted(value.id) &&
               counted(value.pool_generation) && counted(value.map_revision);
    }
    bool ranks(std::string_view name, RankEpochs& value) {
        return each(name, [&] {
            Pair& pair = value.emplace_back();
            return in_.array_of(2) && counted(pair.first) && counted(pair.second);
        });
    }
    bool outcomes(std::vector<std::pair<std::int64_t, Outcome>>& value) {
        return each("outcomes", [&] {
            auto& pair = value.emplace_back();
            std::string_view found;
            return in_.array_of(2) && counted(pair.first) && in_.text(found) &&
                   meaning(outcome_words, found, pair.second);
        });
    }
    // A table row, or none.
    bool row(std::int64_t& value) {
        return named("row") && in_.integer(value) && value >= hole && value <= most_counted;
    }

    // ---- ids

    static bool below(Span ids, std::int64_t blocks) {
        std::int32_t most = hole;
        for (std::uint32_t at = 0; at < ids.count; ++at) {
            most = ids[at] > most ? ids[at] : most;
        }
        return most < blocks;
    }
    bool ids(Ids& value) {
        Span found;
        if (!in_.ids(found)) {
            return false;
        }
        value = Ids(found);
        return true;
    }
    bool cpu_blocks(Ids& value) { return ids(value) && below(value.span(), machine_.pool.cpu_total_blocks); }
    // One a logical block, or none.
    bool cpu_table(Ids& value) {
        Span found;
        if (!in_.words(found) || !below(found, machine_.pool.cpu_total_blocks)) {
            return false;
        }
        for (std::uint32_t at = 0; at < found.count; ++at) {
            if (found[at] < hole) {
                return false;
            }
        }
        value = Ids(found);
        return true;
    }
    bool rows(Rows& value) {
        RowsSpan found;
        const std::vector<Layer>& layers = machine_.pool.layout.layers;
        if (!in_.rows(found) || !below(found.layers, static_cast<std::int64_t>(layers.size()))) {
            return false;
        }
        value = Rows(found);
        return true;
    }
    bool rows(std::string_view name, Rows& value) { return named(name) && rows(value); }
    // Device blocks, each inside the pool of its layer's group.
    bool areas(Rows& value) {
        if (!rows(value)) {
            return false;
        }
        const RowsSpan span = value.span();
        for (std::uint32_t at = 0; at < span.rows(); ++at) {
            const Span ids{span.ids.data + std::size_t{4} * span.begin(at), span.end(at) - span.begin(at)};
            const Layer& layer = machine_.pool.layout.layers[static_cast<std::size_t>(span.layers[at])];
            if (!below(ids, machine_.pool.device_blocks[static_cast<std::size_t>(layer.group)])) {
                return false;
            }
        }
        return true;
    }
    bool areas(std::string_view name, Rows& value) { return named(name) && areas(value); }
    // Where each slot's block is: as many as there are slots, in layers that have any.
    bool table(const Rows& logical, const Rows& physical) const {
        for (const std::int32_t layer : logical.layers) {
            if (!machine_.pool.layout.is_active(layer)) {
                return false;
            }
        }
        return logical.span().same_shape(physical.span());
    }
    // One a group; none in a group that has dropped its block, where that may be.
    bool physical(std::vector<std::int64_t>& value, bool may_lack) {
        const std::vector<std::int64_t>& pools = machine_.pool.device_blocks;
        return each("physical",
                    [&] {
                        std::int64_t& one = value.emplace_back();
                        return value.size() <= pools.size() && in_.integer(one) && one >= (may_lack ? hole : 0) &&
                               one < pools[value.size() - 1];
                    }) &&
               value.size() == pools.size();
    }

    Cursor in_;
    Machine& machine_;
    Request* request_ = nullptr;  // that is being read
};

}  // namespace kvsweep::fold
