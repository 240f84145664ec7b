// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * An unmodified program gets the same results with the cache as without it. A random program of
 * verbs runs with RDMAV_MR_CACHE unset and with 1. The test compares every return value, errno
 * value, completion and byte, but no keys, handles and addresses. The program does everything that
 * verbs allow:
 *  - It closes a PD or a CQ in use.
 *  - It registers ranges that overlap, are unaligned or are unmapped.
 *  - It passes rights and flags that make no sense.
 *  - It replaces memory that is not registered.
 *  - It empties and limits the cache.
 *  - It cancels a thread that registers.
 *  - It holds the lock of an allocator that another thread needs for a registration.
 *
 * The program also runs in six special processes. They have a low limit of locked memory, all
 * memory locked, a timer, a small memory control group, a need for all of a pool of huge pages, or
 * memory that is moved and sealed. The last three processes use memory that they have just
 * deregistered.
 *
 * These differences are intended. The program avoids them or compares them with care:
 *  - ibv_rereg_mr() of a cached MR may fail with EINVAL. The program deregisters each MR right
 *    after ibv_rereg_mr().
 *  - A local key may cover more than the requested range, with more rights. The program accesses
 *    only the range that it registered, unless a peer takes part.
 *  - A receive that was posted before a deregistration succeeds. The program leaves no receive
 *    posted.
 *  - A registration is not a cancellation point. The program does not compare whether a thread was
 *    cancelled during a registration or after it.
 *
 * RUN_SEED sets the first seed. RUN_SECONDS sets the time (default 3).
 */
#include "catch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <pthread.h>
#include <unistd.h>

#include <linux/mempolicy.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "child.h"
#include "device.h"
#include "huge_pool.h"
#include "loopback.h"
#include "own_pages.h"
#include "post.h"
#include "skip.h"
#include "system.h"
#include "trial.h"

using namespace mr_notify;

namespace {

/*
 * The next calloc() of this thread calls the hook, once. Providers allocate their structs with
 * calloc().
 */
thread_local void (*hook)(void *with) = nullptr;
thread_local void *hook_with = nullptr;

} // namespace

/*
 * The C++ name differs from calloc, because the C library declares calloc() as not throwing, but
 * cancelling a thread in calloc() throws.
 */
extern "C" {
void *__libc_calloc(size_t, size_t);
void *hooked_calloc(size_t count, size_t size) __asm__("calloc");
void *hooked_calloc(size_t count, size_t size)
{
	if (const auto now = hook) {
		hook = nullptr;
		now(hook_with);
	}
	return __libc_calloc(count, size);
}
}

namespace {

constexpr int steps = 250;
constexpr int pool_pages = 4;
constexpr int remote_rights =
	IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
constexpr int rights = IBV_ACCESS_LOCAL_WRITE | remote_rights;

std::string said(int error)
{
	return error ? std::strerror(error) : "0";
}

std::string made(const void *what)
{
	return what ? "made" : std::string("NULL, ") + std::strerror(errno);
}

/* Maps pages at the same address in each process. Some pages may be unmapped. */
class fixed_memory {
public:
	static constexpr std::size_t pages = 48;

	fixed_memory()
	{
		for (std::size_t page = 0; page < pages; page++)
			map(page, 1);
	}
	fixed_memory(const fixed_memory &) = delete;
	fixed_memory &operator=(const fixed_memory &) = delete;
	~fixed_memory() { munmap(base(), pages * page_size()); }

	static std::byte *base() { return reinterpret_cast<std::byte *>(uintptr_t{0x1000000000}); }

	void map(std::size_t first, std::size_t count)
	{
		void *const where = base() + first * page_size();

		if (mmap(where, count * page_size(), PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != where)
			fail("mmap");
		std::fill_n(mapped_.begin() + first, count, true);
	}

	void unmap(std::size_t first, std::size_t count)
	{
		if (munmap(base() + first * page_size(), count * page_size()))
			fail("munmap");
		std::fill_n(mapped_.begin() + first, count, false);
	}

	void advise(std::size_t first, std::size_t count, int advice)
	{
		for (std::size_t page = first; page < first + count; page++)
			if (mapped_[page] &&
			    madvise(base() + page * page_size(), page_size(), advice))
				fail("madvise");
	}

	void fill(std::size_t first, std::size_t count, int value)
	{
		for (std::size_t page = first; page < first + count; page++)
			if (mapped_[page])
				std::memset(base() + page * page_size(), value, page_size());
	}

	std::size_t own() const { return own_pages(base(), pages * page_size()); }

	uint64_t sum() const
	{
		uint64_t of = 0;

		for (std::size_t page = 0; page < pages; page++)
			for (std::size_t at = 0; mapped_[page] && at < page_size(); at += 8) {
				uint64_t one;

				std::memcpy(&one, base() + page * page_size() + at, 8);
				of = (of ^ one) * 0x100000001b3 + page;
			}
		return of;
	}

private:
	std::array<bool, pages> mapped_{};
};

struct registration {
	ibv_mr *mr;
	range where;
	int access;

	/*
	 * RDMAV_MR_CACHE=1 does not cache registrations with remote rights, so an access outside of
	 * the range always fails.
	 */
	bool is_exact() const { return access & remote_rights; }
};

class program {
public:
	program(uint64_t seed, const std::string &kind)
	    : random_(seed), locks_all_(kind == "locked"), use_(use_of(kind))
	{
		pds_.push_back(on_.pd());
	}

	void run()
	{
		for (step_ = 0; step_ < steps; step_++)
			one_step();
		end();
	}

private:
	using method = void (program::*)();
	struct action {
		unsigned int weight;
		method go;
	};

	uint64_t below(uint64_t n) { return random_() % n; }

	template <class T> T &any(std::vector<T> &of) { return of[below(of.size())]; }

	template <class T> T taken(std::vector<T> &from, std::size_t at)
	{
		const T one = from[at];

		from.erase(from.begin() + static_cast<std::ptrdiff_t>(at));
		return one;
	}

	void say(const std::string &what, const std::string &result) const
	{
		tell(std::to_string(step_) + ": " + what + ": " + result);
	}

	static std::string name(range r)
	{
		return '[' + std::to_string(r.addr - fixed_memory::base()) + ", " +
		       std::to_string(r.end() - fixed_memory::base()) + ')';
	}

	void one_step()
	{
		static constexpr std::array<action, 16> actions{{
			{30, &program::reg_mr},
			{18, &program::dereg_mr},
			{2, &program::rereg_mr},
			{30, &program::transfer},
			{14, &program::change_memory},
			{4, &program::alloc_pd},
			{4, &program::dealloc_pd},
			{3, &program::create_cq},
			{3, &program::destroy_cq},
			{3, &program::create_qp},
			{3, &program::destroy_qp},
			{2, &program::fork_child},
			{2, &program::clean},
			{2, &program::set_limits},
			{2, &program::cancel_thread},
			{3, &program::lock_allocator},
		}};
		uint64_t left = 0;

		if (use_ && below(10) == 0)
			return (this->*use_)();
		for (const action &one : actions)
			left += one.weight;
		left = below(left);
		for (const action &one : actions) {
			if (left < one.weight)
				return (this->*one.go)();
			left -= one.weight;
		}
	}

	/*
	 * Often chooses a registered range, a part of the range, or a larger range, because a cache
	 * treats these differently.
	 */
	range any_range()
	{
		const std::size_t whole = fixed_memory::pages * page_size();

		if (!known_.empty() && below(2)) {
			range r = any(known_);

			if (below(2) && r.length > 2) {
				const std::size_t from = below(r.length - 1);
				r = {r.addr + from, 1 + below(r.length - from)};
			}
			return r;
		}
		range r;
		r.addr = fixed_memory::base() + below(whole);
		r.length = 1 + below(below(4) ? 3 * page_size() : whole);
		if (below(3) == 0) {
			r.addr -= reinterpret_cast<uintptr_t>(r.addr) % page_size();
			r.length = (r.length + page_size() - 1) / page_size() * page_size();
		}
		r.length = std::min(
			r.length, static_cast<std::size_t>(fixed_memory::base() + whole - r.addr));
		if (below(40) == 0)
			r.length = 0;
		known_.push_back(r);
		return r;
	}

	int any_access()
	{
		static constexpr std::array usual{
			IBV_ACCESS_LOCAL_WRITE + 0,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
			rights,
		};
		int access = static_cast<int>(below(2) ? usual[below(usual.size())] : below(16));

		if (below(12) == 0)
			access |= 1 << (4 + below(22));
		return access;
	}

	void reg_mr()
	{
		if (mrs_.size() >= 24)
			return dereg_mr();
		const range r = any_range();
		const int access = any_access();
		const std::size_t pd = below(2) ? 0 : below(pds_.size()); /* 0: the PD of the QPs */
		ibv_mr *mr = ibv_reg_mr(pds_[pd], r.addr, r.length, access);
		std::string result = made(mr);

		if (mr && (mr->addr != r.addr || mr->length != r.length || mr->pd != pds_[pd] ||
			   mr->context != on_.context()))
			result += ", and shows something else";
		say("ibv_reg_mr " + name(r) + " access " + std::to_string(access) + " pd " +
			    std::to_string(pd),
		    result);
		if (mr)
			mrs_.push_back({mr, r, access});
	}

	void dereg_mr()
	{
		if (mrs_.empty())
			return;
		const std::size_t at = below(mrs_.size());
		const registration one = taken(mrs_, at);

		say("ibv_dereg_mr " + name(one.where), said(ibv_dereg_mr(one.mr)));
	}

	void rereg_mr()
	{
		if (mrs_.empty())
			return;
		const registration one = taken(mrs_, below(mrs_.size()));
		const range r = any_range();
		const int access = any_access();
		const int flags = static_cast<int>(below(9));
		ibv_pd *pd = any(pds_);

		errno = 0;
		const int ret = ibv_rereg_mr(one.mr, flags, pd, r.addr, r.length, access);
		say("ibv_rereg_mr flags " + std::to_string(flags),
		    std::to_string(ret) + ", " + (ret ? said(errno) : "0"));
		say("ibv_dereg_mr after it", said(ibv_dereg_mr(one.mr)));
	}

	loopback &link()
	{
		if (!link_)
			link_.emplace(on_);
		return *link_;
	}

	/*
	 * Returns a part of the registered range. If the key must not reach beyond the range,
	 * sometimes returns a range beyond it, which the device must refuse.
	 */
	range part_of(const registration &one, std::size_t length)
	{
		const range r = one.where;

		length = std::min(length, r.length);
		std::byte *addr = r.addr + below(r.length - length + 1);
		if (one.is_exact() && below(6) == 0)
			addr += below(2) ? length : page_size();
		if (addr + length > fixed_memory::base() + fixed_memory::pages * page_size())
			addr = r.addr;
		return {addr, length};
	}

	bool may_land(const registration &one) const
	{
		return one.is_exact() || one.access & IBV_ACCESS_LOCAL_WRITE;
	}

	void transfer()
	{
		static constexpr std::array opcodes{IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
						    IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_SEND};
		if (mrs_.empty())
			return;
		const ibv_wr_opcode opcode = opcodes[below(opcodes.size())];
		const bool atomic = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
		const bool lands_here = atomic || opcode == IBV_WR_RDMA_READ;
		const registration &near = any(mrs_), &far = any(mrs_);
		if (!near.where.length || !far.where.length || (lands_here && !may_land(near)) ||
		    (opcode == IBV_WR_SEND && !may_land(far)))
			return;
		const range local = part_of(near, atomic ? 8 : 1 + below(600));
		range remote = part_of(far, atomic ? 8 : local.length);
		if (atomic && below(8))
			remote.addr -= reinterpret_cast<uintptr_t>(remote.addr) % 8;
		if (atomic && local.length < 8)
			return;

		const std::string what = "opcode " + std::to_string(opcode) + " local " +
					 name(local) + " of " + name(near.where) + " access " +
					 std::to_string(near.access) + ", remote " + name(remote) +
					 " of " + name(far.where) + " access " +
					 std::to_string(far.access);
		if (opcode == IBV_WR_SEND)
			post_receive(far, remote);
		if (const int error = post_send(opcode, near, local, far, remote)) {
			link_.reset();
			return say(what, "ibv_post_send: " + said(error));
		}
		/* Called before the expression below, whose operands are evaluated in any order. */
		const std::string seen = completions(opcode == IBV_WR_SEND);
		say(what, seen + ", bytes " + std::to_string(memory_.sum()));
	}

	/*
	 * The completions at both ends. If the near end refuses a request, the far end does not
	 * see it.
	 */
	std::string completions(bool of_both)
	{
		std::array<std::string, 2> result;
		bool broken = false;

		for (int left = of_both ? 2 : 1; left; left--) {
			const ibv_wc wc = link_->wait();
			const bool is_far = wc.qp_num == link_->far_end()->qp_num;

			result[is_far] = ibv_wc_status_str(wc.status);
			broken = broken || wc.status != IBV_WC_SUCCESS;
			if (!is_far &&
			    (wc.status == IBV_WC_LOC_PROT_ERR || wc.status == IBV_WC_LOC_QP_OP_ERR))
				break;
		}
		if (broken)
			link_.reset();
		return result[0] + '/' + result[1];
	}

	void post_receive(const registration &by, range where)
	{
		::post_receive(link().far_end(), {{where, by.mr->lkey}});
	}

	int post_send(ibv_wr_opcode opcode, const registration &near, range local,
		      const registration &far, range remote)
	{
		ibv_sge sge{reinterpret_cast<uintptr_t>(local.addr),
			    static_cast<uint32_t>(local.length), near.mr->lkey};
		ibv_send_wr wr{}, *bad = nullptr;

		wr.sg_list = &sge;
		wr.num_sge = 1;
		wr.opcode = opcode;
		wr.send_flags = IBV_SEND_SIGNALED;
		if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			wr.wr.atomic.remote_addr = reinterpret_cast<uintptr_t>(remote.addr);
			wr.wr.atomic.rkey = far.mr->rkey;
			wr.wr.atomic.compare_add = 0x0101;
		} else {
			wr.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(remote.addr);
			wr.wr.rdma.rkey = far.mr->rkey;
		}
		return ibv_post_send(link().near_end(), &wr, &bad);
	}

	/*
	 * Changes only pages in which nothing is registered, because plain registrations keep
	 * their pages.
	 */
	void change_memory()
	{
		const std::size_t first = below(fixed_memory::pages);
		const std::size_t count =
			1 + below(std::min<std::size_t>(fixed_memory::pages - first, 6));
		const range pages{fixed_memory::base() + first * page_size(), count * page_size()};
		const int value = static_cast<int>(1 + below(255));
		const uint64_t how = below(6);
		const bool used = std::any_of(mrs_.begin(), mrs_.end(), [&](const auto &one) {
			return one.where.addr < pages.end() && pages.addr < one.where.end();
		});

		/* Locked memory can't be dropped. */
		if (used || how == 0 || (locks_all_ && (how == 2 || how == 3))) {
			memory_.fill(first, count, value);
			return;
		}
		if (how == 1)
			memory_.unmap(first, count);
		else if (how == 2)
			memory_.advise(first, count, MADV_DONTNEED);
		else if (how == 3)
			memory_.advise(first, count, MADV_FREE);
		else
			memory_.map(first, count);
		if (how != 2 || below(2))
			memory_.fill(first, count, value);
		say("memory " + name(pages) + " how " + std::to_string(how),
		    std::to_string(memory_.sum()));
	}

	void alloc_pd()
	{
		if (pds_.size() >= 4)
			return;
		ibv_pd *pd = ibv_alloc_pd(on_.context());

		say("ibv_alloc_pd", made(pd));
		if (pd)
			pds_.push_back(pd);
	}

	/* The chosen PD may be in use. The first PD stays, because it belongs to the device. */
	void dealloc_pd()
	{
		if (pds_.size() < 2)
			return;
		const std::size_t at = 1 + below(pds_.size() - 1);
		const int error = ibv_dealloc_pd(pds_[at]);

		say("ibv_dealloc_pd " + std::to_string(at), said(error));
		if (!error)
			taken(pds_, at);
	}

	void create_cq()
	{
		if (cqs_.size() >= 4)
			return;
		const int size = static_cast<int>(below(20));
		ibv_cq *cq = ibv_create_cq(on_.context(), size, nullptr, nullptr, 0);

		say("ibv_create_cq " + std::to_string(size), made(cq));
		if (cq)
			cqs_.push_back(cq);
	}

	void destroy_cq()
	{
		if (cqs_.empty())
			return;
		const std::size_t at = below(cqs_.size());
		const int error = ibv_destroy_cq(cqs_[at]);

		say("ibv_destroy_cq " + std::to_string(at), said(error));
		if (!error)
			taken(cqs_, at);
	}

	void create_qp()
	{
		if (cqs_.empty() || qps_.size() >= 6)
			return;
		ibv_qp_init_attr init{};

		init.send_cq = any(cqs_);
		init.recv_cq = any(cqs_);
		init.qp_type = IBV_QPT_RC;
		init.cap = {static_cast<uint32_t>(below(20)), static_cast<uint32_t>(below(20)), 1,
			    1, 0};
		ibv_qp *qp = ibv_create_qp(any(pds_), &init);
		say("ibv_create_qp", made(qp));
		if (qp)
			qps_.push_back(qp);
	}

	void destroy_qp()
	{
		if (!qps_.empty())
			say("ibv_destroy_qp",
			    said(ibv_destroy_qp(taken(qps_, below(qps_.size())))));
	}

	/*
	 * The child writes to its own copy of the memory. fork() copies only registered pages; the
	 * child shares the other pages until it writes.
	 */
	void fork_child()
	{
		int status = -1;
		const pid_t child = fork();

		if (child == 0) {
			const bool copied = mrs_.empty() && memory_.own() > 0;

			memory_.fill(0, fixed_memory::pages, 0xee);
			_exit(static_cast<int>(memory_.sum() >> 57) | copied << 7);
		}
		waitpid(child, &status, 0);
		say("fork", std::to_string(status) + ", bytes " + std::to_string(memory_.sum()));
	}

	void clean()
	{
		const std::size_t keep = below(2) ? 0 : below(100) * page_size();

		say("ibv_reg_mr_clean " + std::to_string(keep),
		    said(ibv_reg_mr_clean(on_.context(), keep)));
	}

	void set_limits()
	{
		ibv_mr_cache_limits to{below(200) * page_size(), below(12)}, from{};
		const int error = ibv_reg_mr_limits(on_.context(), &to, &from);
		const bool known = error || !was_limited_ ||
				   (from.max_bytes == limits_.max_bytes &&
				    from.max_entries == limits_.max_entries);

		say("ibv_reg_mr_limits", said(error) + (known ? "" : ", and others than before"));
		was_limited_ = !error;
		limits_ = to;
	}

	/* A thread registers in its own PD; its calloc() calls `in_calloc`. */
	struct registrar {
		ibv_pd *pd;
		range where;
		void (*in_calloc)(registrar &);
		std::recursive_mutex *lock;
		std::atomic<bool> inside{false}, may_go{false}, ended{false};
		ibv_mr *mr = nullptr;
		int error = 0;
		pthread_t thread{};

		void wait_for_begin()
		{
			while (!inside && !ended)
				usleep(100);
		}
		static void *run(void *of)
		{
			auto &self = *static_cast<registrar *>(of);

			hook = [](void *with) {
				auto &me = *static_cast<registrar *>(with);

				me.inside = true;
				me.in_calloc(me);
			};
			hook_with = of;
			self.mr = ibv_reg_mr(self.pd, self.where.addr, self.where.length,
					     IBV_ACCESS_LOCAL_WRITE);
			self.error = errno;
			hook = nullptr;
			self.ended = true;
			return nullptr;
		}
		void begin()
		{
			if (pthread_create(&thread, nullptr, run, this))
				fail("pthread_create");
		}
		void cancel() const { pthread_cancel(thread); }
		void end() const { pthread_join(thread, nullptr); }
	};

	/* The cancelled thread's MR is deregistered, so its PD can be freed. */
	void cancel_thread()
	{
		ibv_pd *const pd = ibv_alloc_pd(on_.context());
		registrar other{pd, any_range(),
				[](registrar &me) {
					while (!me.may_go)
						usleep(100); /* a cancellation point */
					pthread_testcancel();
				},
				nullptr};

		if (!pd)
			fail("ibv_alloc_pd");
		other.begin();
		other.wait_for_begin();
		other.cancel();
		other.may_go = true;
		other.end();
		const int error = other.mr ? ibv_dereg_mr(other.mr) : 0;
		say("a cancelled thread's MR and PD go",
		    said(error) + ", " + said(ibv_dealloc_pd(pd)));
	}

	/* This thread holds the lock of an allocator while the other thread allocates from it. */
	void lock_allocator()
	{
		std::recursive_mutex lock;
		const range r = any_range();
		registrar other{any(pds_), r,
				[](registrar &me) { const std::lock_guard hold(*me.lock); }, &lock};

		lock.lock();
		other.begin();
		other.wait_for_begin();
		ibv_mr *const mine =
			ibv_reg_mr(other.pd, r.addr, (r.length + 1) / 2, IBV_ACCESS_LOCAL_WRITE);
		say("ibv_reg_mr beside another thread's", made(mine));
		lock.unlock();
		other.end();
		errno = other.error;
		say("and that one", made(other.mr));
		for (ibv_mr *const one : {mine, other.mr})
			if (one)
				say("ibv_dereg_mr of these", said(ibv_dereg_mr(one)));
	}

	/* The actions of a special process on memory that it has registered and deregistered. */
	static method use_of(const std::string &kind)
	{
		if (kind == "group")
			return &program::give_back;
		if (kind == "pool")
			return &program::use_huge_pages;
		if (kind == "moves")
			return &program::move_or_seal;
		return nullptr;
	}

	/*
	 * Maps new memory; sometimes registers it, transfers from it, and deregisters it. Returns
	 * an empty range if mmap() fails.
	 */
	range used_memory(std::size_t size, int flags, int advice, int fd = -1)
	{
		void *const at =
			mmap(nullptr, size, PROT_READ | (fd < 0 ? PROT_WRITE : 0),
			     (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) | flags, fd, 0);

		if (at == MAP_FAILED) {
			say("mmap", said(errno));
			return {};
		}
		const range r{static_cast<std::byte *>(at), size};
		madvise(at, size, advice);
		if (fd < 0)
			std::memset(at, 1, size);
		ibv_mr *const mr =
			ibv_reg_mr(on_.pd(), r.addr, size, fd < 0 ? IBV_ACCESS_LOCAL_WRITE : 0);
		say("ibv_reg_mr of used memory", made(mr));
		if (mr)
			say("ibv_dereg_mr of it", said(ibv_dereg_mr(mr)));
		return r;
	}

	/* Allocates more than half of the group's limit. */
	void give_back()
	{
		const range r = used_memory(std::size_t{8} << 20, 0, MADV_HUGEPAGE);
		const uint64_t how = below(3);

		if (how == 1 && madvise(r.addr, r.length, MADV_DONTNEED))
			fail("madvise");
		if (how == 2 && mmap(r.addr, r.length, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != r.addr)
			fail("mmap");
		if (how)
			std::memset(r.addr, 2, r.length);
		munmap(r.addr, r.length);
	}

	void use_huge_pages()
	{
		const range r = used_memory(pool_pages * huge_pool::page, MAP_HUGETLB, MADV_NORMAL);
		int status = -1;

		if (!r.length)
			return;
		if (below(3) == 0) {
			const pid_t child = fork();

			if (child == 0)
				_exit(0);
			waitpid(child, &status, 0);
			say("fork", child < 0 ? said(errno) : std::to_string(status));
		}
		munmap(r.addr, r.length);
	}

	/* These calls fail if a page is pinned. After the idle time no page is pinned. */
	void move_or_seal()
	{
		const uint64_t how = below(3);
		const int fd =
			how == 0 ? memfd_create("sealed", MFD_ALLOW_SEALING | MFD_CLOEXEC) : -1;
		unsigned long nodes = 1 + below(2);
		int error = 0;

		if (how == 0 && ftruncate(fd, 2 * huge_pool::page))
			fail("memfd");
		/* A writable mapping would also make sealing fail. */
		const int reader =
			how ? -1 : open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY);
		const range r = used_memory(2 * huge_pool::page, 0, MADV_NOHUGEPAGE, reader);
		happens([&] {
			errno = 0;
			if (how == 0)
				fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE);
			else if (how == 1)
				syscall(SYS_mbind, r.addr, r.length, MPOL_BIND, &nodes, 64UL,
					MPOL_MF_MOVE | MPOL_MF_STRICT);
			else if (!madvise(r.addr, r.length, MADV_HUGEPAGE))
				madvise(r.addr, r.length, 25 /* MADV_COLLAPSE */);
			error = errno;
			return error != EBUSY && error != EIO && error != EAGAIN;
		});
		say("moved or sealed, how " + std::to_string(how), said(error));
		munmap(r.addr, r.length);
		if (how == 0) {
			close(reader);
			close(fd);
		}
	}

	/* Destroys all objects in an order in which each step must succeed. */
	void end()
	{
		if (locks_all_) {
			constexpr std::size_t much = 100 << 20;
			void *const all =
				mmap(nullptr, much, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

			say("mmap", all == MAP_FAILED ? said(errno) : "0");
			if (all != MAP_FAILED)
				munmap(all, much);
		}
		link_.reset();
		while (!mrs_.empty())
			say("ibv_dereg_mr", said(ibv_dereg_mr(taken(mrs_, 0).mr)));
		while (!qps_.empty())
			say("ibv_destroy_qp", said(ibv_destroy_qp(taken(qps_, 0))));
		while (!cqs_.empty())
			say("ibv_destroy_cq", said(ibv_destroy_cq(taken(cqs_, 0))));
		while (pds_.size() > 1)
			say("ibv_dealloc_pd", said(ibv_dealloc_pd(taken(pds_, 1))));
	}

	std::mt19937_64 random_;
	const bool locks_all_;
	const method use_;
	ibv_mr_cache_limits limits_{};
	bool was_limited_ = false;
	device on_;
	fixed_memory memory_;
	std::optional<loopback> link_;
	std::vector<ibv_pd *> pds_;
	std::vector<registration> mrs_;
	std::vector<ibv_cq *> cqs_;
	std::vector<ibv_qp *> qps_;
	std::vector<range> known_;
	int step_ = 0;
};

/* Compares the results of a step. Returns both results if the difference is not allowed. */
std::optional<std::string> difference(const std::string &plain, const std::string &cached)
{
	const std::string refused = "-1, " + said(EINVAL);

	if (plain == cached)
		return {};
	if (cached.find(": ibv_rereg_mr ") != std::string::npos && cached.ends_with(refused) &&
	    plain.substr(0, plain.rfind(": ")) == cached.substr(0, cached.rfind(": ")))
		return {};
	return "plain:  " + plain + "\ncached: " + cached;
}

constexpr const char *kind_variable = "DIFFERENTIAL_KIND";
constexpr const char *group_variable = "DIFFERENTIAL_GROUP";

/* Becomes an ordinary user with this limit for locked memory. */
void lock_at_most(rlim_t bytes)
{
	const rlimit limit{bytes, bytes};

	if (setrlimit(RLIMIT_MEMLOCK, &limit) || setgid(1000) || setuid(1000))
		fail("to be a user with a limit");
}

void begin(const std::string &as, uint64_t seed)
{
	if (as == "little")
		lock_at_most((64 + 32 * (seed % 4)) << 10);
	if (as == "locked") {
		lock_at_most(200 << 20);
		if (mlockall(MCL_CURRENT | MCL_FUTURE))
			fail("mlockall");
	}
	if (as == "signals") {
		const itimerval often{{0, 500}, {0, 500}};
		struct sigaction nothing {};

		nothing.sa_handler = [](int) {};
		nothing.sa_flags = SA_RESTART;
		if (sigaction(SIGALRM, &nothing, nullptr) ||
		    setitimer(ITIMER_REAL, &often, nullptr))
			fail("setitimer");
	}
	if (as == "group")
		write_system_file(std::string(std::getenv(group_variable)) + "/cgroup.procs", "0");
}

using environment = std::vector<std::string>;

std::string compare(uint64_t seed, const std::string &as, environment with)
{
	with.push_back("RUN_SEED=" + std::to_string(seed));
	with.push_back(std::string(kind_variable) + '=' + as);
	with.emplace_back("RDMAV_MR_CACHE");
	const child_result plain = run_child("differential: a program", with);
	with.back() = "RDMAV_MR_CACHE=1";
	const child_result cached = run_child("differential: a program", with);

	for (std::size_t i = 0; i < std::max(plain.lines.size(), cached.lines.size()); i++) {
		const auto line = [i](const child_result &of) {
			return i < of.lines.size() ? of.lines[i]
						   : "ended with " + std::to_string(of.status);
		};
		if (const auto found = difference(line(plain), line(cached)))
			return *found;
	}
	if (plain.status || cached.status)
		return "ended with " + std::to_string(plain.status) + " and " +
		       std::to_string(cached.status);
	return {};
}

uint64_t first_seed()
{
	const char *const text = std::getenv("RUN_SEED");

	return text ? std::strtoull(text, nullptr, 0) : std::random_device()();
}

void compare_all(const std::string &as = "", const environment &with = {})
{
	const char *const seconds = std::getenv("RUN_SECONDS");
	const auto end = std::chrono::steady_clock::now() +
			 std::chrono::seconds(seconds ? std::atoi(seconds) : 3);
	uint64_t seed = first_seed();

	do {
		INFO("RUN_SEED=" << seed);
		CHECK(compare(seed, as, with) == "");
		seed++;
	} while (std::chrono::steady_clock::now() < end);
}

} // namespace

/* The next cases run this hidden case as a program. */
TEST_CASE("differential: a program", "[.]")
{
	const char *const as = std::getenv(kind_variable);
	const std::string kind = as ? as : "";

	begin(kind, first_seed());
	program(first_seed(), kind).run();
}

TEST_CASE("differential: a program gets equal results with and without the cache")
{
	compare_all();
}

TEST_CASE("differential: a program that may lock little memory")
{
	compare_all("little");
}

TEST_CASE("differential: a program that locks all its memory")
{
	compare_all("locked");
}

TEST_CASE("differential: a program with a timer")
{
	compare_all("signals");
}

TEST_CASE("differential: a program that gives memory back in a small control group")
{
	try {
		const control_group group("differential");

		write_system_file(group.path() + "/memory.max", std::to_string(15 << 20));
		write_system_file(group.path() + "/memory.swap.max", "0");
		compare_all("group", {std::string(group_variable) + '=' + group.path()});
	} catch (const unsupported &why) {
		skip_test(why.what());
	}
}

TEST_CASE("differential: a program that needs a whole pool of huge pages")
{
	try {
		const huge_pool pool(pool_pages);

		compare_all("pool");
	} catch (const unsupported &why) {
		skip_test(why.what());
	}
}

TEST_CASE("differential: a program whose memory is moved and sealed")
{
	compare_all("moves", {"RDMAV_MR_CACHE_IDLE_MS=50"});
}

TEST_CASE("differential: a difference is seen")
{
	CHECK_FALSE(difference("1: x: 0", "1: x: 0"));
	CHECK(difference("1: ibv_dereg_mr: 0", "1: ibv_dereg_mr: " + said(EBUSY)));
	CHECK_FALSE(difference("1: ibv_rereg_mr flags 4: 0, 0",
			       "1: ibv_rereg_mr flags 4: -1, " + said(EINVAL)));
	CHECK(difference("1: ibv_rereg_mr flags 4: 0, 0",
			 "1: ibv_rereg_mr flags 4: -4, " + said(EIO)));
}
