// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "random_access.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>

#include "secret_memory.h"

namespace odp {

using namespace mr_notify;
using namespace std::chrono_literals;
using std::chrono::steady_clock;

namespace {

/*
 * The kernel never chooses this address itself, so no other thread gets a mapping in a hole here.
 */
std::byte *const low = reinterpret_cast<std::byte *>(0x400000000);

} // namespace

random_access::random_access(const device &on, uint64_t seed)
    : on_(on), seed_(seed), area_(anonymous(pages * page_size())),
      plain_(anonymous(pages * page_size()))
{
	try {
		slow_ = slow_memory::make(pages * page_size());
	} catch (const unsupported &) {
		/* The machine lacks this kind of memory. The other kinds are still accessed. */
	}
}

range random_access::somewhere(dice &roll, range in, std::size_t most) const
{
	const std::size_t length = 1 + below(roll, most);

	return {in.addr + below(roll, in.length - length + 1), length};
}

void random_access::change(dice &roll)
{
	const std::size_t first = below(roll, pages);
	const std::size_t count = 1 + below(roll, pages - first);
	const range r{area_.registered().addr + first * page_size(), count * page_size()};
	const range hole{low + first * page_size(), r.length};

	switch (below(roll, 9)) {
	case 0:
		mprotect(r.addr, r.length, PROT_NONE);
		break;
	case 1:
		mprotect(r.addr, r.length, PROT_READ);
		break;
	case 2:
		if (!make_secret(r))
			mprotect(r.addr, r.length, PROT_NONE);
		break;
	case 3:
		madvise(r.addr, r.length, MADV_DONTNEED);
		break;
	case 4:
		madvise(r.addr, r.length, MADV_PAGEOUT);
		break;
	case 5:
		munmap(hole.addr, hole.length);
		break;
	case 6:
		if (slow_)
			slow_->answer(std::byte{1});
		break;
	case 7:
		if (slow_)
			madvise(slow_->bytes().addr, slow_->bytes().length, MADV_DONTNEED);
		break;
	default:
		mmap(r.addr, r.length, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		mmap(hole.addr, hole.length, PROT_READ,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	}
}

/* Posts some requests, and then ends the queue pair or objects that the requests need. */
void random_access::access(dice &roll)
{
	static constexpr std::size_t most = 20000;
	const auto begin = steady_clock::now();
	loopback link(on_);
	owned<ibv_mr> all = register_all(on_, all_rights);
	const auto patience = std::max<steady_clock::duration>(200ms, steady_clock::now() - begin);
	std::size_t posted = 0;

	for (const std::size_t wanted = 1 + below(roll, 4); posted < wanted; posted++) {
		const std::size_t kind = below(roll, 4);
		const range there = kind == 0 ? somewhere(roll, {low, pages * page_size()}, most)
				    : kind == 1 && slow_
					    ? somewhere(roll, slow_->bytes(), most)
					    : somewhere(roll, area_.registered(), most);
		const piece here{{plain_.registered().addr, there.length}, all->lkey};
		const piece other{there, all->lkey};
		const bool away = kind && below(roll, 2);

		if (below(roll, 2)) /* the far end changes */
			post(link.near_end(), {away ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
					       {here},
					       number(there.addr),
					       all->rkey});
		else
			post(link.near_end(), {away ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
					       {other},
					       number(here.where.addr),
					       all->rkey});
	}
	switch (below(roll, 6)) {
	case 0:
		all.reset();
		[[fallthrough]];
	case 1:
		count_.abandoned += posted;
		return;
	case 2: {
		ibv_qp_attr attr{};
		attr.qp_state = IBV_QPS_ERR;
		ibv_modify_qp(link.near_end(), &attr, IBV_QP_STATE);
		count_.abandoned += posted;
		return;
	}
	default:
		/*
		 * Stops waiting after a while, because a request may wait for a fault that gets no
		 * answer. On a slow machine the wait is as long as connecting took.
		 */
		for (const auto end = steady_clock::now() + patience;
		     posted && steady_clock::now() < end && !stop_;) {
			const auto wc = link.poll();
			if (wc) {
				(wc->status == IBV_WC_SUCCESS ? count_.done : count_.refused)++;
				posted--;
			} else {
				usleep(1000);
			}
		}
		count_.abandoned += posted;
	}
}

void random_access::start()
{
	threads_.emplace_back([this] {
		for (dice roll(seed_); !stop_;) {
			const auto begin = steady_clock::now();

			change(roll);
			/* Waits as arena::disturb_on() does */
			std::this_thread::sleep_for(200us + (steady_clock::now() - begin));
		}
	});
	for (uint64_t i = 1; i <= 2; i++)
		threads_.emplace_back([this, i] {
			for (dice roll(seed_ + i); !stop_;)
				access(roll);
		});
}

void random_access::stop()
{
	stop_ = true;
	for (std::thread &one : threads_)
		one.join();
	threads_.clear();
}

} // namespace odp
