// Planning an upload: wanted and not held, filled up where one table serves every row.
//
// What is held becomes a bit an id; what is wanted passes where its bit is not set. A selection is ascending, and what
// passes then is too; another order goes through bits of its own. Bits are sized by the largest id of all three lists.
#include <algorithm>
#include <string>

#include "checks.hpp"
#include "core.hpp"
#include "sets.hpp"

namespace kvsweep {
namespace {

class Planner {
  public:
    Planner(const Rows& want, const Rows& tail, const Rows& held, std::int64_t limit, const DiffOut& out, Run run)
        : want_(want), tail_(tail), held_(held), out_(out), ops_(set_ops(run.isa)) {
        for (const auto& [name, rows] : {std::pair{"want", &want_}, {"tail", &tail_}, {"held", &held_}}) {
            check_rows(name, *rows);
            if (rows->rows != want.rows) {
                throw Refused(std::string(name) + ": expected as many rows as want");
            }
            const Bounds found = bounds(rows->ids, rows->count, run.isa);
            if (rows->count && (found.least < (rows == &held_ ? -1 : 0) || found.most >= limit)) {
                throw Refused(std::string(name) + ".ids: expected ids inside the sequence");
            }
            largest_ = std::max(largest_, found.most);
            holes_ = holes_ || found.least < 0;
        }
        words_ = (std::int64_t{largest_} + 64) / 64;
        present_ = words(0, words_);
        chosen_ = words(1, words_);
        isa_ = run.isa;
    }

    DiffSummary run(bool shared_table) {
        check_tail();
        base(true);
        if (!shared_table) {
            finish_ragged();
            return {false, 0, largest_};
        }
        std::int32_t common = most_new();
        const bool full = !fill(common, true);
        if (full) {
            base(false);
            common = most_new();
            fill(common, false);
        }
        spread(common);
        return {full, common, largest_};
    }

  private:
    void empty(std::uint64_t* bits) const { std::fill_n(bits, words_, std::uint64_t{0}); }

    static void add(const Rows& rows, std::int64_t row, std::uint64_t* bits) {
        set_bits(rows.row(row), rows.size(row), bits);
    }

    static void refuse_twice(const char* name, bool twice) {
        if (twice) {
            throw Refused(std::string(name) + ".ids: expected each id once in a row");
        }
    }

    void check_tail() {
        for (std::int64_t row = 0; row < tail_.rows; ++row) {
            if (tail_.size(row)) {
                empty(present_);
                add(tail_, row, present_);
                refuse_twice("tail", ops_.count(present_, words_) != tail_.size(row));
            }
        }
    }

    // What each row uploads before padding, ascending, one row after another in upload_ids: want without held, or want.
    void base(bool without_held) {
        std::int64_t written = 0;
        for (std::int64_t row = 0; row < want_.rows; ++row) {
            empty(present_);
            if (without_held) {
                add_held(row);
                refuse_twice("held", ops_.count(present_, words_) + holes_in(row) != held_.size(row));
            }
            const std::int32_t* wanted = want_.row(row);
            const std::int64_t size = want_.size(row);
            std::int32_t* to = out_.upload_ids + written;
            std::int64_t left = 0;
            if (ascending(wanted, size, isa_)) {
                left = ops_.absent(wanted, size, present_, to, out_.capacity - written);
            } else {
                empty(chosen_);
                set_bits(wanted, size, chosen_);
                refuse_twice("want", ops_.count(chosen_, words_) != size);
                for (std::int64_t word = 0; word < words_; ++word) {
                    chosen_[word] &= ~present_[word];
                }
                left = ops_.emit(chosen_, words_, to, out_.capacity - written);
            }
            out_.new_per_row[row] = static_cast<std::int32_t>(left);
            written += left;
        }
    }

    void add_held(std::int64_t row) {
        if (!holes_) {
            add(held_, row, present_);
            return;
        }
        for (std::int64_t at = 0; at < held_.size(row); ++at) {
            const std::int32_t id = held_.row(row)[at];
            if (id >= 0) {
                set_bits(&id, 1, present_);
            }
        }
    }

    std::int64_t holes_in(std::int64_t row) const {
        return holes_ ? std::count(held_.row(row), held_.row(row) + held_.size(row), -1) : 0;
    }

    std::int32_t most_new() const {
        return want_.rows ? *std::max_element(out_.new_per_row, out_.new_per_row + want_.rows) : 0;
    }

    void finish_ragged() {
        out_.upload_ptr[0] = 0;
        for (std::int64_t row = 0; row < want_.rows; ++row) {
            out_.upload_ptr[row + 1] = out_.upload_ptr[row] + out_.new_per_row[row];
            out_.unfilled_per_row[row] = 0;
        }
        std::fill_n(out_.pad_ptr, want_.rows + 1, 0);
    }

    // Padding of each row in rank order, one row after another in pad_ids. False where a tail is too short; with
    // held out of the way (a full plan) it goes on and says what stays unfilled.
    bool fill(std::int32_t common, bool without_held) {
        out_.pad_ptr[0] = 0;
        for (std::int64_t row = 0; row < want_.rows; ++row) {
            const std::int32_t need = common - out_.new_per_row[row];
            const std::int32_t found = need ? pads(row, need, without_held) : 0;
            if (found < need && without_held) {
                return false;
            }
            out_.pad_ptr[row + 1] = out_.pad_ptr[row] + found;
            out_.unfilled_per_row[row] = need - found;
        }
        return true;
    }

    std::int32_t pads(std::int64_t row, std::int32_t need, bool without_held) {
        empty(present_);
        add(want_, row, present_);
        if (without_held) {
            add_held(row);
        }
        std::int32_t* pad = out_.pad_ids + out_.pad_ptr[row];
        std::int32_t found = 0;
        const std::int32_t* candidates = tail_.row(row);
        for (std::int64_t at = 0; at < tail_.size(row) && found < need; ++at) {
            if (!has_bit(present_, candidates[at])) {
                pad[found++] = candidates[at];
            }
        }
        return found;
    }

    // From rows one after another to their final places, the padding sorted and merged in. Last row first: no row
    // moves down, so none is overwritten before it is read.
    void spread(std::int32_t common) {
        std::int64_t from = 0, to = 0;
        for (std::int64_t row = 0; row < want_.rows; ++row) {
            out_.upload_ptr[row] = static_cast<std::int32_t>(to);
            from += out_.new_per_row[row];
            to += common - out_.unfilled_per_row[row];
        }
        out_.upload_ptr[want_.rows] = static_cast<std::int32_t>(to);
        for (std::int64_t row = want_.rows; row-- > 0;) {
            const std::int32_t size = out_.new_per_row[row];
            from -= size;
            std::int32_t* upload = out_.upload_ids + out_.upload_ptr[row];
            const std::int32_t* base = out_.upload_ids + from;
            const std::int64_t padding = std::int64_t{out_.pad_ptr[row + 1]} - out_.pad_ptr[row];
            if (padding == 0) {
                std::copy_backward(base, base + size, upload + size);
                continue;
            }
            std::int32_t* pad = out_.pad_ids + out_.pad_ptr[row];
            empty(chosen_);
            set_bits(pad, padding, chosen_);
            ops_.emit(chosen_, words_, pad, padding);
            set_bits(base, size, chosen_);
            ops_.emit(chosen_, words_, upload, size + padding);
        }
    }

    const Rows &want_, &tail_, &held_;
    const DiffOut& out_;
    const SetOps& ops_;
    std::int32_t largest_ = -1;
    bool holes_ = false;
    std::int64_t words_ = 0;
    Isa isa_ = Isa::scalar;
    std::uint64_t *present_ = nullptr, *chosen_ = nullptr;
};

}  // namespace

std::int64_t diff_capacity(const Rows& want, bool shared_table) {
    std::int64_t most = 0;
    for (std::int64_t row = 0; row < want.rows && shared_table; ++row) {
        most = std::max(most, want.size(row));
    }
    return shared_table ? most * want.rows : want.count;
}

DiffSummary plan_diff(const Rows& want, const Rows& tail, const Rows& held, std::int64_t limit, bool shared_table,
                      const DiffOut& out, Run run) {
    return Planner(want, tail, held, limit, out, run).run(shared_table);
}

}  // namespace kvsweep
