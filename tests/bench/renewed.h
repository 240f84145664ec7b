/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Measures the misses of each cache. A row registers and releases 64 KiB, unmaps the memory, and
 * maps it again. It calls libc for this, so hooks see the change. The row renewed/nothing has no
 * registration. The cost of a miss is the time of another row minus the time of renewed/nothing. It
 * includes noticing the change. Each cache also has a second registration, which stays. Without the
 * second registration the kernel would unpin the page of the words each time that the last
 * registration ends. Real caches are rarely empty.
 */
#ifndef BENCH_RENEWED_H
#define BENCH_RENEWED_H

#include <benchmark/benchmark.h>

#include <sys/mman.h>

#include <cstddef>
#include <string>

namespace renewed {

constexpr std::size_t size = 65536;

inline std::byte *map(std::byte *at)
{
	return static_cast<std::byte *>(
		mmap(at, size, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | (at ? MAP_FIXED : 0), -1, 0));
}

/* Adds a row; use(address, length) registers and releases. */
template <class Use> void add(const std::string &name, Use use)
{
	benchmark::RegisterBenchmark(("renewed/" + name).c_str(), [use](benchmark::State &state) {
		/* A gap keeps libraries and the kernel from merging the mappings. */
		auto *const kept = static_cast<std::byte *>(
			mmap(nullptr, 3 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
		std::byte *const at = map(kept + 2 * size);

		use(map(kept), size); /* opens the device before the clock starts */
		use(at, size);
		for (auto _ : state) {
			use(at, size);
			munmap(at, size);
			map(at);
		}
		munmap(kept, 3 * size);
	});
}

/* The row of a library, and the row without registration. */
template <class Use> void add_both(Use use)
{
	add("registered", use);
	add("nothing", [](std::byte *, std::size_t) {});
}

} // namespace renewed

#endif // BENCH_RENEWED_H
