#include "rows.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <stdexcept>

namespace kvsweep::fold {
namespace {

// One for all calls: whoever asks holds Python's lock.
Seen seen;

std::int32_t largest(Span ids) {
    std::int32_t most = -1;
    for (std::uint32_t at = 0; at < ids.count; ++at) {
        most = std::max(most, ids[at]);
    }
    return most;
}

std::size_t room(std::int32_t most) { return static_cast<std::size_t>(most) + 1; }

std::int32_t* put(std::int32_t* to, Span ids, std::uint32_t from, std::uint32_t until) {
    if (until != from) {
        std::memcpy(to, ids.data + std::size_t{4} * from, std::size_t{4} * (until - from));
    }
    return to + (until - from);
}

// Every layer that stands in one of the parts, ascending.
Ids layers_of(std::initializer_list<RowsSpan> parts) {
    Span first;
    bool alike = true;
    for (const RowsSpan& part : parts) {
        if (first.empty()) {
            first = part.layers;
        }
        alike = alike && (part.layers.empty() || part.layers == first);
    }
    if (alike) {
        return Ids(first);
    }
    std::vector<std::int32_t> all;
    for (const RowsSpan& part : parts) {
        for (std::uint32_t row = 0; row < part.rows(); ++row) {
            all.push_back(part.layers[row]);
        }
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return Ids(Span{reinterpret_cast<const unsigned char*>(all.data()), static_cast<std::uint32_t>(all.size())});
}

}  // namespace

bool all_below(Span ids, std::int64_t limit) { return largest(ids) < limit; }

bool all_apart(Span ids) {
    const std::int32_t most = largest(ids);
    if (most >= most_id) {
        return false;
    }
    seen.begin(room(most));
    bool twice = false;
    for (std::uint32_t at = 0; at < ids.count; ++at) {
        twice |= seen.set(ids[at]);
    }
    return !twice;
}

bool all_among(Span ids, Span others) {
    const std::int32_t most = largest(others);
    if (most >= most_id) {
        return false;
    }
    seen.begin(room(most));
    for (std::uint32_t at = 0; at < others.count; ++at) {
        seen.set(others[at]);
    }
    bool all = true;
    for (std::uint32_t at = 0; at < ids.count; ++at) {
        all &= seen.has(ids[at]);
    }
    return all;
}

bool rows_ascend(const RowsSpan& rows) {
    bool wrong = false;
    for (std::uint32_t row = 0; row < rows.rows(); ++row) {
        const std::uint32_t end = rows.end(row);
        for (std::uint32_t at = rows.begin(row); at + 1 < end; ++at) {
            wrong |= rows.ids[at + 1] <= rows.ids[at];
        }
    }
    return !wrong;
}

bool rows_apart(const RowsSpan& rows) {
    const std::int32_t most = largest(rows.ids);
    if (most >= most_id) {
        return false;
    }
    bool twice = false;
    for (std::uint32_t row = 0; row < rows.rows(); ++row) {
        seen.begin(room(most));
        for (std::uint32_t at = rows.begin(row); at < rows.end(row); ++at) {
            twice |= seen.set(rows.ids[at]);
        }
    }
    return !twice;
}

bool rows_disjoint(const RowsSpan& first, const RowsSpan& second) {
    const std::int32_t most = largest(second.ids);
    if (most >= most_id) {
        return false;
    }
    bool both = false;
    for (std::uint32_t row = 0; row < second.rows(); ++row) {
        seen.begin(room(most));
        for (std::uint32_t at = second.begin(row); at < second.end(row); ++at) {
            seen.set(second.ids[at]);
        }
        for (std::uint32_t at = first.begin(row); at < first.end(row); ++at) {
            both |= seen.has(first.ids[at]);
        }
    }
    return !both;
}

Rows joined(std::initializer_list<RowsSpan> parts) {
    std::uint64_t count = 0;
    for (const RowsSpan& part : parts) {
        count += part.ids.count;
    }
    if (count > std::numeric_limits<std::int32_t>::max()) {
        throw std::length_error("a table of more ids than row pointers can name");
    }
    Ids layers = layers_of(parts);
    Ids ends = Ids::uninitialized(layers.count() + 1), ids = Ids::uninitialized(static_cast<std::uint32_t>(count));
    std::int32_t* const start = ids.writable();
    std::int32_t* next = start;
    ends.writable()[0] = 0;
    std::vector<std::uint32_t> rows(parts.size());  // of each part, the row that comes next
    for (std::uint32_t at = 0; at < layers.count(); ++at) {
        std::uint32_t* row = rows.data();
        for (const RowsSpan& part : parts) {
            if (*row < part.rows() && part.layers[*row] == layers[at]) {
                next = put(next, part.ids, part.begin(*row), part.end(*row));
                ++*row;
            }
            ++row;
        }
        ends.writable()[at + 1] = static_cast<std::int32_t>(next - start);
    }
    return {std::move(layers), std::move(ends), std::move(ids)};
}

Rows ids_at(const RowsSpan& rows, const RowsSpan& slots) {
    Ids ids = Ids::uninitialized(slots.ids.count);
    std::int32_t* next = ids.writable();
    for (std::uint32_t row = 0; row < slots.rows(); ++row) {
        const std::uint32_t from = rows.begin(row), end = slots.end(row);
        for (std::uint32_t at = slots.begin(row); at < end; ++at) {
            *next++ = rows.ids[from + static_cast<std::uint32_t>(slots.ids[at])];
        }
    }
    return {Ids(slots.layers), Ids(slots.row_ptr), std::move(ids)};
}

Rows empty_rows(Span layers) {
    Ids ends = Ids::uninitialized(layers.count + 1);
    std::fill_n(ends.writable(), ends.count(), 0);
    return {Ids(layers), std::move(ends), Ids()};
}

Ids distinct(Span first, Span second) {
    seen.begin(room(std::max(largest(first), largest(second))));
    Ids found = Ids::uninitialized(first.count + second.count);
    std::int32_t* const start = found.writable();
    std::int32_t* next = start;
    std::int32_t low = std::numeric_limits<std::int32_t>::max(), high = -1;
    for (const Span ids : {first, second}) {
        for (std::uint32_t at = 0; at < ids.count; ++at) {
            if (!seen.set(ids[at])) {
                low = std::min(low, ids[at]);
                high = std::max(high, ids[at]);
                *next++ = ids[at];
            }
        }
    }
    if (high / 16 - low / 16 > next - start) {
        std::sort(start, next);
    } else {  // they stand close together: reading them off is quicker
        next = start;
        for (std::int32_t id = low; id <= high; ++id) {
            *next = id;
            next += seen.has(id);
        }
    }
    return std::move(found).first(static_cast<std::uint32_t>(next - start));
}

Ids with_ids(const Ids& ids, const std::vector<std::int32_t>& more) {
    Ids made = Ids::uninitialized(ids.count() + static_cast<std::uint32_t>(more.size()));
    std::merge(ids.begin(), ids.end(), more.begin(), more.end(), made.writable());
    return made;
}

Ids without_ids(const Ids& ids, const std::vector<std::int32_t>& gone) {
    Ids left = Ids::uninitialized(ids.count());
    const std::int32_t* const end =
        std::set_difference(ids.begin(), ids.end(), gone.begin(), gone.end(), left.writable());
    return std::move(left).first(static_cast<std::uint32_t>(end - left.begin()));
}

}  // namespace kvsweep::fold
