// The Python edge: arrays in, arrays filled, the interpreter lock released while the core works. A refusal is a
// ValueError; kvsweep.kernels.compiled turns it into the error that the reference raises.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "checks.hpp"

namespace nb = nanobind;

namespace kvsweep {
namespace {

using Bytes2 = Array<const std::uint8_t, 2>;
using Bytes3 = Array<const std::uint8_t, 3>;

template <class Work>
auto unlocked(const Work& work) {
    nb::gil_scoped_release release;
    return work();
}

// Work on lists of `size` ids or scores. Short work keeps the lock: another thread that asks for it would get it now
// and hold it for longer than the work takes.
constexpr std::int64_t short_work = 1 << 18;

template <class Work>
auto unlocked_if_long(std::int64_t size, const Work& work) {
    if (size < short_work) {
        return work();
    }
    return unlocked(work);
}

// Pool of read-only or writable areas; `rows` comes checked against row_ptr.
template <class PoolArray>
Pool pool_of(const PoolArray& pool, const Ids& layers, const Rows& rows) {
    layers.expect(0, rows.rows, "layers");
    check_rows("row_ptr", rows);
    return {const_cast<std::uint8_t*>(pool.data()), pool.size(0), pool.size(1), pool.size(2), layers.data()};
}

void bind_gather(nb::handle pool, nb::handle layers, nb::handle row_ptr, nb::handle source, nb::handle out, int isa,
                 int threads) {
    const Bytes3 areas(pool, "pool");
    const Ids layer(layers, "layers"), pointers(row_ptr, "row_ptr"), ids(source, "source");
    const Array<std::uint8_t, 2> result(out, "out");
    const Rows rows = rows_of(pointers, ids, "row_ptr");
    const Pool from = pool_of(areas, layer, rows);
    result.expect(0, rows.count, "out");
    result.expect(1, from.block_bytes, "out");
    expect_apart(result, areas, "out");
    const Run run = run_of(isa, threads);
    unlocked([&] { gather(from, rows, result.data(), run); });
}

void bind_scatter(nb::handle staging, nb::handle pool, nb::handle layers, nb::handle row_ptr, nb::handle destination,
                  int isa, int threads) {
    const Bytes2 staged(staging, "staging");
    const Array<std::uint8_t, 3> areas(pool, "pool");
    const Ids layer(layers, "layers"), pointers(row_ptr, "row_ptr"), ids(destination, "destination");
    const Rows rows = rows_of(pointers, ids, "row_ptr");
    const Pool to = pool_of(areas, layer, rows);
    staged.expect(0, rows.count, "staging");
    staged.expect(1, to.block_bytes, "staging");
    expect_apart(staged, areas, "staging");
    const Run run = run_of(isa, threads);
    unlocked([&] { scatter(staged.data(), to, rows, run); });
}

void bind_move(nb::handle pool, nb::handle layers, nb::handle row_ptr, nb::handle source, nb::handle destination,
               int isa, int threads) {
    const Array<std::uint8_t, 3> areas(pool, "pool");
    const Ids layer(layers, "layers"), pointers(row_ptr, "row_ptr"), from(source, "source");
    const Ids to(destination, "destination");
    const Rows rows = rows_of(pointers, from, "row_ptr");
    const Pool inside = pool_of(areas, layer, rows);
    to.expect(0, rows.count, "destination");
    const Run run = run_of(isa, threads);
    unlocked([&] { move(inside, rows, to.data(), run); });
}

// blocks and out are [n, block_bytes]; a block is K and V of every head, 16-bit words.
template <auto work>
void bind_vnni(nb::handle blocks, nb::handle out, std::int64_t kv_heads, std::int64_t block_size, std::int64_t head_dim,
               int order, int parts, int isa, int threads) {
    const Bytes2 from(blocks, "blocks");
    const Array<std::uint8_t, 2> to(out, "out");
    const auto whole = [](std::int64_t size) { return size >= 32 && size <= 1 << 20 && size % 32 == 0; };
    if (kv_heads < 1 || kv_heads > 1 << 20 || !whole(block_size) || !whole(head_dim)) {
        Bytes2::refuse("shape", "kv_heads from 1, block_size and head_dim multiples of 32");
    }
    if (order < 0 || order > 1 || parts < 1 || parts > 3) {
        Bytes2::refuse("order, parts", "0 or 1, 1 to 3");
    }
    // Arrays of half the width hold K alone, or V alone.
    const std::int64_t one = 2 * kv_heads * block_size * head_dim;
    const bool together = parts == (keys | values) || from.size(1) != one;
    from.expect(1, together ? 2 * one : one, "blocks");
    to.expect(0, from.size(0), "out");
    to.expect(1, from.size(1), "out");
    expect_apart(to, from, "out");
    if ((reinterpret_cast<std::uintptr_t>(from.data()) | reinterpret_cast<std::uintptr_t>(to.data())) % 2) {
        Bytes2::refuse("blocks, out", "addresses of 16-bit words");
    }
    const Tiles tiles{from.size(0), kv_heads, block_size, head_dim, static_cast<Order>(order), parts, together};
    const Run run = run_of(isa, threads);
    unlocked([&] {
        const auto* input = reinterpret_cast<const std::uint16_t*>(from.data());
        work(input, reinterpret_cast<std::uint16_t*>(to.data()), tiles, run);
    });
}

void bind_pack_tokens(nb::handle pool, nb::handle layers, nb::handle row_ptr, nb::handle tokens, nb::handle destination,
                      std::int64_t kv_heads, std::int64_t block_size, std::int64_t head_dim, int element_bytes,
                      bool packed, int isa) {
    const Array<std::uint8_t, 3> areas(pool, "pool");
    const Ids layer(layers, "layers"), pointers(row_ptr, "row_ptr"), chosen(tokens, "tokens");
    const Ids to(destination, "destination");
    const auto size = [packed](std::int64_t each) {
        return each >= 1 && each <= 1 << 20 && (!packed || each % 32 == 0);
    };
    if (kv_heads < 1 || kv_heads > 1 << 20 || !size(block_size) || !size(head_dim) ||
        (element_bytes != 2 && (packed || element_bytes != 4))) {
        Ids::refuse("shape", "sizes of at least 1, and what the packing allows");
    }
    const Rows rows = rows_of(pointers, chosen, "row_ptr");
    const Pool inside = pool_of(areas, layer, rows);
    areas.expect(2, 2 * kv_heads * block_size * head_dim * element_bytes, "pool");
    if (reinterpret_cast<std::uintptr_t>(areas.data()) % 2) {
        Ids::refuse("pool", "an address of 16-bit words");
    }
    std::vector<std::int32_t> destinations{0};
    for (std::int64_t row = 0; row < rows.rows; ++row) {
        const std::int64_t blocks = (rows.size(row) + block_size - 1) / block_size;
        destinations.push_back(static_cast<std::int32_t>(destinations.back() + blocks));
    }
    to.expect(0, destinations.back(), "destination");
    const Rows targets{destinations.data(), to.data(), rows.rows, to.size(0)};
    const Run run = run_of(isa, 1);
    unlocked([&] { pack_tokens(inside, rows, targets, {kv_heads, block_size, head_dim, element_bytes, packed}, run); });
}

std::int64_t bind_diff_capacity(nb::handle row_ptr, nb::handle ids) {
    const Ids pointers(row_ptr, "want.row_ptr"), all(ids, "want.ids");
    const Rows want = rows_of(pointers, all, "want.row_ptr");
    check_rows("want.row_ptr", want);
    return diff_capacity(want, true);
}

// Fills room: row pointers of upload and pad [rows + 1 each]; new, truncated and unfilled a row [rows each]; upload
// ids; pad ids for a shared table. Returns (full, common, largest, ids of upload, ids of pad).
nb::tuple bind_plan_diff(nb::handle want_ptr, nb::handle want_ids, nb::handle tail_ptr, nb::handle tail_ids,
                         nb::handle held_ptr, nb::handle held_ids, std::int64_t limit, bool shared_table,
                         nb::handle room, int isa) {
    const Ids want_p(want_ptr, "want.row_ptr"), want_i(want_ids, "want.ids");
    const Ids tail_p(tail_ptr, "tail.row_ptr"), tail_i(tail_ids, "tail.ids");
    const Ids held_p(held_ptr, "held.row_ptr"), held_i(held_ids, "held.ids");
    const Array<std::int32_t, 1> result(room, "room");
    const Rows want = rows_of(want_p, want_i, "want.row_ptr"), tail = rows_of(tail_p, tail_i, "tail.row_ptr");
    const Rows held = rows_of(held_p, held_i, "held.row_ptr");
    check_rows("want.row_ptr", want);
    const std::int64_t capacity = diff_capacity(want, shared_table), rows = want.rows;
    result.expect(0, 5 * rows + 2 + (shared_table ? 2 : 1) * capacity, "room");
    for (const Ids* input : {&want_p, &want_i, &tail_p, &tail_i, &held_p, &held_i}) {
        expect_apart(result, *input, "room");
    }
    std::int32_t* next = result.data();
    const auto take = [&next](std::int64_t count) { return std::exchange(next, next + count); };
    DiffOut out{};
    out.upload_ptr = take(rows + 1);
    out.pad_ptr = take(rows + 1);
    out.new_per_row = take(rows);
    std::fill_n(take(rows), rows, 0);  // nothing wanted is ever truncated
    out.unfilled_per_row = take(rows);
    out.upload_ids = take(capacity);
    out.pad_ids = next;
    out.capacity = capacity;
    const Run run = run_of(isa, 1);
    const DiffSummary plan = unlocked_if_long(want.count + tail.count + held.count, [&] {
        return plan_diff(want, tail, held, limit, shared_table, out, run);
    });
    return nb::make_tuple(plan.full, plan.common, plan.largest, out.upload_ptr[rows], out.pad_ptr[rows]);
}

void bind_select_top(nb::handle scores, nb::handle out, int emit, int isa, int threads) {
    const Array<const float, 2> values(scores, "scores");
    const Array<std::int32_t, 2> ids(out, "out");
    ids.expect(0, values.size(0), "out");
    if (ids.size(1) > values.size(1) || values.size(1) > INT32_MAX || emit < 0 || emit > 1) {
        Ids::refuse("k, emit", "k up to the length of a row");
    }
    expect_apart(ids, values, "out");
    const Run run = run_of(isa, threads);
    unlocked_if_long(values.size(0) * values.size(1), [&] {
        const auto form = static_cast<Emit>(emit);
        select_top(values.data(), values.size(0), values.size(1), ids.size(1), form, ids.data(), run);
    });
}

void bind_remap_rows(nb::handle physical_ptr, nb::handle physical_ids, nb::handle keep_ptr, nb::handle keep_ids,
                     nb::handle out, int isa) {
    const Ids table_p(physical_ptr, "physical.row_ptr"), table_i(physical_ids, "physical.ids");
    const Ids keep_p(keep_ptr, "keep.row_ptr"), keep_i(keep_ids, "keep.ids");
    const Array<std::int32_t, 1> result(out, "out");
    const Rows table = rows_of(table_p, table_i, "physical.row_ptr"), keep = rows_of(keep_p, keep_i, "keep.row_ptr");
    result.expect(0, keep.count, "out");
    const Run run = run_of(isa, 1);
    unlocked_if_long(keep.count, [&] { remap_rows(table, keep, result.data(), run); });
}

void bind_row_classes(nb::handle row_ptr, nb::handle ids, nb::handle out, int isa) {
    const Ids pointers(row_ptr, "row_ptr"), all(ids, "ids");
    const Array<std::int32_t, 1> classes(out, "out");
    const Rows rows = rows_of(pointers, all, "row_ptr");
    classes.expect(0, rows.rows, "out");
    const Run run = run_of(isa, 1);
    unlocked_if_long(rows.count, [&] { row_classes(rows, classes.data(), run); });
}

std::int64_t bind_retired(nb::handle owned, nb::handle referenced, std::int64_t blocks, nb::handle out, int isa) {
    const Ids mine(owned, "owned"), theirs(referenced, "referenced");
    const Array<std::int32_t, 1> result(out, "out");
    result.expect(0, mine.size(0), "out");
    const Run run = run_of(isa, 1);
    return unlocked_if_long(mine.size(0) + theirs.size(0), [&] {
        return retired(mine.data(), mine.size(0), theirs.data(), theirs.size(0), blocks, result.data(), result.size(0),
                       run);
    });
}

void bind_stream_copy(nb::handle from, nb::handle to, int isa) {
    const Array<const std::uint8_t, 1> source(from, "from");
    const Array<std::uint8_t, 1> result(to, "to");
    result.expect(0, source.size(0), "to");
    expect_apart(result, source, "to");
    const Run run = run_of(isa, 1);
    unlocked([&] { stream_copy(source.data(), result.data(), source.size(0), run); });
}

std::uint64_t bind_read_all(nb::handle from, int isa) {
    const Array<const std::uint8_t, 1> source(from, "from");
    const Run run = run_of(isa, 1);
    return unlocked([&] { return read_all(source.data(), source.size(0), run); });
}

}  // namespace
}  // namespace kvsweep

NB_MODULE(_native, module) {
    using namespace kvsweep;
    nb::object array = nb::module_::import_("numpy").attr("ndarray");
    array_type = reinterpret_cast<PyTypeObject*>(array.release().ptr());  // kept: the type lives as long as NumPy
    module.def("best_isa", [] { return static_cast<int>(best_isa()); });
    module.def("gather_blocks", &bind_gather);
    module.def("scatter_blocks", &bind_scatter);
    module.def("move_blocks", &bind_move);
    module.def("unpack_vnni", &bind_vnni<&unpack_vnni>);
    module.def("pack_vnni", &bind_vnni<&pack_vnni>);
    module.def("pack_tokens", &bind_pack_tokens);
    module.def("diff_capacity", &bind_diff_capacity);
    module.def("plan_diff", &bind_plan_diff);
    module.def("select_top", &bind_select_top);
    module.def("remap_rows", &bind_remap_rows);
    module.def("row_classes", &bind_row_classes);
    module.def("retired_blocks", &bind_retired);
    module.def("stream_copy", &bind_stream_copy);
    module.def("read_all", &bind_read_all);
}
