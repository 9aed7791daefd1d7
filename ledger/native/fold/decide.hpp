// What Select and Retain ask alike before they begin, and small things that both make.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "core.hpp"

namespace kvsweep::fold {

// Shares the bytes. False for anything but whole int32 values.
inline bool read_ids(PyObject* object, Ids& ids) {
    if (!PyBytes_CheckExact(object) || PyBytes_GET_SIZE(object) % 4 != 0) {
        return false;
    }
    ids = Ids::of(object);
    return true;
}

// No operation that changes the view is under way, every rank answers, and nothing was asked by this key before.
inline bool may_begin(const Machine& machine, const Request& request, std::string_view idempotency_key) {
    return request.upload.phase == Phase::idle && request.retain.phase == Phase::idle && machine.pool.lost.empty() &&
           std::none_of(request.commands.begin(), request.commands.end(),
                        [idempotency_key](const auto& known) { return known->key == idempotency_key; });
}

inline Operation next_operation(const Machine& machine, const Request& request) {
    return {machine.pool.next_operation_id, machine.pool.pool_generation, request.map_revision};
}

// The first table row that nobody holds, or a hole.
inline std::int64_t vacant_row(const Machine& machine, const Request& request) {
    for (std::int64_t row = 0; row < request.rows; ++row) {
        if (!machine.relation.row_taken(request, row)) {
            return row;
        }
    }
    return hole;
}

// Bytes of ids in a message.
inline std::int64_t ids_bytes(std::initializer_list<const Rows*> parts) {
    std::int64_t words = 0;
    for (const Rows* rows : parts) {
        words += std::int64_t{rows->layers.count()} + rows->row_ptr.count() + rows->ids.count();
    }
    return 4 * words;
}

}  // namespace kvsweep::fold
