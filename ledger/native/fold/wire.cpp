#include "wire.hpp"

namespace kvsweep::fold {

bool is_utf8(std::string_view text) {
    const auto* at = reinterpret_cast<const unsigned char*>(text.data());
    const auto* end = at + text.size();
    while (at != end) {
        const unsigned char head = *at++;
        if (head < 0x80) {
            continue;
        }
        // Bounds of the second byte: they leave out overlong forms, surrogates and what is beyond Unicode.
        unsigned char low = 0x80, high = 0xbf;
        int more = 0;
        if (head >= 0xc2 && head <= 0xdf) {
            more = 1;
        } else if (head >= 0xe0 && head <= 0xef) {
            more = 2;
            low = head == 0xe0 ? 0xa0 : low;
            high = head == 0xed ? 0x9f : high;
        } else if (head >= 0xf0 && head <= 0xf4) {
            more = 3;
            low = head == 0xf0 ? 0x90 : low;
            high = head == 0xf4 ? 0x8f : high;
        } else {
            return false;
        }
        for (; more != 0; --more, low = 0x80, high = 0xbf) {
            if (at == end || *at < low || *at > high) {
                return false;
            }
            ++at;
        }
    }
    return true;
}

bool Cursor::skip() {
    std::uint64_t left = 1;  // values to step over: a body cannot be nested so deep that it would overflow
    for (; left != 0; --left) {
        if (at_ == end_) {
            return false;
        }
        const unsigned char head = *at_;
        std::uint32_t items = 0;
        std::uint64_t bytes = 0;
        if (sized(0x90, 0x0f, 0xdc, items)) {
            left += items;
        } else if (sized(0x80, 0x0f, 0xde, items)) {
            left += std::uint64_t{2} * items;
        } else if (sized(0xa0, 0x1f, 0xda, items)) {
            bytes = items;
        } else if (head >= 0xc4 && head <= 0xc6) {
            if (!big_endian(1, 1U << (head - 0xc4U), bytes)) {
                return false;
            }
        } else if (head == 0xd9) {
            if (!big_endian(1, 1, bytes)) {
                return false;
            }
        } else if (head < 0x80 || head >= 0xe0 || head == 0xc0 || head == 0xc2 || head == 0xc3) {
            bytes = 1;
        } else if (head >= 0xcc && head <= 0xd3) {
            bytes = 1 + (1U << (head & 3U));
        } else if (head == 0xca || head == 0xcb) {
            bytes = head == 0xca ? 5 : 9;
        } else {
            return false;  // an extension: no event has one
        }
        if (!pass(bytes)) {
            return false;
        }
    }
    return true;
}

}  // namespace kvsweep::fold
