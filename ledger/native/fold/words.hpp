// The words that events and snapshots have for the values of enums, in the order of those.
#pragma once

#include <cstddef>
#include <string_view>

#include "state.hpp"

namespace kvsweep::fold {

constexpr std::string_view life_words[] = {"NEW", "RUNNING", "PREEMPTED", "FINISHING", "CLOSED"};
constexpr std::string_view phase_words[] = {"IDLE",      "SELECTED",  "PLANNED",  "LEASED",  "MOVING", "MOVED",
                                            "COMMITTED", "PUBLISHED", "APPLYING", "APPLIED", "RETIRED"};
constexpr std::string_view lane_words[] = {"upload", "retain", "store"};
constexpr std::string_view plan_words[] = {"diff", "full"};
constexpr std::string_view source_words[] = {"source_only", "copy"};
constexpr std::string_view mode_words[] = {"shared", "layer", "move", "pack"};
constexpr std::string_view attention_words[] = {"same", "union"};
constexpr std::string_view outcome_words[] = {"completed", "failed", "cancelled", "epoch_ended"};
constexpr std::string_view cause_words[] = {"upload", "retain", "preempt", "finish"};
constexpr std::string_view tail_words[] = {"open", "dirty", "clean", "lost"};
constexpr std::string_view holder_words[] = {"dst", "fence", "owner", "prefix", "src", "tail", "view"};

template <class Value, std::size_t count>
constexpr std::string_view word_of(const std::string_view (&words)[count], Value value) {
    return words[static_cast<std::size_t>(value)];
}

// False where it is none of the words.
template <class Value, std::size_t count>
constexpr bool meaning(const std::string_view (&words)[count], std::string_view word, Value& value) {
    for (std::size_t at = 0; at < count; ++at) {
        if (words[at] == word) {
            value = static_cast<Value>(at);
            return true;
        }
    }
    return false;
}

}  // namespace kvsweep::fold
