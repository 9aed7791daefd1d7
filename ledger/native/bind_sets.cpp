// The Python edge: kvsweep.ledger._sets. What each function means stands in _sets.pyi; a refusal is a ValueError.
#include <nanobind/nanobind.h>

#include <array>
#include <deque>
#include <vector>

#include "areas.hpp"
#include "sets.hpp"

namespace nb = nanobind;

namespace kvsweep {
namespace {

nb::object bytes_of(const std::vector<std::int32_t>& ids) {
    return nb::steal(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(ids.data()),
                                               static_cast<Py_ssize_t>(4 * ids.size())));
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
    const Ids most(limits, "limits");
    if (most.size() != rows.rows()) {
        Ids::refuse("limits", "one a row");
    }
    return first_beyond(rows, most);
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

nb::object bind_without(nb::handle ids, nb::handle others) {
    return bytes_of(without(Ids(ids, "ids"), Parts(others, "others").each()));
}

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

// bool[rows, blocks], C-contiguous.
class Matrix {
  public:
    Matrix(nb::handle object, bool written) {
        const int flags = PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (written ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
            PyErr_Clear();
            Ids::refuse("held", "a C-contiguous array of bool");
        }
        if (view_.ndim != 2 || view_.itemsize != 1) {
            PyBuffer_Release(&view_);
            Ids::refuse("held", "bool[rows, blocks]");
        }
    }
    Matrix(const Matrix&) = delete;
    Matrix& operator=(const Matrix&) = delete;
    ~Matrix() { PyBuffer_Release(&view_); }
    Held held() const { return {static_cast<std::uint8_t*>(view_.buf), view_.shape[0], view_.shape[1]}; }

  private:
    Py_buffer view_{};
};

void expect_areas(const Held& held, const Ids& blocks, const Areas& areas) {
    if (held.blocks != blocks.size()) {
        Ids::refuse("blocks", "one a column of held");
    }
    if (areas.layers.size() != areas.ids.rows()) {
        Ids::refuse("layers", "one a row of areas");
    }
    for (const std::int32_t row : areas.layer_row) {
        if (row < -1 || row >= held.rows) {
            Ids::refuse("layer_row", "rows of held, or -1");
        }
    }
}

void bind_mark(nb::handle held, nb::handle blocks, nb::handle layer_row, nb::handle layers, nb::handle ptr,
               nb::handle ids) {
    const Matrix matrix(held, true);
    const Ids columns(blocks, "blocks"), rows(layer_row, "layer_row"), which(layers, "layers");
    const Ragged areas(ptr, ids, "areas");
    const Areas all{rows, which, areas};
    expect_areas(matrix.held(), columns, all);
    mark(matrix.held(), columns, all);
}

bool bind_placed_well(nb::handle held, nb::handle own, nb::handle fresh, nb::handle layer_row, nb::handle layers,
                      nb::handle ptr, nb::handle ids) {
    const Matrix matrix(held, false);
    const Ids columns(own, "own"), more(fresh, "fresh"), rows(layer_row, "layer_row"), which(layers, "layers");
    const Ragged areas(ptr, ids, "areas");
    const Areas all{rows, which, areas};
    expect_areas(matrix.held(), columns, all);
    return placed_well(matrix.held(), columns, more, all);
}

nb::object bind_fullest(nb::handle held, nb::handle blocks, nb::handle rows, nb::handle wanted) {
    const Matrix matrix(held, false);
    const Ids columns(blocks, "blocks"), which(rows, "rows"), counts(wanted, "wanted");
    if (matrix.held().blocks != columns.size() || which.size() != counts.size()) {
        Ids::refuse("blocks, wanted", "one a column, one a row");
    }
    for (const std::int32_t row : which) {
        if (row < 0 || row >= matrix.held().rows) {
            Ids::refuse("rows", "rows of held");
        }
    }
    const Fullest found = fullest(matrix.held(), columns, which, counts);
    return nb::make_tuple(bytes_of(found.blocks), bytes_of(found.counts), found.vacant);
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
    module.def("first_common", &bind_common);
    module.def("distinct", &bind_distinct);
    module.def("without", &bind_without);
    module.def("slots_of", &bind_slots_of);
    module.def("join", &bind_join);
    module.def("take", &bind_take);
    module.def("mark_areas", &bind_mark);
    module.def("placed_well", &bind_placed_well);
    module.def("fullest", &bind_fullest);
}
