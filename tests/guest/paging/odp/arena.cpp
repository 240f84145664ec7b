// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "arena.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace odp {

using namespace mr_notify;
using namespace std::chrono_literals;

namespace {

constexpr int read_write = PROT_READ | PROT_WRITE;

range part(dice &roll, const slot &of, std::size_t length)
{
	const range r = of.where();

	return {r.addr + below(roll, r.length - length + 1), length};
}

void must(bool done, const char *what)
{
	if (!done) {
		std::perror(what);
		std::abort();
	}
}

/* Changes the mapping. Keeps or drops the slot's bytes, in the memory and in the model. */
void change(slot &one, dice &roll)
{
	const range r = one.where();

	switch (below(roll, 6)) {
	case 0:
		/* Never leaves a hole, because another thread could map its memory there. */
		one.set_shared(false);
		one.forget_all();
		must(mmap(r.addr, r.length, read_write, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
			  0) == r.addr,
		     "mmap");
		break;
	case 1:
		madvise(r.addr, r.length, MADV_DONTNEED);
		if (!one.shared())
			one.forget_all();
		break;
	case 2: {
		/* moved away and back; in between, other memory may be mapped there */
		void *const away = mremap(r.addr, r.length, r.length,
					  MREMAP_MAYMOVE | MREMAP_DONTUNMAP, nullptr);
		must(away != MAP_FAILED, "mremap");
		must(mremap(away, r.length, r.length, MREMAP_MAYMOVE | MREMAP_FIXED, r.addr) ==
			     r.addr,
		     "mremap back");
		break;
	}
	case 3:
		/* shared memory, and pages of a file in memory */
		must(mmap(r.addr, r.length, read_write, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1,
			  0) == r.addr,
		     "mmap, shared");
		one.set_shared(true);
		one.forget_all();
		break;
	case 4:
		mprotect(r.addr, r.length, PROT_READ);
		mprotect(r.addr, r.length, read_write);
		break;
	default:
		madvise(r.addr, r.length, MADV_PAGEOUT);
	}
}

} // namespace

std::size_t below(dice &roll, std::size_t limit)
{
	return std::uniform_int_distribution<std::size_t>(0, limit - 1)(roll);
}

void slot::place(range where)
{
	where_ = where;
	model_.assign(where.addr, where.end());
}

void slot::forget_all()
{
	std::fill(model_.begin(), model_.end(), std::byte{0});
}

void slot::fill(dice &roll)
{
	const uint64_t salt = roll();

	for (std::size_t i = 0; i < where_.length; i++) {
		const uint64_t mixed = (number(where_.addr + i) ^ salt) * 0x9e3779b97f4a7c15U;
		model_[i] = where_.addr[i] = static_cast<std::byte>(mixed >> 56);
	}
}

std::size_t slot::wrong() const
{
	std::size_t count = 0;

	for (std::size_t i = 0; i < where_.length; i++)
		count += where_.addr[i] != model_[i];
	return count;
}

arena::arena(const device &on, uint64_t seed)
    : on_(on), seed_(seed), whole_(anonymous(slots * slot_pages * page_size()))
{
	const range r = whole_.registered();

	for (std::size_t i = 0; i < slots; i++)
		all_[i].place({r.addr + i * slot_pages * page_size(), slot_pages * page_size()});
	keys_.push_back(register_all(on, all_rights | IBV_ACCESS_MW_BIND));
	keys_.push_back(
		on.register_memory(r, all_rights | IBV_ACCESS_MW_BIND | IBV_ACCESS_ON_DEMAND));
}

/* Splits the range into up to three pieces. */
std::vector<piece> arena::pieces(dice &roll, range r) const
{
	std::vector<piece> list;

	while (list.size() < 2 && r.length > 1 && below(roll, 2)) {
		const std::size_t first = 1 + below(roll, r.length - 1);

		list.push_back({{r.addr, first}, key(roll)->lkey});
		r = {r.addr + first, r.length - first};
	}
	list.push_back({r, key(roll)->lkey});
	return list;
}

bool arena::bind(loopback &link, ibv_mw *window, range r)
{
	ibv_mw_bind how{};

	how.send_flags = IBV_SEND_SIGNALED;
	how.bind_info = {keys_.front().get(), number(r.addr), r.length,
			 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
				 IBV_ACCESS_REMOTE_ATOMIC};
	check_verb(ibv_bind_mw(link.near_end(), window, &how), "ibv_bind_mw");
	return link.wait().status == IBV_WC_SUCCESS;
}

/* One transfer between two slots; returns false if it failed. */
bool arena::transfer(dice &roll, loopback &link, ibv_mw *window, slot &a, slot &b)
{
	const std::size_t most = slot_pages * page_size();
	const std::size_t length = 1 + below(roll, below(roll, 4) ? most : 64);
	const range from = part(roll, a, length);
	const range to = part(roll, b, length);
	const ibv_mr *const local = key(roll);
	const auto moved = [&](range source, slot &s, range target, slot &t) {
		std::memcpy(t.model(target.addr), s.model(source.addr), source.length);
	};
	uint32_t rkey = key(roll)->rkey;

	count_.bytes += length;
	if (below(roll, 4) == 0) {
		if (!bind(link, window, b.where()))
			return false;
		rkey = window->rkey;
	}
	switch (below(roll, 4)) {
	case 0:
		moved(from, a, to, b);
		return run(link, {IBV_WR_RDMA_WRITE, pieces(roll, from), number(to.addr), rkey}) ==
		       IBV_WC_SUCCESS;
	case 1:
		moved(to, b, from, a);
		return run(link, {IBV_WR_RDMA_READ, pieces(roll, from), number(to.addr), rkey}) ==
		       IBV_WC_SUCCESS;
	case 2: {
		moved(from, a, to, b);
		const both ends = send(link, pieces(roll, from), {{to, local->lkey}});
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
				  {{old, local->lkey}},
				  number(target),
				  rkey,
				  added,
				  0}) == IBV_WC_SUCCESS;
	}
	}
}

/*
 * Posts a write that begins before the window, or ends after it. Returns whether the device refused
 * it.
 */
bool arena::is_kept_out(dice &roll, loopback &link, ibv_mw *window)
{
	slot &one = all_[below(roll, slots)];
	const std::scoped_lock alone(one.mutex());
	const range r = one.where();
	const range inner{r.addr + page_size(), 3 * page_size()};
	std::byte *const at =
		below(roll, 2) ? inner.end() - below(roll, 100) : inner.addr - 1 - below(roll, 100);

	if (!bind(link, window, inner))
		return false;
	const ibv_wc_status status = run(
		link,
		{IBV_WR_RDMA_WRITE, {{{r.addr, 100}, key(roll)->lkey}}, number(at), window->rkey});
	/*
	 * The far end sends only one NAK. If the near end's timeout has just expired, the near end
	 * ignores the NAK, and repeats the write to a queue pair in the error state.
	 */
	return (status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_RETRY_EXC_ERR) &&
	       one.wrong() == 0;
}

void arena::transfer_on(uint64_t seed)
{
	static constexpr std::array sizes{IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_4096};
	dice roll(seed);

	while (!stop_) {
		loopback link(on_, nullptr, sizes[below(roll, sizes.size())]);
		const owned<ibv_mw> window(ibv_alloc_mw(on_.pd(), IBV_MW_TYPE_1));
		must(window != nullptr, "ibv_alloc_mw");

		for (int i = 0; i < 200 && !stop_; i++) {
			const std::size_t first = below(roll, slots);
			const std::size_t second = (first + 1 + below(roll, slots - 1)) % slots;
			slot &a = all_[first];
			slot &b = all_[second];
			const std::scoped_lock both_slots(a.mutex(), b.mutex());

			if (below(roll, 3) == 0)
				a.fill(roll);
			if (!transfer(roll, link, window.get(), a, b)) {
				count_.failed++;
				return;
			}
			count_.wrong += a.wrong() + b.wrong();
			count_.transfers++;
		}
		/* Only an error ends a connection, because the number of retries is unlimited. */
		loopback last(on_, nullptr, sizes[below(roll, sizes.size())], {18, 6});
		if (is_kept_out(roll, last, window.get()))
			count_.kept_out++;
		else
			count_.failed++;
	}
}

void arena::change_on(uint64_t seed)
{
	dice roll(seed);

	while (!stop_) {
		slot &one = all_[below(roll, slots)];
		{
			const std::scoped_lock alone(one.mutex());
			change(one, roll);
			count_.wrong += one.wrong();
		}
		count_.changes++;
		std::this_thread::yield();
	}
}

/* Forks children that write to their copies; changes protections at any time. */
void arena::disturb_on(uint64_t seed)
{
	dice roll(seed);

	while (!stop_) {
		const auto begin = std::chrono::steady_clock::now();
		const pid_t child = fork();
		if (child == 0) {
			/* A child must write only to private slots, which are copies. */
			for (const slot &one : all_)
				madvise(one.where().addr, page_size(), MADV_COLD);
			_exit(0);
		}
		if (child > 0)
			waitpid(child, nullptr, 0);
		const range r = all_[below(roll, slots)].where();
		mprotect(r.addr, r.length, PROT_READ | PROT_WRITE | PROT_EXEC);
		mprotect(r.addr, r.length, read_write);
		/*
		 * Waits between two changes, so that pages stay mapped for a while on a slow
		 * machine, too.
		 */
		std::this_thread::sleep_for(5ms + 2 * (std::chrono::steady_clock::now() - begin));
	}
}

void arena::start()
{
	for (uint64_t i = 0; i < 3; i++)
		threads_.emplace_back([this, i] {
			try {
				transfer_on(seed_ + i);
			} catch (const std::exception &problem) {
				std::fprintf(stderr, "seed %" PRIu64 ": %s\n", seed_,
					     problem.what());
				count_.failed++;
			}
		});
	threads_.emplace_back(&arena::change_on, this, seed_ + 3);
	threads_.emplace_back(&arena::disturb_on, this, seed_ + 4);
}

void arena::stop()
{
	stop_ = true;
	for (std::thread &one : threads_)
		one.join();
	threads_.clear();
}

void arena::print(const char *who) const
{
	std::printf("%s: seed %" PRIu64 ": %" PRIu64 " transfers, %" PRIu64 " bytes, %" PRIu64
		    " changes, %" PRIu64 " kept out, %" PRIu64 " wrong, %" PRIu64 " failed\n",
		    who, seed_, count_.transfers.load(), count_.bytes.load(), count_.changes.load(),
		    count_.kept_out.load(), count_.wrong.load(), count_.failed.load());
	std::fflush(stdout);
}

} // namespace odp
