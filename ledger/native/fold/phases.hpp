// The tables of kvsweep.ledger.phases, line by line: a test holds them against each other. A missing line is the error.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fact.hpp"
#include "state.hpp"
#include "words.hpp"

namespace kvsweep::fold {

template <class State>
struct Move {
    State from;
    Tag event;
    State to;
};

constexpr Move<Life> life_moves[] = {
    {Life::fresh, Tag::request_opened, Life::running},
    {Life::running, Tag::request_preempted, Life::preempted},
    {Life::preempted, Tag::request_resumed, Life::running},
    {Life::running, Tag::request_finished, Life::finishing},
    {Life::preempted, Tag::request_finished, Life::finishing},
    {Life::finishing, Tag::request_closed, Life::closed},
};

constexpr Move<Phase> upload_moves[] = {
    {Phase::idle, Tag::blocks_selected, Phase::selected},
    {Phase::selected, Tag::keep_map_published, Phase::published},
    {Phase::published, Tag::upload_acknowledged, Phase::idle},
    {Phase::selected, Tag::upload_planned, Phase::planned},
    {Phase::planned, Tag::blocks_leased, Phase::leased},
    {Phase::leased, Tag::transfer_started, Phase::moving},
    {Phase::moving, Tag::rank_transferred, Phase::moving},
    {Phase::moving, Tag::transfer_completed, Phase::moved},
    {Phase::moved, Tag::residency_committed, Phase::committed},
    {Phase::committed, Tag::upload_acknowledged, Phase::idle},
    {Phase::moving, Tag::upload_aborted, Phase::idle},
    {Phase::moved, Tag::upload_aborted, Phase::idle},
};

constexpr Move<Phase> retain_moves[] = {
    {Phase::idle, Tag::retain_planned, Phase::planned},
    {Phase::planned, Tag::readers_drained, Phase::applying},
    {Phase::applying, Tag::tables_applied, Phase::applying},
    {Phase::applying, Tag::all_ranks_applied, Phase::applied},
    {Phase::applied, Tag::owners_committed, Phase::committed},
    {Phase::committed, Tag::blocks_retired, Phase::retired},
    {Phase::retired, Tag::retain_acknowledged, Phase::idle},
    {Phase::planned, Tag::retain_aborted, Phase::idle},
    {Phase::applying, Tag::retain_aborted, Phase::idle},
    {Phase::applied, Tag::retain_aborted, Phase::idle},
};

constexpr Move<Phase> store_moves[] = {
    {Phase::idle, Tag::store_started, Phase::moving},
    {Phase::moving, Tag::rank_stored, Phase::moving},
    {Phase::moving, Tag::store_completed, Phase::idle},
    {Phase::moving, Tag::store_aborted, Phase::idle},
};

// ---- the same, to look up

constexpr std::size_t tags = 66;  // one more than the highest

// One machine: where an event leads from each phase.
template <class State>
class Table {
  public:
    template <std::size_t lines>
    constexpr explicit Table(const Move<State> (&moves)[lines]) {
        for (const Move<State>& move : moves) {
            Row& row = rows_[static_cast<std::size_t>(move.event)];
            row.known = true;
            row.after[static_cast<std::size_t>(move.from)] = static_cast<std::uint8_t>(static_cast<int>(move.to) + 1);
        }
    }

    // Whether the event is of the machine's alphabet. Another one does not move it and is legal in each phase.
    constexpr bool knows(Tag event) const { return row(event).known; }
    constexpr bool takes(State from, Tag event) const { return row(event).after[static_cast<std::size_t>(from)] != 0; }
    constexpr State next(State from, Tag event) const {
        return static_cast<State>(row(event).after[static_cast<std::size_t>(from)] - 1);
    }

  private:
    static constexpr std::size_t phases = 11;  // of a lane; a life has fewer
    struct Row {
        bool known = false;
        std::array<std::uint8_t, phases> after{};  // by phase: one more than the next one; 0: illegal
    };
    constexpr const Row& row(Tag event) const { return rows_[static_cast<std::size_t>(event)]; }

    std::array<Row, tags> rows_{};
};

constexpr Table<Life> life_table(life_moves);
constexpr Table<Phase> upload_table(upload_moves);
constexpr Table<Phase> retain_table(retain_moves);
constexpr Table<Phase> store_table(store_moves);

// Calls (machine, from, number of the event's tag, to), in words, for each line of each table.
template <class Call>
void each_move(Call call) {
    const auto lines = [&call](std::string_view machine, const auto& moves, const auto& words) {
        for (const auto& move : moves) {
            call(machine, word_of(words, move.from), static_cast<int>(move.event), word_of(words, move.to));
        }
    };
    lines("life", life_moves, life_words);
    lines("upload", upload_moves, phase_words);
    lines("retain", retain_moves, phase_words);
    lines("store", store_moves, phase_words);
}

}  // namespace kvsweep::fold
