// The Python edge: kvsweep.ledger._sets. What each function means stands in _sets.pyi; a refusal is a ValueError.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "areas.hpp"
#include "sets.hpp"

namespace nb = nanobind;

namespace kvsweep {
namespace {

nb::object bytes_of(const std::vector<std::int32_t>& ids) {
    return nb::steal(
        PyBytes_FromStringAndSize(reinterpret_cast<const char*>(ids.data()), static_cast<Py_ssize_t>(4 * ids.size())));
}

// The lists of a tuple or list of them.
class Parts {
  public:
    Parts(nb::handle parts, const char* argument) {
        for (nb::handle part : nb::iter(parts)) {
            ids_.emplace_back(part, argument);
            each_.push_back(&ids_.back());
        }
    }
    const std::vector<const Ids*>& each() const { return each_; }

  private:
    std::deque<Ids> ids_;
    std::vector<const Ids*> each_;
};

void expect_rows(const Ragged& one, const Ragged& other, const char* argument) {
    if (one.rows() != other.rows()) {
        Ids::refuse(argument, "as many rows as the first");
    }
}

bool bind_rows_fit(nb::handle layers, nb::handle ptr, nb::handle ids) {
    return rows_fit(Ids(layers, "layers"), Ids(ptr, "row_ptr"), Ids(ids, "ids"));
}

std::int64_t bind_unsorted(nb::handle ptr, nb::handle ids) { return first_unsorted(Ragged(ptr, ids, "rows")); }

std::int64_t bind_outside(nb::handle ptr, nb::handle ids, std::int64_t limit) {
    return first_outside(Ragged(ptr, ids, "rows"), limit);
}

std::int64_t bind_beyond(nb::handle ptr, nb::handle ids, nb::handle limits) {
    const Ragged rows(ptr, ids, "rows");
    const Ids ends(limits, "limits");
    if (ends.size() != rows.rows() + 1) {
        Ids::refuse("limits", "row pointers of as many rows");
    }
    return first_beyond(rows, ends);
}

// The entries of a table at these ids; None where one is negative, or an id is outside.
nb::object bind_look_up(nb::handle table, nb::handle ids) {
    const Ids known(table, "table"), wanted(ids, "ids");
    NewIds found(wanted.size());
    if (!look_up(known, wanted, found.data())) {
        return nb::none();
    }
    return found.take(wanted.size());
}

void expect_markable(const Ragged& rows, const char* argument) {
    if (!markable(rows.ids())) {
        Ids::refuse(argument, "ids from 0 on, below 2^24");
    }
}

std::int64_t bind_repeated(nb::handle ptr, nb::handle ids) {
    const Ragged rows(ptr, ids, "rows");
    expect_markable(rows, "rows");
    return first_repeated(rows);
}

std::int64_t bind_common(nb::handle ptr, nb::handle ids, nb::handle other_ptr, nb::handle other_ids) {
    const Ragged first(ptr, ids, "first"), second(other_ptr, other_ids, "second");
    expect_rows(first, second, "second");
    expect_markable(first, "first");
    expect_markable(second, "second");
    return first_common(first, second);
}

nb::object bind_distinct(nb::handle parts) { return bytes_of(distinct(Parts(parts, "parts").each())); }

nb::object bind_slots_of(nb::handle ptr, nb::handle ids, nb::handle wanted_ptr, nb::handle wanted_ids) {
    const Ragged rows(ptr, ids, "rows"), wanted(wanted_ptr, wanted_ids, "wanted");
    expect_rows(rows, wanted, "wanted");
    expect_markable(rows, "rows");
    expect_markable(wanted, "wanted");
    NewIds ends(rows.rows() + 1), slots(rows.size());
    const std::int64_t count = slots_of(rows, wanted, ends.data(), slots.data());
    return nb::make_tuple(ends.take(rows.rows() + 1), slots.take(count));
}

nb::object bind_join(nb::handle ptr, nb::handle ids, nb::handle other_ptr, nb::handle other_ids) {
    const Ragged first(ptr, ids, "first"), second(other_ptr, other_ids, "second");
    expect_rows(first, second, "second");
    NewIds ends(first.rows() + 1), joined(first.size() + second.size());
    join(first, second, ends.data(), joined.data());
    return nb::make_tuple(ends.take(first.rows() + 1), joined.take(first.size() + second.size()));
}

nb::object bind_take(nb::handle ptr, nb::handle ids, nb::handle slot_ptr, nb::handle slots) {
    const Ragged rows(ptr, ids, "rows"), wanted(slot_ptr, slots, "slots");
    expect_rows(rows, wanted, "slots");
    NewIds taken(wanted.size());
    if (!take(rows, wanted, taken.data())) {
        Ids::refuse("slots", "slots of their row");
    }
    return taken.take(wanted.size());
}

// A bytes object, or one that the caller changes in place.
class Bytes {
  public:
    Bytes(nb::handle object, const char* argument, bool written = false) {
        const int flags = PyBUF_SIMPLE | (written ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
            PyErr_Clear();
            Ids::refuse(argument, written ? "a bytearray" : "bytes");
        }
    }
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;
    ~Bytes() { PyBuffer_Release(&view_); }
    std::uint8_t* data() const { return static_cast<std::uint8_t*>(view_.buf); }
    std::int64_t size() const { return view_.len; }

  private:
    Py_buffer view_{};
};

// The three lists of a Rows object.
struct RowsOf {
    explicit RowsOf(nb::handle rows)
        : layers(rows.attr("layer_bytes"), "layers"), ids(rows.attr("row_ptr_bytes"), rows.attr("id_bytes"), "areas") {
        if (layers.size() != ids.rows()) {
            Ids::refuse("layers", "one a row of areas");
        }
    }
    Ids layers;
    Ragged ids;
};

// Rows objects, as areas of one group.
class AreasOf {
  public:
    AreasOf(nb::handle parts, const Ids& row_of_layer) {
        for (nb::handle part : nb::iter(parts)) {
            const RowsOf& rows = rows_.emplace_back(part);
            each_.push_back({row_of_layer, rows.layers, rows.ids});
        }
    }
    const std::vector<Areas>& each() const { return each_; }

  private:
    std::deque<RowsOf> rows_;
    std::vector<Areas> each_;
};

nb::object bytes_of(const std::vector<std::uint8_t>& held) {
    return nb::steal(
        PyBytes_FromStringAndSize(reinterpret_cast<const char*>(held.data()), static_cast<Py_ssize_t>(held.size())));
}

thread_local Counts scratch;

// The counts as they are, with the reserved blocks, ready to be changed.
Counts& opened(const Ids& blocks, const Bytes& held, const Ids& row_of_layer, const Ids& reserve, Place& at,
               bool& fine) {
    const std::int64_t rows = rows_of(row_of_layer);
    if (held.size() != rows * blocks.size()) {
        Ids::refuse("held", "a count for each block and row");
    }
    for (std::int64_t one = 1; one < blocks.size(); ++one) {
        if (blocks[one] <= blocks[one - 1]) {
            Ids::refuse("blocks", "ascending ids");
        }
    }
    fine = open(scratch, blocks, held.data(), rows, reserve, at);
    return scratch;
}

// (blocks, held, freed); or (layer, block), which one is wrong.
nb::object bind_change(nb::handle blocks, nb::handle held, nb::handle layer_row, nb::handle reserve, nb::handle more,
                       nb::handle less) {
    const Ids own(blocks, "blocks"), row_of_layer(layer_row, "row_of_layer"), fresh(reserve, "reserve");
    const Bytes counted(held, "held");
    const AreasOf added(more, row_of_layer), dropped(less, row_of_layer);
    Place at;
    bool fine = false;
    Counts& counts = opened(own, counted, row_of_layer, fresh, at, fine);
    if (!fine || !add(counts, added.each(), at) || !drop(counts, dropped.each(), at)) {
        return nb::make_tuple(at.layer, at.block);
    }
    const std::vector<std::int32_t> gone =
        dropped.each().empty() && fresh.size() == 0 ? std::vector<std::int32_t>{} : take_free(counts);
    return nb::make_tuple(bytes_of(counts.blocks), bytes_of(counts.held), bytes_of(gone));
}

// (blocks, held), or None.
nb::object bind_fill(nb::handle blocks, nb::handle held, nb::handle layer_row, nb::handle reserve, nb::handle areas) {
    const Ids own(blocks, "blocks"), row_of_layer(layer_row, "row_of_layer"), fresh(reserve, "reserve");
    const Bytes counted(held, "held");
    const RowsOf rows(areas);
    Place at;
    bool fine = false;
    Counts& counts = opened(own, counted, row_of_layer, fresh, at, fine);
    if (!fine || !fill(counts, {row_of_layer, rows.layers, rows.ids}) || !all_held(counts, fresh)) {
        return nb::none();
    }
    return nb::make_tuple(bytes_of(counts.blocks), bytes_of(counts.held));
}

// (row_ptr, ids, missing, most missing, vacant)
nb::object bind_fullest(nb::handle blocks, nb::handle held, nb::handle layer_row, nb::handle wanted) {
    const Ids own(blocks, "blocks"), row_of_layer(layer_row, "row_of_layer");
    const Bytes counted(held, "held");
    const RowsOf rows(wanted);
    if (counted.size() != rows_of(row_of_layer) * own.size()) {
        Ids::refuse("held", "a count for each block and row");
    }
    const Fullest found = fullest(own, counted.data(), rows_of(row_of_layer), {row_of_layer, rows.layers, rows.ids});
    return nb::make_tuple(bytes_of(found.ptr), bytes_of(found.blocks), bytes_of(found.missing), found.most,
                          found.vacant);
}

// (blocks, total, freed), or None where more is taken than there is.
nb::object bind_change_shared(nb::handle blocks, nb::handle total, nb::handle layer_row, nb::handle more,
                              nb::handle less) {
    const Ids own(blocks, "blocks"), row_of_layer(layer_row, "row_of_layer");
    const Bytes counted(total, "total");
    if (counted.size() != 4 * own.size()) {
        Ids::refuse("total", "one a block");
    }
    const AreasOf added(more, row_of_layer), dropped(less, row_of_layer);
    std::vector<std::uint32_t> totals(static_cast<std::size_t>(own.size()));
    std::copy_n(counted.data(), counted.size(), reinterpret_cast<std::uint8_t*>(totals.data()));
    for (const Areas& areas : added.each()) {
        if (!add_totals(own, totals, areas, true)) {
            return nb::none();
        }
    }
    for (const Areas& areas : dropped.each()) {
        if (!add_totals(own, totals, areas, false)) {
            return nb::none();
        }
    }
    std::vector<std::int32_t> left, gone, counts;
    for (std::int64_t at = 0; at < own.size(); ++at) {
        const std::uint32_t one = totals[static_cast<std::size_t>(at)];
        (one ? left : gone).push_back(own[at]);
        if (one) {
            counts.push_back(static_cast<std::int32_t>(one));
        }
    }
    return nb::make_tuple(bytes_of(left), bytes_of(counts), bytes_of(gone));
}

std::int64_t bind_mark(nb::handle marks, nb::handle ids, bool value) {
    const Bytes table(marks, "marks", true);
    return mark(table.data(), table.size(), Ids(ids, "ids"), value);
}

std::uint16_t* counters(const Bytes& table) {
    if (table.size() % 2 != 0 || reinterpret_cast<std::uintptr_t>(table.data()) % 2 != 0) {
        Ids::refuse("counts", "whole, aligned uint16 values");
    }
    return reinterpret_cast<std::uint16_t*>(table.data());
}

nb::object bind_count(nb::handle counts, nb::handle more, nb::handle less) {
    const Bytes table(counts, "counts", true);
    std::vector<std::int32_t> gone;
    if (!count(counters(table), table.size() / 2, Ids(more, "more"), Ids(less, "less"), gone)) {
        Ids::refuse("counts", "ids of the pool, held by 1 to 65535");
    }
    return bytes_of(gone);
}

std::int64_t bind_first_counted(nb::handle counts, nb::handle ids) {
    const Bytes table(counts, "counts");
    return first_counted(counters(table), table.size() / 2, Ids(ids, "ids"));
}

}  // namespace
}  // namespace kvsweep

NB_MODULE(_sets, module) {
    using namespace kvsweep;
    module.def("rows_fit", &bind_rows_fit);
    module.def("first_unsorted", &bind_unsorted);
    module.def("first_outside", &bind_outside);
    module.def("first_beyond", &bind_beyond);
    module.def("first_repeated", &bind_repeated);
    module.def("look_up", &bind_look_up);
    module.def("first_common", &bind_common);
    module.def("distinct", &bind_distinct);
    module.def("slots_of", &bind_slots_of);
    module.def("join", &bind_join);
    module.def("take", &bind_take);
    module.def("change", &bind_change);
    module.def("fill", &bind_fill);
    module.def("fullest", &bind_fullest);
    module.def("change_shared", &bind_change_shared);
    module.def("mark", &bind_mark);
    module.def("count", &bind_count);
    module.def("first_counted", &bind_first_counted);
}
