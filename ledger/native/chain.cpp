#include "chain.hpp"

#include <string_view>

#include "sha256.hpp"

namespace kvsweep::ledger {
namespace {

constexpr std::int64_t size_bytes = 8;  // before each event, little-endian

std::string_view between(const std::uint8_t* from, const std::uint8_t* to) {
    return {reinterpret_cast<const char*>(from), static_cast<std::size_t>(to - from)};
}

// The bytes of one event as a digest sees them, in pieces: of its body, and what stands in for what it leaves out.
class Seen {
  public:
    bool read(const Schema& schema, Reader& reader);
    void add(Link& chain) const;

  private:
    std::array<std::uint8_t, 5> head_{};
    std::vector<std::string_view> pieces_;
};

bool Seen::read(const Schema& schema, Reader& reader) {
    std::int64_t items = 0, tag = 0;
    if (!reader.array(items)) {
        return false;
    }
    const std::uint8_t* from = reader.at();
    const Fact* fact = reader.integer(tag) ? schema.fact_of(tag) : nullptr;
    if (fact == nullptr) {
        return false;
    }
    const std::int64_t fields = items - 1;
    if (fields != static_cast<std::int64_t>(fact->fields.size())) {
        return false;
    }
    pieces_.assign(1, {});
    for (std::int64_t at = 0; at < fields; ++at) {
        const Shape& shape = *fact->fields[static_cast<std::size_t>(at)].shape;
        const std::uint8_t* before = reader.at();
        if (!reader.value(shape)) {
            return false;
        }
        if (!shape.aside.empty()) {
            pieces_.push_back(between(from, before));
            pieces_.push_back(shape.aside);
            from = reader.at();
        }
    }
    pieces_.push_back(between(from, reader.at()));
    pieces_[0] = between(head_.data(), head_.data() + array_head(items, head_.data()));
    return true;
}

void Seen::add(Link& chain) const {
    std::uint64_t bytes = 0;
    for (const std::string_view piece : pieces_) {
        bytes += piece.size();
    }
    std::uint8_t size[size_bytes];
    for (int byte = 0; byte < size_bytes; ++byte) {
        size[byte] = static_cast<std::uint8_t>(bytes >> (8 * byte));
    }
    Sha256 hash;
    hash.update(chain.data(), chain.size());
    hash.update(size, sizeof size);
    for (const std::string_view piece : pieces_) {
        hash.update(piece.data(), piece.size());
    }
    chain = hash.digest();
}

}  // namespace

bool add_bodies(const Schema& schema, Reader bodies, std::int64_t start, std::int64_t stop, Link& chain) {
    std::int64_t events = 0;
    if (!bodies.array(events) || start < 0 || start > stop || stop > events) {
        return false;
    }
    Seen seen;
    for (std::int64_t at = 0; at < stop; ++at) {
        if (!seen.read(schema, bodies)) {
            return false;
        }
        if (at >= start) {
            seen.add(chain);
        }
    }
    return stop < events || bodies.done();
}

// ---- reading

bool Reader::skip(std::int64_t bytes) {
    const bool there = bytes <= end_ - at_;
    at_ += there ? bytes : 0;
    return there;
}

bool Reader::big_endian(int bytes, std::uint64_t& value) {
    const std::uint8_t* from = at_;
    if (!skip(bytes)) {
        return false;
    }
    value = 0;
    for (int byte = 0; byte < bytes; ++byte) {
        value = value << 8 | from[byte];
    }
    return true;
}

bool Reader::length(int fixed, int most, int one, int two, int four, std::int64_t& found) {
    if (done()) {
        return false;
    }
    const int head = *at_++;
    if (head >= fixed && head <= fixed + most) {
        found = head - fixed;
        return true;
    }
    const int bytes = head == one ? 1 : head == two ? 2 : head == four ? 4 : 0;
    const bool one_would_do = head == two && one >= 0;
    const std::uint64_t least = head == four ? 1 << 16 : one_would_do ? 1 << 8 : static_cast<std::uint64_t>(most + 1);
    std::uint64_t value = 0;
    if (bytes == 0 || !big_endian(bytes, value) || value < least) {
        return false;
    }
    found = static_cast<std::int64_t>(value);
    return true;
}

bool Reader::integer(std::int64_t& value) {
    if (done()) {
        return false;
    }
    const int head = *at_++;
    if (head < 0x80 || head >= 0xE0) {
        value = static_cast<std::int8_t>(head);
        return true;
    }
    const bool positive = head >= 0xCC && head <= 0xCF, negative = head >= 0xD0 && head <= 0xD3;
    const int bytes = 1 << (head & 3);
    std::uint64_t bits = 0;
    if ((!positive && !negative) || !big_endian(bytes, bits)) {
        return false;
    }
    const int shorter = 4 * bytes;  // bits of the next shorter form
    if (positive) {
        value = static_cast<std::int64_t>(bits);
        return value >= (bytes == 1 ? 0x80 : std::int64_t{1} << shorter);
    }
    value = static_cast<std::int64_t>(bits << (64 - 8 * bytes)) >> (64 - 8 * bytes);
    return value < (bytes == 1 ? -0x20 : -(std::int64_t{1} << (shorter - 1)));
}

bool Reader::text() {
    std::int64_t bytes = 0;
    return length(0xA0, 31, 0xD9, 0xDA, 0xDB, bytes) && skip(bytes);
}

bool Reader::ids() {
    std::int64_t bytes = 0;
    return length(0x100, -1, 0xC4, 0xC5, 0xC6, bytes) && skip(bytes);
}

bool Reader::record(const std::vector<Field>& fields) {
    std::int64_t items = 0;
    if (!array(items) || items != static_cast<std::int64_t>(fields.size())) {
        return false;
    }
    for (const Field& field : fields) {
        if (!value(*field.shape)) {
            return false;
        }
    }
    return true;
}

bool Reader::list(const Shape& shape) {
    std::int64_t items = 0;
    if (!array(items)) {
        return false;
    }
    for (std::int64_t at = 0; at < items; ++at) {
        if (!value(*shape.items)) {
            return false;
        }
    }
    return true;
}

bool Reader::pairs() {
    std::int64_t items = 0, two = 0, part = 0;
    if (!array(items)) {
        return false;
    }
    for (std::int64_t at = 0; at < items; ++at) {
        if (!array(two) || two != 2 || !integer(part) || !integer(part)) {
            return false;
        }
    }
    return true;
}

bool Reader::value(const Shape& shape) {
    if (shape.optional && at_ < end_ && *at_ == 0xC0) {
        return skip(1);
    }
    std::int64_t number = 0;
    switch (shape.kind) {
        case Kind::count: return integer(number) && number >= 0;
        case Kind::integer: return integer(number);
        case Kind::seconds: return at_ < end_ && *at_ == 0xCB && skip(9);
        case Kind::text:
        case Kind::one_of: return text();
        case Kind::ids: return ids();
        case Kind::pairs: return pairs();
        case Kind::list: return list(shape);
        case Kind::record:
        case Kind::rows:
        case Kind::checked: return record(shape.fields);
    }
    return false;
}

}  // namespace kvsweep::ledger
