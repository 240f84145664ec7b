// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Shows the data corruption that this project prevents. The program sends
 * messages from a buffer. Between two messages it unmaps the buffer, and maps it
 * again at the same address. The program sends with two usual registration
 * caches, which compare address and length. The first cache ignores the
 * notification word, and the second cache checks the word. The program counts
 * messages that arrive with the bytes of an earlier message. Exit status 0: the
 * first cache sent stale bytes, and the second cache never did.
 */
#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>

#include "loopback.h"

using namespace mr_notify;

namespace {

constexpr int messages = 20;
constexpr std::size_t length = 64 * 1024;

/* The cache of every MPI library since 2003, in thirty lines. */
class cache {
public:
	cache(const device &on, bool notified) : on_(on), notified_(notified) {}

	const ibv_mr *registration(range r)
	{
		const auto found = entries_.find(r.addr);

		if (found != entries_.end()) {
			if (!notified_ || still_valid(found->second))
				return found->second.mr.get();
			entries_.erase(found);
		}
		entry &made = entries_[r.addr];
		made.mr = on_.register_memory(r);
		if (notified_)
			check_verb(ibv_reg_mr_notify(made.mr.get(), made.valid.address()),
				   "ibv_reg_mr_notify");
		registrations_++;
		return made.mr.get();
	}

	int registrations() const { return registrations_; }

private:
	struct entry {
		word valid;
		owned<ibv_mr> mr;
	};

	static bool still_valid(entry &e)
	{
		if (e.valid.value() & IBV_MR_NOTIFY_SUSPECT)
			check_verb(ibv_settle_mr_notify(e.mr.get()), "ibv_settle_mr_notify");
		return e.valid.value() == 0;
	}

	const device &on_;
	const bool notified_;
	std::map<std::byte *, entry> entries_;
	int registrations_ = 0;
};

/*
 * Behaves like an allocator that returns memory to the kernel and gets it again.
 */
void map_again(range r)
{
	if (munmap(r.addr, r.length) ||
	    mmap(r.addr, r.length, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != r.addr)
		fail("mapping again");
}

int stale_messages(const device &on, bool notified)
{
	const memory buffer = anonymous(length);
	const memory inbox = anonymous(length);
	const range from = buffer.registered();
	const range to = inbox.registered();
	const auto inbox_mr = on.register_memory(to);
	loopback link(on);
	cache registrations(on, notified);
	int stale = 0;

	for (int i = 1; i <= messages; i++) {
		std::memset(from.addr, i, from.length);
		const ibv_wc_status status =
			link.write(registrations.registration(from), from, to.addr, inbox_mr->rkey);
		if (status != IBV_WC_SUCCESS)
			throw std::runtime_error(ibv_wc_status_str(status));
		stale += std::any_of(to.addr, to.end(),
				     [=](std::byte b) { return b != static_cast<std::byte>(i); });
		map_again(from);
	}
	fmt::print("{:35} {:2} of {} messages arrived with old bytes ({} registrations)\n",
		   notified ? "cache that looks at the word:" : "cache without notification:",
		   stale, messages, registrations.registrations());
	return stale;
}

} // namespace

int main()
{
	try {
		const device on;
		const int without = stale_messages(on, false);

		if (!on.can_notify()) {
			fmt::print("{} can't notify\n", on.name());
			return 3;
		}
		return without > 0 && stale_messages(on, true) == 0 ? 0 : 1;
	} catch (const std::exception &e) {
		fmt::print(stderr, "{}\n", e.what());
		return 2;
	}
}
