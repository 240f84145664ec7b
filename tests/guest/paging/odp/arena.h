/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Memory with a known value of every byte, and threads that transfer and change it at random. The
 * memory is cut into slots. A thread that transfers or changes a slot owns it, so the right value
 * of each byte is known; the threads share the address space.
 */
#ifndef GUEST_ODP_ARENA_H
#define GUEST_ODP_ARENA_H

#include <array>
#include <atomic>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "odp.h"

namespace odp {

using dice = std::mt19937_64;

std::size_t below(dice &roll, std::size_t limit);

/* Some pages, and the right value of each byte. */
class slot {
public:
	void place(mr_notify::range where);
	mr_notify::range where() const { return where_; }
	std::mutex &mutex() { return mutex_; }
	std::byte *model(const std::byte *at) { return model_.data() + (at - where_.addr); }
	void forget_all();
	/* In shared memory, pages that are dropped from the page tables keep their bytes. */
	void set_shared(bool shared) { shared_ = shared; }
	bool shared() const { return shared_; }
	/* Writes bytes that depend on the address and the writer. */
	void fill(dice &roll);
	std::size_t wrong() const;

private:
	mr_notify::range where_;
	std::vector<std::byte> model_;
	std::mutex mutex_;
	bool shared_ = false;
};

class arena {
public:
	arena(const mr_notify::device &on, uint64_t seed);
	~arena() { stop(); }

	/* Three threads transfer, a fourth changes the memory, and a fifth forks. */
	void start();
	void stop();

	struct tally {
		std::atomic<uint64_t> transfers{0}, bytes{0}, changes{0};
		std::atomic<uint64_t> kept_out{0}; /* accesses beyond a memory window */
		std::atomic<uint64_t> wrong{0}, failed{0};
	};
	const tally &count() const { return count_; }
	void print(const char *who) const;

private:
	static constexpr std::size_t slot_pages = 9;
	static constexpr std::size_t slots = 24;

	const ibv_mr *key(dice &roll) const { return keys_[below(roll, keys_.size())].get(); }
	std::vector<piece> pieces(dice &roll, mr_notify::range r) const;
	bool bind(mr_notify::loopback &link, ibv_mw *window, mr_notify::range r);
	bool transfer(dice &roll, mr_notify::loopback &link, ibv_mw *window, slot &a, slot &b);
	bool is_kept_out(dice &roll, mr_notify::loopback &link, ibv_mw *window);
	void transfer_on(uint64_t seed);
	void change_on(uint64_t seed);
	void disturb_on(uint64_t seed);

	const mr_notify::device &on_;
	const uint64_t seed_;
	mr_notify::memory whole_;
	std::array<slot, slots> all_;
	std::vector<mr_notify::owned<ibv_mr>> keys_; /* MRs of all memory, and of this memory */
	tally count_;
	std::atomic<bool> stop_{false};
	std::vector<std::thread> threads_;
};

} // namespace odp

#endif
