// Reads msgpack from its front, as strictly as kvsweep.ledger.store.codec: what is returned false for is not there.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "buffer.hpp"

namespace kvsweep::fold {

// Whether Python would read it as UTF-8: no overlong form, no surrogate.
bool is_utf8(std::string_view text);

inline bool none_negative(Span ids) {
    std::uint64_t signs = 0;
    std::uint32_t at = 0;
    for (; at + 2 <= ids.count; at += 2) {
        std::uint64_t two;
        std::memcpy(&two, ids.data + std::size_t{4} * at, sizeof two);
        signs |= two;
    }
    if (at < ids.count) {
        signs |= static_cast<std::uint32_t>(ids[at]);
    }
    return (signs & 0x8000000080000000U) == 0;
}

// What kvsweep.ledger.ids.Rows.check asks for. What the ids are is not looked at.
inline bool fit(const RowsSpan& rows) {
    if (rows.row_ptr.count != rows.layers.count + 1 || rows.row_ptr[0] != 0) {
        return false;
    }
    std::int32_t last_layer = -1, end = 0;
    for (std::uint32_t row = 0; row < rows.layers.count; ++row) {
        const std::int32_t layer = rows.layers[row], next = rows.row_ptr[row + 1];
        if (layer <= last_layer || next < end) {
            return false;
        }
        last_layer = layer;
        end = next;
    }
    return static_cast<std::uint32_t>(end) == rows.ids.count;
}

class Cursor {
  public:
    explicit Cursor(std::string_view bytes)
        : at_(reinterpret_cast<const unsigned char*>(bytes.data())), end_(at_ + bytes.size()) {}

    const unsigned char* at() const { return at_; }
    std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }

    bool nil() {
        if (at_ == end_ || *at_ != 0xc0) {
            return false;
        }
        ++at_;
        return true;
    }

    bool array(std::uint32_t& items) { return sized(0x90, 0x0f, 0xdc, items); }
    bool array_of(std::uint32_t items) {
        std::uint32_t found = 0;
        return array(found) && found == items;
    }
    bool map_of(std::uint32_t items) {
        std::uint32_t found = 0;
        return sized(0x80, 0x0f, 0xde, found) && found == items;
    }

    // Any that fits int64.
    bool integer(std::int64_t& value) {
        if (at_ == end_) {
            return false;
        }
        const unsigned char head = *at_;
        if (head < 0x80) {
            ++at_;
            value = head;
            return true;
        }
        if (head >= 0xe0) {
            ++at_;
            value = static_cast<std::int8_t>(head);
            return true;
        }
        if (head < 0xcc || head > 0xd3) {
            return false;
        }
        const unsigned width = 1U << (head & 3U);
        std::uint64_t bits = 0;
        if (!big_endian(1, width, bits)) {
            return false;
        }
        if (head >= 0xd0) {
            const unsigned unused = 64 - 8 * width;
            value = static_cast<std::int64_t>(bits << unused) >> unused;
        } else if (bits >> 63U != 0) {
            return false;
        } else {
            value = static_cast<std::int64_t>(bits);
        }
        return true;
    }
    bool count(std::int64_t& value) { return integer(value) && value >= 0; }

    bool text(std::string_view& value) {
        std::uint32_t bytes = 0;
        if (at_ != end_ && *at_ == 0xd9) {
            std::uint64_t size = 0;
            if (!big_endian(1, 1, size)) {
                return false;
            }
            bytes = static_cast<std::uint32_t>(size);
        } else if (!sized(0xa0, 0x1f, 0xda, bytes)) {
            return false;
        }
        const unsigned char* start = at_;
        if (!pass(bytes)) {
            return false;
        }
        value = {reinterpret_cast<const char*>(start), bytes};
        return is_utf8(value);
    }

    // Whole int32.
    bool words(Span& value) {
        std::uint64_t bytes = 0;
        if (at_ == end_ || *at_ < 0xc4 || *at_ > 0xc6 || !big_endian(1, 1U << (*at_ - 0xc4U), bytes)) {
            return false;
        }
        value = {at_, static_cast<std::uint32_t>(bytes / 4)};
        return bytes % 4 == 0 && pass(bytes);
    }
    bool ids(Span& value) { return words(value) && none_negative(value); }

    bool rows(RowsSpan& value) {
        return array_of(3) && words(value.layers) && words(value.row_ptr) && ids(value.ids) && fit(value);
    }

    // A finite number of seconds, which may have been written as an integer.
    bool seconds() {
        const unsigned char head = at_ == end_ ? 0xc0 : *at_;
        std::uint64_t bits = 0;
        double value = 0;
        if (head == 0xcb && big_endian(1, 8, bits)) {
            std::memcpy(&value, &bits, sizeof value);
        } else if (head == 0xca && big_endian(1, 4, bits)) {
            const auto half = static_cast<std::uint32_t>(bits);
            float narrow;
            std::memcpy(&narrow, &half, sizeof narrow);
            value = narrow;
        } else if (head == 0xcf) {
            return big_endian(1, 8, bits);
        } else {
            std::int64_t whole = 0;
            return count(whole);
        }
        return std::isfinite(value) && value >= 0;
    }

    // Steps over one value, whatever it is.
    bool skip();

  private:
    bool pass(std::uint64_t bytes) {
        if (bytes > left()) {
            return false;
        }
        at_ += bytes;
        return true;
    }

    // Steps over `skipped` bytes and the number behind them.
    bool big_endian(unsigned skipped, unsigned width, std::uint64_t& value) {
        if (left() < skipped + width) {
            return false;
        }
        value = 0;
        for (unsigned byte = 0; byte < width; ++byte) {
            value = value << 8U | at_[skipped + byte];
        }
        at_ += skipped + width;
        return true;
    }

    // A head with the size in its low bits, or `wide` before 16 bits of it, or the next code before 32.
    bool sized(unsigned char fixed, unsigned char most, unsigned char wide, std::uint32_t& size) {
        if (at_ == end_) {
            return false;
        }
        const unsigned char head = *at_;
        if ((head & static_cast<unsigned char>(~most)) == fixed) {
            size = head & most;
            ++at_;
            return true;
        }
        std::uint64_t bits = 0;
        if ((head != wide && head != wide + 1) || !big_endian(1, head == wide ? 2 : 4, bits)) {
            return false;
        }
        size = static_cast<std::uint32_t>(bits);
        return true;
    }

    const unsigned char* at_;
    const unsigned char* end_;
};

}  // namespace kvsweep::fold
