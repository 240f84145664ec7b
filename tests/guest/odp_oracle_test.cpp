// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The bytes of on-demand paging against a model, at random: operations, offsets, lengths,
 * packet sizes, kinds of registration, while other threads unmap, drop, move, protect and
 * fork. Memory is cut into slots. Who transfers or changes one has it alone, so what each
 * byte must be is known; the threads meet in the address space, not in a slot.
 *
 * RUN_SECONDS: how long (default 3). RUN_SEED: which run. The last line counts.
 */
#include "catch.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "loopback.h"
#include "odp/operations.h"
#include "skip.h"

using namespace mr_notify;
using namespace odp;

namespace {

constexpr int remote = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
		       IBV_ACCESS_REMOTE_ATOMIC;
constexpr std::size_t slot_pages = 9;
constexpr std::size_t slots = 24;

std::size_t number_of(const char *name, std::size_t otherwise)
{
	const char *const text = std::getenv(name);

	return text ? std::strtoul(text, nullptr, 10) : otherwise;
}

using dice = std::mt19937_64;

std::size_t below(dice &roll, std::size_t limit)
{
	return std::uniform_int_distribution<std::size_t>(0, limit - 1)(roll);
}

/* Some pages, and what each byte of them must be. */
class slot {
public:
	void place(range where)
	{
		where_ = where;
		model_.assign(where.addr, where.end());
	}
	range where() const { return where_; }
	std::mutex &mutex() { return mutex_; }
	std::byte *model(const std::byte *at) { return model_.data() + (at - where_.addr); }
	void forget_all() { std::fill(model_.begin(), model_.end(), std::byte{0}); }
	/* Shared: what is dropped from the page tables is kept elsewhere */
	void set_shared(bool shared) { shared_ = shared; }
	bool shared() const { return shared_; }
	/* Each byte tells its address and who wrote it. */
	void fill(dice &roll)
	{
		const uint64_t salt = roll();

		for (std::size_t i = 0; i < where_.length; i++) {
			const uint64_t mixed =
				(number(where_.addr + i) ^ salt) * 0x9e3779b97f4a7c15U;
			model_[i] = where_.addr[i] = static_cast<std::byte>(mixed >> 56);
		}
	}
	std::size_t wrong() const
	{
		std::size_t count = 0;

		for (std::size_t i = 0; i < where_.length; i++)
			count += where_.addr[i] != model_[i];
		return count;
	}

private:
	range where_;
	std::vector<std::byte> model_;
	std::mutex mutex_;
	bool shared_ = false;
};

/* What the threads share. */
class arena {
public:
	explicit arena(const device &on)
	    : on_(on), whole_(anonymous(slots * slot_pages * page_size()))
	{
		const range r = whole_.registered();

		for (std::size_t i = 0; i < slots; i++)
			all_[i].place(
				{r.addr + i * slot_pages * page_size(), slot_pages * page_size()});
		keys_.push_back(register_all(on, remote));
		keys_.push_back(on.register_memory(r, remote | IBV_ACCESS_ON_DEMAND));
	}

	const device &on() const { return on_; }
	slot &at(std::size_t i) { return all_[i]; }
	const ibv_mr *key(dice &roll) const { return keys_[below(roll, keys_.size())].get(); }

	std::atomic<bool> stop{false};
	std::atomic<uint64_t> transfers{0}, bytes{0}, changes{0}, wrong{0}, failed{0};

private:
	const device &on_;
	memory whole_;
	std::array<slot, slots> all_;
	std::vector<owned<ibv_mr>> keys_;
};

/* A part of a slot. */
range part(dice &roll, const slot &of, std::size_t length)
{
	const range r = of.where();

	return {r.addr + below(roll, r.length - length + 1), length};
}

/* Cut into up to three pieces. */
std::vector<piece> pieces(dice &roll, range r, const arena &in)
{
	std::vector<piece> list;

	while (list.size() < 2 && r.length > 1 && below(roll, 2)) {
		const std::size_t first = 1 + below(roll, r.length - 1);

		list.push_back({{r.addr, first}, in.key(roll)->lkey});
		r = {r.addr + first, r.length - first};
	}
	list.push_back({r, in.key(roll)->lkey});
	return list;
}

/* One transfer between two slots; false when it did not succeed. */
bool transfer(arena &in, dice &roll, loopback &link, slot &a, slot &b)
{
	const std::size_t most = slot_pages * page_size();
	const std::size_t length = 1 + below(roll, below(roll, 4) ? most : 64);
	const range from = part(roll, a, length);
	const range to = part(roll, b, length);
	const ibv_mr *const key = in.key(roll);
	const auto moved = [&](range source, slot &s, range target, slot &t) {
		std::memcpy(t.model(target.addr), s.model(source.addr), source.length);
	};

	in.bytes += length;
	switch (below(roll, 4)) {
	case 0:
		moved(from, a, to, b);
		return run(link, {IBV_WR_RDMA_WRITE, pieces(roll, from, in), number(to.addr),
				  key->rkey}) == IBV_WC_SUCCESS;
	case 1:
		moved(to, b, from, a);
		return run(link, {IBV_WR_RDMA_READ, pieces(roll, from, in), number(to.addr),
				  key->rkey}) == IBV_WC_SUCCESS;
	case 2: {
		moved(from, a, to, b);
		const both ends = send(link, pieces(roll, from, in), {{to, key->lkey}});
		return ends.sender == IBV_WC_SUCCESS && ends.receiver == IBV_WC_SUCCESS;
	}
	default: {
		std::byte *const target = b.where().addr + 8 * below(roll, most / 8);
		const range old = part(roll, a, 8);
		const uint64_t added = roll();
		uint64_t value = 0;

		std::memcpy(a.model(old.addr), b.model(target), 8);
		std::memcpy(&value, b.model(target), 8);
		value += added;
		std::memcpy(b.model(target), &value, 8);
		return run(link, {IBV_WR_ATOMIC_FETCH_AND_ADD,
				  {{old, in.key(roll)->lkey}},
				  number(target),
				  key->rkey,
				  added,
				  0}) == IBV_WC_SUCCESS;
	}
	}
}

void transfer_on(arena &in, uint64_t seed)
{
	static constexpr std::array sizes{IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_4096};
	dice roll(seed);

	while (!in.stop) {
		loopback link(in.on(), nullptr, sizes[below(roll, sizes.size())]);

		for (int i = 0; i < 200 && !in.stop; i++) {
			const std::size_t first = below(roll, slots);
			const std::size_t second = (first + 1 + below(roll, slots - 1)) % slots;
			slot &a = in.at(first);
			slot &b = in.at(second);
			const std::scoped_lock both_slots(a.mutex(), b.mutex());

			if (below(roll, 3) == 0)
				a.fill(roll);
			if (!transfer(in, roll, link, a, b)) {
				in.failed++;
				return;
			}
			in.wrong += a.wrong() + b.wrong();
			in.transfers++;
		}
	}
}

void must(bool done, const char *what)
{
	if (!done) {
		std::perror(what);
		std::abort();
	}
}

/* A change that leaves the slot's bytes, or drops them, as the model says. */
void change(slot &one, dice &roll)
{
	const range r = one.where();
	const int both = PROT_READ | PROT_WRITE;

	switch (below(roll, 6)) {
	case 0:
		/* Never a hole: another thread's memory would come to be in it */
		one.set_shared(false);
		one.forget_all();
		must(mmap(r.addr, r.length, both, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
			     r.addr,
		     "mmap");
		break;
	case 1:
		madvise(r.addr, r.length, MADV_DONTNEED);
		if (!one.shared())
			one.forget_all();
		break;
	case 2: {
		/* away and back: other pages can come to be there in between */
		void *const away = mremap(r.addr, r.length, r.length,
					  MREMAP_MAYMOVE | MREMAP_DONTUNMAP, nullptr);
		must(away != MAP_FAILED, "mremap");
		must(mremap(away, r.length, r.length, MREMAP_MAYMOVE | MREMAP_FIXED, r.addr) ==
			     r.addr,
		     "mremap back");
		break;
	}
	case 3:
		/* shared, and pages of a file in memory */
		must(mmap(r.addr, r.length, both, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
			     r.addr,
		     "mmap, shared");
		one.set_shared(true);
		one.forget_all();
		break;
	case 4:
		mprotect(r.addr, r.length, PROT_READ);
		mprotect(r.addr, r.length, both);
		break;
	default:
		madvise(r.addr, r.length, MADV_PAGEOUT);
	}
}

void change_on(arena &in, uint64_t seed)
{
	dice roll(seed);

	while (!in.stop) {
		slot &one = in.at(below(roll, slots));
		{
			const std::scoped_lock alone(one.mutex());
			change(one, roll);
			in.wrong += one.wrong();
		}
		in.changes++;
		std::this_thread::yield();
	}
}

/* Children that write to their copies; what is protected comes and goes, at any time. */
void disturb_on(arena &in, uint64_t seed)
{
	dice roll(seed);

	while (!in.stop) {
		const pid_t child = fork();
		if (child == 0) {
			/* only the private ones are a copy: a child writes to none that is shared
			 */
			for (std::size_t i = 0; i < slots; i++)
				madvise(in.at(i).where().addr, page_size(), MADV_COLD);
			_exit(0);
		}
		if (child > 0)
			waitpid(child, nullptr, 0);
		const range r = in.at(below(roll, slots)).where();
		mprotect(r.addr, r.length, PROT_READ | PROT_WRITE | PROT_EXEC);
		mprotect(r.addr, r.length, PROT_READ | PROT_WRITE);
		std::this_thread::sleep_for(std::chrono::milliseconds(5));
	}
}

} // namespace

TEST_CASE("every byte is where the model has it")
{
	const device on;
	ibv_device_attr_ex attr{};
	check_verb(ibv_query_device_ex(on.context(), nullptr, &attr), "ibv_query_device_ex");
	SKIP_IF(!(attr.device_cap_flags_ex & IBV_DEVICE_MR_ALL), "no on-demand paging");
	const uint64_t seed = number_of("RUN_SEED", std::random_device()());
	const auto seconds = std::chrono::seconds(number_of("RUN_SECONDS", 3));
	arena in(on);
	std::vector<std::thread> threads;

	for (uint64_t i = 0; i < 3; i++)
		threads.emplace_back(transfer_on, std::ref(in), seed + i);
	threads.emplace_back(change_on, std::ref(in), seed + 3);
	threads.emplace_back(disturb_on, std::ref(in), seed + 4);
	const auto end = std::chrono::steady_clock::now() + seconds;
	/* at least so much, however slow the machine is */
	while (std::chrono::steady_clock::now() < end || (in.transfers < 100 && !in.failed))
		std::this_thread::sleep_for(std::chrono::milliseconds(10));
	in.stop = true;
	for (std::thread &one : threads)
		one.join();

	std::printf("oracle: seed %llu: %llu transfers, %llu bytes, %llu changes, %llu wrong, "
		    "%llu failed\n",
		    static_cast<unsigned long long>(seed),
		    static_cast<unsigned long long>(in.transfers),
		    static_cast<unsigned long long>(in.bytes),
		    static_cast<unsigned long long>(in.changes),
		    static_cast<unsigned long long>(in.wrong),
		    static_cast<unsigned long long>(in.failed));
	CHECK(in.wrong == 0);
	CHECK(in.failed == 0);
	CHECK(pinned_bytes() == 0);
}
