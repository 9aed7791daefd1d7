// A group of events as it goes into the file: plain C++, no Python headers. kvsweep.ledger.store.group says what a
// part is and is the reference for what comes out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvsweep::ledger {

// What stands beside an event's body; as many 64-bit words in the order of ROW_WORDS there.
struct Row {
    std::int64_t tag;
    std::int64_t request;  // index into the numbers of its part
    std::int64_t epoch;
    std::int64_t seq;
    std::int64_t operation;
    std::int64_t rank;
    std::int64_t bytes;
    std::int64_t flags;
};
static_assert(sizeof(Row) == 64);

constexpr std::int64_t has_operation = 1, has_rank = 2;

// A batch: its events as one msgpack array behind a head of `start` bytes. Borrowed for the length of a call.
struct Part {
    const std::uint8_t* data;
    std::int64_t start;
    const Row* rows;
    std::int64_t events;
    std::vector<std::int64_t> numbers;  // of its requests
};

struct Texts {
    std::string plain;
    std::string places;
};

// Head of a msgpack array, as short as the encoder writes it: 1, 3 or 5 bytes. Returns how many.
std::int64_t array_head(std::int64_t count, std::uint8_t* to);

// Fill `body` (the head, then every part's events) and `crcs` (4 bytes an event). `names` by tag.
// A body that is null is not written: it stands in the only part as it is.
Texts pack(const std::vector<Part>& parts, std::int64_t first, const std::vector<std::string>& names,
           std::uint8_t* body, std::uint8_t* crcs, bool fold);

}  // namespace kvsweep::ledger
