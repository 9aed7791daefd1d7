// Questions about ragged rows of ids, and sets of ids. What each means stands in kvsweep.ledger.ragged.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ids.hpp"

namespace kvsweep {

// Ids from here on are left to the reference: marks for them would take too much memory.
constexpr std::int32_t most_id = 1 << 24;

// Marks a bit an id; all are unset again when this ends.
class Marks {
  public:
    explicit Marks(std::int64_t limit);
    Marks(const Marks&) = delete;
    Marks& operator=(const Marks&) = delete;
    ~Marks();

    // Whether the id was set already.
    bool set(std::int32_t id) {
        std::uint64_t& word = words_[static_cast<std::size_t>(id >> 6)];
        const std::uint64_t bit = std::uint64_t{1} << (id & 63);
        const bool before = word & bit;
        word |= bit;
        return before;
    }
    bool has(std::int32_t id) const { return words_[static_cast<std::size_t>(id >> 6)] >> (id & 63) & 1; }
    void unset(const std::int32_t* from, const std::int32_t* to) {
        for (; from != to; ++from) {
            words_[static_cast<std::size_t>(*from >> 6)] = 0;
        }
    }
    std::int64_t count() const;
    // Writes the set ids plus `low`, ascending.
    std::int64_t emit(std::int32_t low, std::int32_t* out) const;

  private:
    std::vector<std::uint64_t>& words_;
    std::size_t count_;
};

// Whether layers are ascending from 0 on, and row pointers one more than them, from 0 ascending to the number of ids.
bool rows_fit(const Ids& layers, const Ids& ptr, const Ids& ids);

// The row of the first offence, or -1.
std::int64_t first_unsorted(const Ragged& rows);
std::int64_t first_outside(const Ragged& rows, std::int64_t limit);
// `ends` are the row pointers of as many rows: an id is below the number of ids in its row there.
std::int64_t first_beyond(const Ragged& rows, const Ids& ends);
std::int64_t first_repeated(const Ragged& rows);
std::int64_t first_common(const Ragged& first, const Ragged& second);

// Whether every id is in [0, most_id).
bool markable(const Ids& ids);

// The largest of ids from 0 on; -1 where there is none.
std::int32_t largest(const Ids& ids);

std::vector<std::int32_t> distinct(const std::vector<const Ids*>& parts);

// Row for row, the places in `rows` whose id is wanted. ends has rows + 1 places, slots as many as rows has ids.
std::int64_t slots_of(const Ragged& rows, const Ragged& wanted, std::int32_t* ends, std::int32_t* slots);
void join(const Ragged& first, const Ragged& second, std::int32_t* ends, std::int32_t* ids);
// The entries at these ids; false where one is negative, or an id is outside.
bool look_up(const Ids& table, const Ids& ids, std::int32_t* found);
// The ids at these slots, row for row; false where a slot is not in its row.
bool take(const Ragged& rows, const Ragged& slots, std::int32_t* ids);

}  // namespace kvsweep
