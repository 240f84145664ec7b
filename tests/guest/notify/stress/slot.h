/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Many threads work on a registration at the same time. The oracle knows the right value of the
 * registration's word at each moment.
 *
 * One row of the test matrix changes the memory once. The oracle notes when the row begins and
 * when the row is over:
 *
 *   If the row was over before the word was read, the word is not zero, and settling makes it
 *   INVALID.
 *   If the row began only after the word was read, the word is not INVALID.
 *
 * Some words count their users. If a thread adds a reference to a word without INVALID, the memory
 * stays accessible until the thread drops the reference. If a word without references is INVALID,
 * settling takes the pages from the device.
 *
 * The kernel may suspend some of these registrations while they have no users. Then the row may
 * have no effect, because settling gives the device the memory that is mapped at that time. A user
 * that stays until the row is settled prevents the suspension.
 *
 * At all times only the owner changes bits 8-63 of the word, and the kernel changes armed words
 * only.
 */
#ifndef STRESS_SLOT_H
#define STRESS_SLOT_H

#include <atomic>
#include <mutex>
#include <random>
#include <shared_mutex>

#include "operation.h"
#include "peer.h"

namespace stress {

using generator = std::mt19937_64;

/* The mistakes that the oracle of a process found, and how much it checked. */
struct tally {
	std::atomic<uint64_t> actions = 0;
	std::atomic<uint64_t> slots = 0;
	std::atomic<uint64_t> invalidated = 0;
	std::atomic<uint64_t> refused = 0;   /* RDMA accesses */
	std::atomic<uint64_t> suspended = 0; /* how often the oracle saw SUSPENDED */
	std::atomic<uint64_t> wrong = 0;
	uint64_t seed = 0;

	void complain(const std::string &row, const char *what, uint64_t value);
};

/* The rows of the matrix that threads can do at the same time. */
const std::vector<mr_notify::operation> &rows();

class slot {
public:
	/* Throws unsupported if the machine can't provide such memory now. */
	slot(const mr_notify::device &on, const mr_notify::operation &what, generator &random,
	     tally &count);
	slot(const slot &) = delete;
	slot &operator=(const slot &) = delete;

	/* A random action; for any thread at any time. */
	void act(generator &random, peer &from);

	/* The last checks, by the last user. */
	void finish(generator &random);

private:
	void look();
	void settle();
	uint64_t settled();
	int arm();
	void arm_or_disarm(generator &random);
	void arm_beside();
	void refer(generator &random);
	void apply(generator &random);
	void do_row();
	void disturb(generator &random);
	void access(generator &random, peer &from);
	void use(generator &random, peer &from);
	void expect_revoked();

	void complain(const char *what, uint64_t value)
	{
		count_.complain(what_.name, what, value);
	}

	const mr_notify::device &on_;
	const mr_notify::operation &what_;
	tally &count_;
	mr_notify::memory memory_;
	mr_notify::range range_;
	int access_;
	uint64_t in_use_; /* the bits of the word that count users; 0: users are not counted */
	bool lends_;
	mr_notify::owned<ibv_mr> mr_;
	mutable mr_notify::word word_;
	std::atomic<uint64_t> upper_;

	std::atomic<bool> applied_ = false;
	std::atomic<bool> begun_ = false;   /* the change has begun: the word may be INVALID */
	std::atomic<bool> over_ = false;    /* it has ended: the word must be INVALID if certain_ */
	std::atomic<bool> certain_ = false; /* the registration was not suspended */
	std::atomic<bool> revoked_ = false; /* settled after the change: no peer has access */

	std::shared_mutex arming_; /* guards armed_; taken shared while armed_ must not change */
	bool armed_ = false;
};

} // namespace stress

#endif
