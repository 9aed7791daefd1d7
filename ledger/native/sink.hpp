// Where what is encoded goes, and msgpack's own forms of numbers and lengths, as short as they can be.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "pack.hpp"

namespace kvsweep::ledger {

constexpr std::uint64_t most_bytes = std::numeric_limits<std::uint32_t>::max();

template <class T>
std::uint8_t* write_head(std::uint8_t* to, std::uint8_t head, T value) {
    *to++ = head;
    for (int byte = sizeof(T) - 1; byte >= 0; --byte) {
        *to++ = static_cast<std::uint8_t>(value >> (8 * byte));
    }
    return to;
}

// What is encoded goes into one of three sinks. A batch of the usual size is checked and written in one pass, into a
// buffer that is kept; one that does not fit is counted and checked first, and then written to where it belongs.
class Bounded {
  public:
    static constexpr bool checks = true;
    Bounded(std::uint8_t* to, std::size_t bytes, std::vector<PyObject*>& found)
        : later(found), from_(to), at_(to), end_(to + bytes) {}
    std::vector<PyObject*>& later;  // what has to be asked whether it is fine, once this is done
    void put(const void* from, std::size_t bytes) {
        if (room(bytes)) {
            std::memcpy(at_, from, bytes);
            at_ += bytes;
        }
    }
    template <class T>
    void big_endian(std::uint8_t head, T value) {
        if (room(1 + sizeof(T))) {
            at_ = write_head(at_, head, value);
        }
    }
    void byte(std::uint8_t value) {
        if (room(1)) {
            *at_++ = value;
        }
    }
    std::size_t bytes() const { return static_cast<std::size_t>(at_ - from_); }
    bool full() const { return full_; }

  private:
    bool room(std::size_t bytes) {
        full_ = full_ || bytes > static_cast<std::size_t>(end_ - at_);
        return !full_;
    }
    std::uint8_t *from_, *at_, *end_;
    bool full_ = false;
};

class Count {
  public:
    static constexpr bool checks = true;
    explicit Count(std::vector<PyObject*>& found) : later(found) {}
    std::vector<PyObject*>& later;
    bool full() const { return false; }
    void put(const void*, std::size_t bytes) { bytes_ += bytes; }
    template <class T>
    void big_endian(std::uint8_t, T) {
        bytes_ += 1 + sizeof(T);
    }
    void byte(std::uint8_t) { ++bytes_; }
    std::size_t bytes() const { return bytes_; }

  private:
    std::size_t bytes_ = 0;
};

class Write {
  public:
    static constexpr bool checks = false;
    explicit Write(std::uint8_t* to) : at_(to) {}
    void put(const void* from, std::size_t bytes) {
        std::memcpy(at_, from, bytes);
        at_ += bytes;
    }
    template <class T>
    void big_endian(std::uint8_t head, T value) {
        at_ = write_head(at_, head, value);
    }
    void byte(std::uint8_t value) { *at_++ = value; }

  private:
    std::uint8_t* at_;
};

template <class Sink>
void put_integer(Sink& sink, std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    if (value >= 0) {
        if (value < 0x80) {
            sink.byte(static_cast<std::uint8_t>(bits));
        } else if (value <= 0xFF) {
            sink.big_endian(0xCC, static_cast<std::uint8_t>(bits));
        } else if (value <= 0xFFFF) {
            sink.big_endian(0xCD, static_cast<std::uint16_t>(bits));
        } else if (value <= 0xFFFFFFFF) {
            sink.big_endian(0xCE, static_cast<std::uint32_t>(bits));
        } else {
            sink.big_endian(0xCF, bits);
        }
    } else if (value >= -0x20) {
        sink.byte(static_cast<std::uint8_t>(bits));
    } else if (value >= -0x80) {
        sink.big_endian(0xD0, static_cast<std::uint8_t>(bits));
    } else if (value >= -0x8000) {
        sink.big_endian(0xD1, static_cast<std::uint16_t>(bits));
    } else if (value >= -0x80000000LL) {
        sink.big_endian(0xD2, static_cast<std::uint32_t>(bits));
    } else {
        sink.big_endian(0xD3, bits);
    }
}

template <class Sink>
void put_array(Sink& sink, std::int64_t items) {
    if (items < 16) {
        sink.byte(static_cast<std::uint8_t>(0x90 | items));
        return;
    }
    std::uint8_t head[5];
    sink.put(head, static_cast<std::size_t>(array_head(items, head)));
}

template <class Sink>
void put_bytes(Sink& sink, const char* from, std::int64_t bytes) {
    if (bytes <= 0xFF) {
        sink.big_endian(0xC4, static_cast<std::uint8_t>(bytes));
    } else if (bytes <= 0xFFFF) {
        sink.big_endian(0xC5, static_cast<std::uint16_t>(bytes));
    } else {
        sink.big_endian(0xC6, static_cast<std::uint32_t>(bytes));
    }
    sink.put(from, static_cast<std::size_t>(bytes));
}

}  // namespace kvsweep::ledger
