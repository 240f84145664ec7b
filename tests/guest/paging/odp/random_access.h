/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Accesses that may fail. During an access, other threads may unmap or protect the memory, or make
 * it secret. Page faults may get a late answer or no answer. Queue pairs and registrations end
 * during the access.
 */
#ifndef GUEST_ODP_RANDOM_ACCESS_H
#define GUEST_ODP_RANDOM_ACCESS_H

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "arena.h"
#include "slow_memory.h"

namespace odp {

class random_access {
public:
	random_access(const mr_notify::device &on, uint64_t seed);
	~random_access() { stop(); }

	void start();
	void stop();

	struct tally {
		std::atomic<uint64_t> done{0}, refused{0}, abandoned{0};
	};
	const tally &count() const { return count_; }

private:
	static constexpr std::size_t pages = 32;

	mr_notify::range somewhere(dice &roll, mr_notify::range in, std::size_t most) const;
	void change(dice &roll);
	void access(dice &roll);

	const mr_notify::device &on_;
	const uint64_t seed_;
	mr_notify::memory area_; /* protected, made secret, dropped; never unmapped */
	mr_notify::memory plain_;
	std::unique_ptr<slow_memory> slow_; /* NULL without userfaultfd */
	tally count_;
	std::atomic<bool> stop_{false};
	std::vector<std::thread> threads_;
};

} // namespace odp

#endif
