// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Tests libfabric's registration cache with the monitor verbs_notify. First the program tests these
 * rules one by one. A hit registers nothing, wherever its range begins. Any search ends stale
 * registrations. A registration in use stays. While a hit waits for the kernel, other hits
 * continue.
 *
 * Then the program tests everything at the same time. Threads register parts of a few buffers and
 * keep some of the registrations for a while. Other threads replace the buffers' memory by system
 * calls. The cache has room for a third of the parts. Each registration that the cache returns must
 * cover the request, and must be newer than the last replacement of the memory. No registration may
 * end while a thread has it. At the end no registration is left, and the cache's own counters add
 * up.
 *
 * The program replaces the verbs below the cache and counts their calls. Two threads that only
 * register share no lock or counter of the test. So if the cache itself does not order them,
 * ThreadSanitizer reports a race.
 */
#include <infiniband/verbs.h>
#include <rdma/fi_domain.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "libfabric.h"
#include "run_time.h"

namespace {

constexpr std::size_t page = 4096, pages = 16, buffers = 64, most_cached = 24, domains = 2;
constexpr std::size_t registering_threads = 4, most_kept = 6, replaced_every = 64;

/* Readers use the present memory. A thread that replaces the memory has exclusive access. */
struct buffer {
	std::shared_mutex lock;
	uint32_t version = 0;
};

std::array<buffer, buffers> all;
std::byte *memory;
std::atomic<std::size_t> wrong, asked, passed_by; /* passed_by: requests without a search */
std::atomic<std::size_t> arms;
thread_local std::function<void()>
	once_settled; /* called before libfabric gets the kernel's answer */

/*
 * The registrations that the verbs made, by key. Each has its buffer, its pages, and the version of
 * the memory.
 */
struct registered {
	bool live;
	uint8_t buffer, first, count;
	uint32_t version;
	bool operator==(const registered &) const = default;
};

std::array<std::atomic<uint64_t>, 65536> by_key;
std::array<std::atomic<const uint64_t *>, 65536> words;
std::atomic<uint64_t> in_use; /* this bit of a word says "in use" */
std::atomic<std::size_t> registrations, live;

std::atomic<uint64_t> &slot(uint64_t key)
{
	return by_key[key >> 8 & 0xffff];
}

registered load(uint64_t key)
{
	const uint64_t all_bits = slot(key).load(std::memory_order_relaxed);
	return {(all_bits & 1) != 0, static_cast<uint8_t>(all_bits >> 8),
		static_cast<uint8_t>(all_bits >> 16), static_cast<uint8_t>(all_bits >> 24),
		static_cast<uint32_t>(all_bits >> 32)};
}

void keep(const registered &is, uint64_t key)
{
	slot(key).store(1 | uint64_t{is.buffer} << 8 | uint64_t{is.first} << 16 |
				uint64_t{is.count} << 24 | uint64_t{is.version} << 32,
			std::memory_order_relaxed);
}

void complain(const char *what, const registered &is, std::size_t buffer)
{
	if (wrong.fetch_add(1, std::memory_order_relaxed) < 10)
		std::printf("%s: buffer %zu, registered: %d, buffer %d, pages %d+%d, version %u\n",
			    what, buffer, is.live, is.buffer, is.first, is.count, is.version);
}

ibv_mr *note(ibv_mr *mr, const void *addr, std::size_t length)
{
	const auto offset = static_cast<std::size_t>(static_cast<const std::byte *>(addr) - memory);
	const std::size_t number = offset / (page * pages);

	if (!mr || number >= buffers)
		return mr;
	registrations.fetch_add(1, std::memory_order_relaxed);
	live.fetch_add(1, std::memory_order_relaxed);
	keep({true, static_cast<uint8_t>(number), static_cast<uint8_t>(offset / page % pages),
	      static_cast<uint8_t>((offset % page + length) / page), all[number].version},
	     mr->rkey);
	return mr;
}

} // namespace

extern "C" {

#undef ibv_reg_mr
ibv_mr *ibv_reg_mr(ibv_pd *pd, void *addr, std::size_t length, int access)
{
	static const auto next =
		reinterpret_cast<decltype(&ibv_reg_mr)>(dlsym(RTLD_NEXT, "ibv_reg_mr"));
	return note(next(pd, addr, length, access), addr, length);
}

ibv_mr *ibv_reg_mr_iova2(ibv_pd *pd, void *addr, std::size_t length, uint64_t iova,
			 unsigned int access)
{
	static const auto next =
		reinterpret_cast<decltype(&ibv_reg_mr_iova2)>(dlsym(RTLD_NEXT, "ibv_reg_mr_iova2"));
	return note(next(pd, addr, length, iova, access), addr, length);
}

ibv_mr *ibv_reg_notified_mr(ibv_pd *pd, void *addr, std::size_t length, uint64_t iova,
			    unsigned int access, const ibv_mr_notify_attr *attr)
{
	static const auto next = reinterpret_cast<decltype(&ibv_reg_notified_mr)>(
		dlsym(RTLD_NEXT, "ibv_reg_notified_mr"));
	arms.fetch_add(1, std::memory_order_relaxed);
	ibv_mr *mr = note(next(pd, addr, length, iova, access, attr), addr, length);
	if (mr) {
		words[mr->rkey >> 8 & 0xffff].store(attr->word, std::memory_order_relaxed);
		in_use.store(attr->in_use, std::memory_order_relaxed);
	}
	return mr;
}

/*
 * The kernel restores a suspended registration with the present pages. While the word is SUSPENDED,
 * no other thread finds the registration. This thread's reference keeps the registration.
 */
int ibv_settle_mr_notify(ibv_mr *mr)
{
	static const auto next = reinterpret_cast<decltype(&ibv_settle_mr_notify)>(
		dlsym(RTLD_NEXT, "ibv_settle_mr_notify"));
	const uint64_t *word = words[mr->rkey >> 8 & 0xffff].load(std::memory_order_relaxed);
	const registered is = load(mr->rkey);

	if (is.live && (__atomic_load_n(word, __ATOMIC_ACQUIRE) & IBV_MR_NOTIFY_SUSPENDED))
		keep({is.live, is.buffer, is.first, is.count, all[is.buffer].version}, mr->rkey);
	const int ret = next(mr);
	if (once_settled)
		std::exchange(once_settled, nullptr)();
	return ret;
}

int ibv_dereg_mr(ibv_mr *mr)
{
	static const auto next =
		reinterpret_cast<decltype(&ibv_dereg_mr)>(dlsym(RTLD_NEXT, "ibv_dereg_mr"));
	if (load(mr->rkey).live) {
		slot(mr->rkey).store(0, std::memory_order_relaxed);
		live.fetch_sub(1, std::memory_order_relaxed);
	}
	return next(mr);
}
}

namespace {

struct kept {
	fid_mr *mr;
	registered was;
	std::size_t buffer;
};

using generator = std::mt19937;

std::size_t below(generator &random, std::size_t limit)
{
	return random() % limit;
}

/* Half of the requests use a few buffers, which stay in the cache. */
std::size_t some_buffer(generator &random)
{
	return below(random, below(random, 2) ? most_cached / 4 : buffers);
}

bool says_in_use(fid_mr *mr)
{
	const uint64_t *word = words[fi_mr_key(mr) >> 8 & 0xffff].load(std::memory_order_relaxed);
	return __atomic_load_n(word, __ATOMIC_RELAXED) & in_use.load(std::memory_order_relaxed);
}

/* Registers some pages without their first `skipped` bytes. */
kept use(fid_domain *domain, std::size_t number, std::size_t first, std::size_t count,
	 std::size_t skipped = 0)
{
	fid_mr *mr = nullptr;

	asked.fetch_add(1, std::memory_order_relaxed);
	check(fi_mr_reg(domain, memory + (number * pages + first) * page + skipped,
			count * page - skipped, FI_WRITE | FI_REMOTE_WRITE, 0, 0, 0, &mr, nullptr),
	      "fi_mr_reg");
	const registered is = load(fi_mr_key(mr));
	if (!is.live)
		complain("not registered", is, number);
	else if (is.buffer != number || is.first > first || is.first + is.count < first + count)
		complain("another range", is, number);
	else if (is.version != all[number].version)
		complain("stale", is, number);
	else if (!says_in_use(mr))
		complain("does not say that it is in use", is, number);
	return {mr, is, number};
}

void release(const kept &one)
{
	if (load(fi_mr_key(one.mr)) != one.was)
		complain("ended while in use", load(fi_mr_key(one.mr)), one.buffer);
	fi_close(&one.mr->fid);
}

void register_some(const std::atomic<bool> &go_on, fid_domain *domain, unsigned int seed)
{
	std::deque<kept> held;
	generator random(seed);

	while (go_on) {
		const std::size_t number = some_buffer(random);
		const std::size_t first = below(random, 4) ? 0 : below(random, pages);
		const std::size_t count =
			below(random, 4) ? pages - first : 1 + below(random, pages - first);
		std::shared_lock hold(all[number].lock);

		held.push_back(use(domain, number, first, count));
		hold.unlock();
		while (held.size() > below(random, most_kept)) {
			release(held.front());
			held.pop_front();
		}
	}
	for (const kept &one : held)
		release(one);
}

void replace(std::size_t number, bool drop)
{
	std::byte *start = memory + number * pages * page;

	if (drop) {
		syscall(SYS_madvise, start, pages * page, MADV_DONTNEED);
	} else {
		syscall(SYS_munmap, start, pages * page);
		syscall(SYS_mmap, start, pages * page, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	}
	all[number].version++;
}

void replace_some(const std::atomic<bool> &go_on, unsigned int seed)
{
	generator random(seed);
	std::size_t next = 0;

	while (go_on) {
		const std::size_t number = some_buffer(random);

		if (asked.load(std::memory_order_relaxed) < next) {
			std::this_thread::sleep_for(std::chrono::microseconds(50));
			continue;
		}
		next += 1 + below(random, 2 * replaced_every);
		std::unique_lock hold(all[number].lock);
		replace(number, below(random, 2));
	}
}

/* The cache's own counts when its domain is closed. */
struct counts {
	std::size_t searches = 0, deletes = 0, hits = 0;
};

counts say(std::FILE *log)
{
	counts sum, one;
	std::string line(1024, '\0');

	std::rewind(log);
	while (std::fgets(line.data(), static_cast<int>(line.size()), log)) {
		const char *found = std::strstr(line.c_str(), "MR cache stats: ");
		if (!found ||
		    std::sscanf(found, "MR cache stats: searches %zu, deletes %zu, hits %zu",
				&one.searches, &one.deletes, &one.hits) != 3)
			continue;
		sum.searches += one.searches;
		sum.deletes += one.deletes;
		sum.hits += one.hits;
	}
	return sum;
}

bool result(const char *what, bool good)
{
	std::printf("%sok %s\n", good ? "" : "not ", what);
	return good;
}

/* Registers with OFI_MR_NOCACHE, as ofi_rxm and ofi_rxd do for their own buffers. */
bool not_cached(fid_domain *domain)
{
	constexpr uint64_t nocache = 1ULL << 60;
	static std::array<std::byte, page> own;
	const std::size_t before = arms;
	fid_mr *mr = nullptr;

	bool good = result("each registration in the cache is armed", before);
	check(fi_mr_reg(domain, own.data(), own.size(), FI_SEND | FI_RECV, 0, 0, nocache, &mr,
			nullptr),
	      "fi_mr_reg");
	good &= result("one that is not for the cache is not armed", arms == before);
	fi_close(&mr->fid);
	passed_by++;
	return good;
}

/* If a stale registration is not requested again, searches for other registrations end it. */
bool ends_stale(fid_domain *domain, const std::function<void()> &search)
{
	const std::size_t before = live;

	for (std::size_t number = 1; number <= 5; number++)
		release(use(domain, number, 0, pages));
	for (std::size_t number = 1; number <= 5; number++)
		replace(number, false);
	for (std::size_t i = 0; i < most_cached / 8 && live > before; i++)
		search();
	return live <= before;
}

/* Registers at so many addresses that they compete for places of the cache's table. */
bool at_many_addresses(fid_domain *domain)
{
	generator random(1);

	for (int i = 0; i < 4096; i++) {
		const std::size_t number = below(random, buffers);
		release(use(domain, number, 0, pages, below(random, page / 8) * 8));
	}
	return !wrong;
}

bool steps(fid_domain *domain)
{
	const auto found = [domain](std::size_t number) {
		const std::size_t before = registrations;
		release(use(domain, number, 0, pages));
		return registrations == before;
	};
	bool good = result("a registration is found again", !found(0) && found(0));

	const std::size_t before = registrations;
	for (std::size_t first = 0; first < pages; first++)
		for (std::size_t count = 1; count <= pages - first; count++)
			release(use(domain, 0, first, count));
	good &= result("wherever it begins", registrations == before);
	replace(0, false);
	good &= result("a stale registration is not found, and ends", !found(0) && live == 1);
	good &= result("stale ones that are not asked for again end by hits",
		       ends_stale(domain, [&] { found(0); }));
	good &= result("and by misses", ends_stale(domain, [&] {
			       replace(0, false);
			       found(0);
		       }));
	/* When the cache is full, each search first makes room for a new registration. */
	for (std::size_t number = 1; number < most_cached - 1; number++)
		found(number);
	found(0);
	found(most_cached - 1);
	good &= result("a used registration stays when another needs the place",
		       !found(most_cached) && found(0) && !found(1));
	good &= result("no registration is taken for another one", at_many_addresses(domain));
	good &= not_cached(domain);
	return good;
}

/*
 * A hit finds a registration that is SUSPECT but not stale, and settles it. Before the settling
 * returns, another request finds the entry, and then the memory is replaced. If the hit held a lock
 * while it settles, the other request would wait forever.
 */
bool late(fid_domain *domain)
{
	constexpr std::size_t number = buffers - 1;
	std::byte *start = memory + number * pages * page;
	const int file = memfd_create("late", 0);

	check(ftruncate(file, pages * page), "ftruncate");
	mmap(start, pages * page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
	std::memset(start, 0, pages * page);
	for (int i = 0; i < 2; i++) { /* the second use() settles */
		release(use(domain, number, 0, pages));
		madvise(start, pages * page, MADV_DONTNEED);
	}

	bool found = false, asked_kernel = false;
	once_settled = [&] {
		const std::size_t before = registrations;
		release(use(domain, number, 1, pages - 1));
		found = registrations == before;
		check(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, pages * page),
		      "fallocate");
		all[number].version++;
		asked_kernel = true;
	};
	release(use(domain, number, 0, pages));
	bool good =
		result("a hit of a suspect entry asks the kernel, and another one finds the entry",
		       asked_kernel && found);
	good &= result("one that became stale meanwhile is not found", registrations == 2);
	replace(number, false);
	close(file);
	return good;
}

/*
 * Runs `threads` threads that register. If there are several threads, some of them replace memory.
 */
bool everything(std::size_t threads, const std::array<fid_domain *, domains> &opened)
{
	std::vector<std::thread> running;
	std::atomic<bool> go_on = true;

	for (std::size_t i = 0; i < threads; i++)
		running.emplace_back(
			[&, i] { register_some(go_on, opened[i / 2 % domains], 42 + i); });
	for (std::size_t i = 0; threads > 1 && i < 2; i++)
		running.emplace_back([&, i] { replace_some(go_on, 4711 + i); });
	for (const run_time time; time.goes_on();)
		std::this_thread::sleep_for(std::chrono::milliseconds(10));
	go_on = false;
	for (auto &thread : running)
		thread.join();
	return !wrong;
}

/* Opens domains for a part of the test, and compares the cache's counts when it closes them. */
template <class Part> bool on_domains(const char *name, bool counts_exactly, const Part &part)
{
	const std::string with = std::string(name) + ": ";
	fi_info *info = find_verbs();
	fid_fabric *fabric = nullptr;
	std::array<fid_domain *, domains> opened{};

	registrations = 0;
	asked = 0;
	passed_by = 0;
	wrong = 0;
	check(fi_fabric(info->fabric_attr, &fabric, nullptr), "fi_fabric");
	for (auto &domain : opened)
		check(fi_domain(fabric, info, &domain, nullptr), "fi_domain");

	bool good = part(opened);
	std::FILE *log = std::tmpfile();
	const int before = dup(STDERR_FILENO);

	dup2(fileno(log), STDERR_FILENO);
	for (auto *domain : opened)
		fi_close(&domain->fid);
	dup2(before, STDERR_FILENO);
	close(before);
	fi_close(&fabric->fid);
	fi_freeinfo(info);

	/* A repeated search registers once more. */
	const counts counted = say(log);
	std::fclose(log);
	good &= result((with + "no registration is stale, or ends while in use").c_str(), !wrong);
	good &= result((with + "none is left").c_str(), !live);
	good &= result((with + "many are found").c_str(), counted.hits >= asked / 10);
	good &= result((with + "the cache's counts add up").c_str(),
		       counted.searches - counted.hits == registrations &&
			       counted.searches < 2 * asked && counted.deletes < 2 * asked &&
			       counted.deletes >= asked && counted.searches >= asked &&
			       (!counts_exactly || counted.deletes == asked + passed_by));
	std::printf("asked %zu, registered %zu; searches %zu, deletes %zu, hits %zu\n",
		    asked.load(), registrations.load(), counted.searches, counted.deletes,
		    counted.hits);
	return good;
}

} // namespace

int main()
{
	setenv("FI_MR_CACHE_MONITOR", "verbs_notify", 0);
	setenv("FI_MR_CACHE_MAX_COUNT", std::to_string(most_cached).c_str(), 1);
	setenv("FI_LOG_LEVEL", "info", 1);
	setenv("FI_LOG_SUBSYS", "mr", 1);
	setenv("FI_LOG_PROV", "verbs", 1);
	memory = static_cast<std::byte *>(mmap(nullptr, buffers * pages * page,
					       PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
					       -1, 0));

	bool good = on_domains("steps", true, [](const auto &opened) { return steps(opened[0]); });

	good &= on_domains("late", false, [](const auto &opened) { return late(opened[0]); });
	good &= on_domains("one thread", true,
			   [](const auto &opened) { return everything(1, opened); });
	good &= on_domains("threads", false, [](const auto &opened) {
		return everything(registering_threads, opened);
	});
	return good ? 0 : 1;
}
