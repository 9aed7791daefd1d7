// Splitting a range over threads. Threads live for one call: a pool would outlive a fork and hold cores.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace kvsweep {

// Calls work(begin, end) on contiguous parts of [0, count), at most `threads` of them and none below `least` items.
// work must not throw.
template <class Work>
void split(std::int64_t count, int threads, std::int64_t least, const Work& work) {
    const std::int64_t parts = std::clamp<std::int64_t>(count / std::max<std::int64_t>(least, 1), 1, threads);
    if (parts == 1) {
        work(std::int64_t{0}, count);
        return;
    }
    std::vector<std::jthread> others;
    others.reserve(static_cast<std::size_t>(parts - 1));
    for (std::int64_t part = 1; part < parts; ++part) {
        others.emplace_back(
            [&work, begin = count * part / parts, end = count * (part + 1) / parts] { work(begin, end); });
    }
    work(std::int64_t{0}, count / parts);
}

}  // namespace kvsweep
