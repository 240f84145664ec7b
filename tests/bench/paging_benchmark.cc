// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * RDMA writes into an address space of many mappings, each of one page. The row WAY/COUNT has COUNT
 * mappings, and one message goes to 16 adjacent mappings:
 *  registered   one MR of all mappings, which was registered before the messages
 *  all          one MR of all memory; the pages are present
 *  dropped      one MR of all memory; the pages of the message have just been dropped
 *  touched      no message: the CPU writes to 16 pages, which have just been dropped
 *  left         no message: the CPU writes to 16 pages, which are present
 * The time includes only the message, or only the CPU's writes.
 */
#include <benchmark/benchmark.h>
#include <sched.h>
#include <sys/mman.h>

#include <chrono>
#include <memory>
#include <random>

#include "loopback.h"

using namespace mr_notify;

namespace {

constexpr std::size_t message_pages = 16;
constexpr int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

enum class way { registered, all, dropped, touched, left };

/* Maps pages so that neighbours are never in the same mapping. */
memory mappings(std::size_t count)
{
	memory m = anonymous(count * page_size());

	for (std::size_t i = 0; i < count; i += 2)
		if (madvise(m.registered().addr + i * page_size(), page_size(), MADV_DONTDUMP))
			fail("madvise: vm.max_map_count");
	return m;
}

/* Only one instance may exist, because mappings of other instances would count, too. */
struct place {
	explicit place(std::size_t count)
	    : target(mappings(count)), registered(on.register_memory(target.registered(), rights)),
	      all(ibv_register_mr_all(on.pd(), rights))
	{
		if (!all)
			fail("ibv_register_mr_all");
	}

	void send(std::byte *to, uint32_t rkey)
	{
		link.start(IBV_WR_RDMA_WRITE, source_mr.get(), source.registered(), to, rkey);
		for (;;) {
			const auto wc = link.poll();
			if (wc && wc->status != IBV_WC_SUCCESS)
				throw std::runtime_error(ibv_wc_status_str(wc->status));
			if (wc)
				return;
			sched_yield(); /* a software device needs the CPU too */
		}
	}

	device on;
	loopback link{on};
	memory source = anonymous(message_pages * page_size());
	owned<ibv_mr> source_mr = on.register_memory(source.registered());
	memory target;
	owned<ibv_mr> registered, all;
};

place &of(std::size_t count)
{
	static std::unique_ptr<place> now;

	if (!now || now->target.registered().length != count * page_size()) {
		now.reset();
		now = std::make_unique<place>(count);
	}
	return *now;
}

void run(benchmark::State &state, way how)
{
	const auto count = static_cast<std::size_t>(state.range(0));
	place &p = of(count);
	const std::size_t length = message_pages * page_size();
	const uint32_t rkey = how == way::registered ? p.registered->rkey : p.all->rkey;
	std::mt19937 random;

	/* Dropping registered pages would make the registrations stale */
	if (how != way::registered)
		p.registered.reset();
	else if (!p.registered)
		p.registered = p.on.register_memory(p.target.registered(), rights);
	for (auto _ : state) {
		std::byte *const to = p.target.registered().addr +
				      random() % (count - message_pages + 1) * page_size();

		if (how == way::dropped || how == way::touched)
			if (madvise(to, length, MADV_DONTNEED))
				fail("madvise");
		const auto begun = std::chrono::steady_clock::now();
		if (how == way::touched || how == way::left)
			for (std::size_t at = 0; at < length; at += page_size())
				static_cast<volatile std::byte *>(to)[at] = std::byte{1};
		else
			p.send(to, rkey);
		state.SetIterationTime(
			std::chrono::duration<double>(std::chrono::steady_clock::now() - begun)
				.count());
	}
}

} // namespace

int main(int argc, char **argv)
{
	try {
		const std::pair<const char *, way> ways[] = {{"registered", way::registered},
							     {"all", way::all},
							     {"dropped", way::dropped},
							     {"touched", way::touched},
							     {"left", way::left}};
		for (const auto &[name, how] : ways)
			benchmark::RegisterBenchmark(name, run, how)
				->RangeMultiplier(10)
				->Range(100, 100000)
				->UseManualTime();
		benchmark::Initialize(&argc, argv);
		benchmark::RunSpecifiedBenchmarks();
		return 0;
	} catch (const std::exception &e) {
		std::fprintf(stderr, "%s\n", e.what());
		return 1;
	}
}
