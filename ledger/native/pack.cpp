#include "pack.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "crc.hpp"

namespace kvsweep::ledger {
namespace {

constexpr std::size_t longest_integer = 20;
constexpr std::size_t integers_a_line = 7;

// JSON lists of integers and names, into a buffer that is long enough from the start.
class Lines {
  public:
    explicit Lines(std::size_t bytes) : text_(bytes, ' '), at_(text_.data()) {}

    void put(char character) { *at_++ = character; }
    void put(std::string_view text) {
        std::memcpy(at_, text.data(), text.size());
        at_ += text.size();
    }
    void put(std::int64_t value) { at_ = std::to_chars(at_, at_ + longest_integer, value).ptr; }

    // `[` before the first line, `,` before the others.
    void next() {
        put(at_ == text_.data() ? '[' : ',');
        put('[');
    }
    std::string end() {
        if (at_ == text_.data()) {
            put('[');
        }
        put(']');
        text_.resize(static_cast<std::size_t>(at_ - text_.data()));
        return std::move(text_);
    }

  private:
    std::string text_;
    char* at_;
};

void put_plain(Lines& lines, std::int64_t number, const Row& row, std::string_view name, std::int64_t offset) {
    lines.next();
    for (const std::int64_t value : {number, row.epoch, row.seq}) {
        lines.put(value);
        lines.put(',');
    }
    lines.put('"');
    lines.put(name);
    lines.put('"');
    for (const auto& [flag, value] : {std::pair{has_operation, row.operation}, std::pair{has_rank, row.rank}}) {
        lines.put(',');
        if (row.flags & flag) {
            lines.put(value);
        } else {
            lines.put("null");
        }
    }
    for (const std::int64_t value : {offset, row.bytes}) {
        lines.put(',');
        lines.put(value);
    }
    lines.put(']');
}

// One life's run of events in the group.
struct Run {
    std::int64_t number = -1, epoch = -1, seq = 0, events = 0, position = 0, offset = 0, bytes = 0;

    void put(Lines& lines) const {
        lines.next();
        for (const std::int64_t value : {number, epoch, seq, events, position, offset}) {
            lines.put(value);
            lines.put(',');
        }
        lines.put(bytes);
        lines.put(']');
    }
};

void put_word(std::uint8_t* to, std::uint32_t value) {
    for (int byte = 0; byte < 4; ++byte) {
        to[byte] = static_cast<std::uint8_t>(value >> (8 * byte));
    }
}

}  // namespace

std::int64_t array_head(std::int64_t count, std::uint8_t* to) {
    if (count < 16) {
        to[0] = static_cast<std::uint8_t>(0x90 | count);
        return 1;
    }
    const int bytes = count < 1 << 16 ? 2 : 4;
    to[0] = bytes == 2 ? 0xDC : 0xDD;
    for (int byte = 0; byte < bytes; ++byte) {
        to[1 + byte] = static_cast<std::uint8_t>(count >> (8 * (bytes - 1 - byte)));
    }
    return 1 + bytes;
}

Texts pack(const std::vector<Part>& parts, std::int64_t first, const std::vector<std::string>& names,
           std::uint8_t* body, std::uint8_t* crcs, bool fold) {
    std::int64_t events = 0;
    std::size_t longest = 0;
    for (const Part& part : parts) {
        events += part.events;
    }
    for (const std::string& name : names) {
        longest = std::max(longest, name.size());
    }
    const std::size_t line = integers_a_line * (longest_integer + 1) + 16;
    const auto lines = static_cast<std::size_t>(events);
    Lines plain(lines * (line + longest) + 4), places(lines * line + 4);
    std::uint8_t head[5];
    std::int64_t offset = array_head(events, head), index = 0;
    if (body != nullptr) {
        std::memcpy(body, head, static_cast<std::size_t>(offset));
    }
    std::uint32_t crc = crc32(0, head, static_cast<std::size_t>(offset), false);
    Run run;
    for (const Part& part : parts) {
        const std::uint8_t* from = part.data + part.start;
        for (std::int64_t at = 0; at < part.events; ++at, ++index) {
            const Row& row = part.rows[at];
            const std::int64_t number = part.numbers[static_cast<std::size_t>(row.request)];
            const auto bytes = static_cast<std::size_t>(row.bytes);
            crc = crc32(crc, from, bytes, fold);
            put_word(crcs + 4 * index, crc);
            if (body != nullptr) {
                std::memcpy(body + offset, from, bytes);
            }
            put_plain(plain, number, row, names[static_cast<std::size_t>(row.tag)], offset);
            if (run.number == number && run.epoch == row.epoch) {
                ++run.events;
                run.bytes += row.bytes;
            } else {
                if (run.events > 0) {
                    run.put(places);
                }
                run = {number, row.epoch, row.seq, 1, first + index, offset, row.bytes};
            }
            from += bytes;
            offset += row.bytes;
        }
    }
    if (run.events > 0) {
        run.put(places);
    }
    return {plain.end(), places.end()};
}

}  // namespace kvsweep::ledger
