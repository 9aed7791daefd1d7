// The chain of digests over bodies of events, as kvsweep.ledger.store.digest has it by rules 2.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "encode.hpp"

namespace kvsweep::ledger {

using Link = std::array<std::uint8_t, 32>;

// Reads what the encoder writes, and nothing else: every number and length in its shortest form, every field there.
class Reader {
  public:
    Reader(const std::uint8_t* from, std::size_t bytes) : at_(from), end_(from + bytes) {}
    const std::uint8_t* at() const { return at_; }
    bool done() const { return at_ == end_; }

    bool array(std::int64_t& items) { return length(0x90, 15, -1, 0xDC, 0xDD, items); }
    bool integer(std::int64_t& value);
    bool value(const Shape& shape);

  private:
    bool text();
    bool ids();
    bool record(const std::vector<Field>& fields);
    bool list(const Shape& shape);
    bool pairs();
    bool skip(std::int64_t bytes);
    bool big_endian(int bytes, std::uint64_t& value);
    // Heads `fixed` … `fixed + most` say a length themselves, the others one of 1, 2 or 4 bytes. -1: there is none.
    bool length(int fixed, int most, int one, int two, int four, std::int64_t& found);

    const std::uint8_t *at_, *end_;
};

// Goes on from `chain` over events `start` up to `stop` of one msgpack array of bodies. False where one before `stop`
// is not as the encoder writes it, or there are no such events; `chain` is of no use then.
bool add_bodies(const Schema& schema, Reader bodies, std::int64_t start, std::int64_t stop, Link& chain);

}  // namespace kvsweep::ledger
