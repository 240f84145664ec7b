// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "slot.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <string_view>
#include <thread>

#include "operations.h"
#include "raw_uverbs.h"
#include "system.h"

namespace stress {

using namespace mr_notify;

namespace {

constexpr std::size_t length = 8 * 4096;
constexpr int track = 1 << 28;
constexpr uint64_t kernel_bits = IBV_MR_NOTIFY_KERNEL_MASK;
constexpr uint64_t suspended = IBV_MR_NOTIFY_SUSPENDED;
constexpr uint64_t known_bits = IBV_MR_NOTIFY_INVALID | IBV_MR_NOTIFY_SUSPECT | suspended;
constexpr uint64_t users = 0xffff00;
constexpr uint64_t one_user = 0x100;
constexpr int local = IBV_ACCESS_LOCAL_WRITE;
constexpr int remote = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

/*
 * Returns whether the range can't be pinned again during this operation, because the mapping lacks
 * a right, or because a fault gets no answer.
 */
bool hinders_pinning(const operation &row)
{
	const std::array<std::string_view, 3> hindering{"mprotect", "userfaultfd",
							"UFFDIO_CONTINUE"};

	return std::any_of(hindering.begin(), hindering.end(), [&](std::string_view what) {
		return row.name.find(what) != std::string::npos;
	});
}

int random_access(generator &random)
{
	const std::array<int, 4> flags{0, local, local | remote, local | remote};

	return flags[random() % flags.size()] | (random() % 2 ? track : 0);
}

} // namespace

void tally::complain(const std::string &row, const char *what, uint64_t value)
{
	wrong++;
	std::fprintf(stderr, "seed %" PRIu64 ": %s: %s (word %#" PRIx64 ")\n", seed, row.c_str(),
		     what, value);
}

const std::vector<operation> &rows()
{
	static const std::vector<operation> chosen = [] {
		std::vector<operation> all = operations();
		/*
		 * Leaves out brk(), because other threads move the heap's end by malloc(). Leaves
		 * out operations that poison pages, because these pages would stay lost.
		 */
		std::erase_if(all, [](const operation &row) {
			return row.name == "brk, shrunk" || row.disturbs == reach::system ||
			       row.watch;
		});
		return all;
	}();
	return chosen;
}

slot::slot(const device &on, const operation &what, generator &random, tally &count)
    : on_(on), what_(what), count_(count), memory_(what.map(length)), range_(memory_.registered()),
      access_(memory_.read_only() ? 0 : random_access(random)), in_use_(random() % 3 ? users : 0),
      lends_(in_use_ && random() % 2), mr_(on.register_memory(range_, access_)),
      upper_((random() << 8) & ~in_use_)
{
	*word_.address() = upper_;
	certain_ = !lends_;
	count_.slots++;
}

void slot::act(generator &random, peer &from)
{
	count_.actions++;
	switch (random() % 24) {
	case 0 ... 4:
		return look();
	case 5 ... 8:
		return settle();
	case 9 ... 11:
		return arm_or_disarm(random);
	case 12:
		return arm_beside();
	case 13 ... 15:
		return refer(random);
	case 16 ... 17:
		return apply(random);
	case 18 ... 20:
		return disturb(random);
	case 21:
		return use(random, from);
	default:
		return access(random, from);
	}
}

void slot::look()
{
	const std::shared_lock hold(arming_);
	const bool over = over_;
	const uint64_t value = word_.value() & kernel_bits;
	const bool begun = begun_;

	if (value & ~known_bits)
		complain("bits that do not exist", value);
	if (value & suspended && !lends_)
		complain("suspended, but not reclaimable", value);
	count_.suspended += value == suspended;
	if (!armed_ && value)
		complain("changed while not armed", value);
	if (armed_ && over && !value && certain_)
		complain("not told before the system call returned", value);
	if (armed_ && !begun && (value & IBV_MR_NOTIFY_INVALID))
		complain("INVALID, though nothing has changed", value);
}

/*
 * Settles and returns the kernel's bits. If the word counts users, settles as a user. SUSPECT may
 * stay set for a while, because other threads cause events.
 */
uint64_t slot::settled()
{
	const std::atomic_ref word(*word_.address());
	const uint64_t user = in_use_ ? one_user : 0;
	uint64_t value = word.fetch_add(user);

	for (int i = 0; i < 1000 && value & (IBV_MR_NOTIFY_SUSPECT | suspended); i++) {
		ibv_settle_mr_notify(mr_.get());
		value = word_.value();
	}
	word.fetch_sub(user);
	return value & kernel_bits;
}

void slot::settle()
{
	const std::shared_lock hold(arming_);
	const bool over = over_;
	const int error = ibv_settle_mr_notify(mr_.get());

	/* EAGAIN: another process holds the file's lock, and the word has not changed. */
	if (error != (armed_ ? 0 : EINVAL) && error != EAGAIN)
		return complain("settling gave another error", static_cast<uint64_t>(error));
	if (!armed_ || error)
		return;
	const uint64_t value = settled();
	const bool begun = begun_;
	if (over && value != IBV_MR_NOTIFY_INVALID && (certain_ || value))
		complain("not INVALID after settling", value);
	if (!begun && (value & IBV_MR_NOTIFY_INVALID))
		complain("INVALID, though nothing has changed", value);
	if (over && on_.can_revoke() && !in_use_)
		revoked_ = true;
}

int slot::arm()
{
	const raw_uverbs raw(on_.context());

	if (lends_)
		return ibv_reg_mr_notify_reclaim(mr_.get(), word_.address(), in_use_);
	return in_use_ ? raw.arm(mr_->handle, word_.address(), in_use_)
		       : ibv_reg_mr_notify(mr_.get(), word_.address());
}

void slot::arm_or_disarm(generator &random)
{
	const std::unique_lock hold(arming_, std::try_to_lock);
	if (!hold)
		return;
	const bool over = over_;

	if (armed_ && random() % 4 == 0) {
		if (arm() != EBUSY)
			complain("armed twice", word_.value());
	} else if (armed_) {
		if (ibv_unreg_mr_notify(mr_.get()))
			complain("can't be disarmed", word_.value());
		armed_ = false;
		std::atomic_ref(*word_.address()).fetch_and(~kernel_bits);
	} else {
		const int error = arm();
		if (error)
			return complain("can't be armed", static_cast<uint64_t>(error));
		armed_ = true;
		const uint64_t at_once = word_.value() & kernel_bits;
		if (over && !at_once && certain_)
			complain("armed, stale, and not told", at_once);
		const uint64_t value = settled();
		const bool begun = begun_;
		if (over && value != IBV_MR_NOTIFY_INVALID && (certain_ || value))
			complain("armed too late, and not INVALID", value);
		if (!begun && (value & IBV_MR_NOTIFY_INVALID))
			complain("armed INVALID, though nothing has changed", value);
	}
}

/* The MR is already armed, so another word must stay 0. */
void slot::arm_beside()
{
	const raw_uverbs raw(on_.context());
	const std::shared_lock hold(arming_);
	word other;

	if (!armed_)
		return;
	if (raw.arm(mr_->handle, other.address()) != EBUSY || other.value())
		complain("armed with a second word", other.value());
}

void slot::refer(generator &random)
{
	const uint64_t more = in_use_ ? (random() << 24) : random() << 8;

	upper_ += more;
	std::atomic_ref(*word_.address()).fetch_add(more);
}

/* Half of the registrations that can be suspended have a user during the row. */
void slot::apply(generator &random)
{
	if (applied_.exchange(true))
		return;
	if (!lends_)
		return do_row();
	const std::atomic_ref word(*word_.address());
	const uint64_t user = random() % 2 ? one_user : 0;
	const std::shared_lock hold(arming_);

	word.fetch_add(user);
	const bool kept = user && armed_ && !(settled() & suspended);
	do_row();
	if (kept && over_) {
		const uint64_t value = settled();
		if (value != IBV_MR_NOTIFY_INVALID)
			complain("in use, and not INVALID after settling", value);
		certain_ = true;
	}
	word.fetch_sub(user);
}

void slot::do_row()
{
	const bool ends = what_.expected == effect::invalidates;
	if (ends || (lends_ && hinders_pinning(what_)))
		begun_ = true;
	try {
		what_.apply(memory_);
		if (ends) {
			over_ = true;
			count_.invalidated++;
		}
	} catch (const std::exception &) {
		/*
		 * The operation may have run in part. For example, fork() failed for lack of
		 * memory.
		 */
	}
}

/* Causes harmless events in this memory, or in a mapping that replaced it. */
void slot::disturb(generator &random)
{
	const std::array<int, 5> advices{MADV_COLD, MADV_PAGEOUT, MADV_WILLNEED, MADV_HUGEPAGE,
					 MADV_NOHUGEPAGE};
	switch (random() % 32) { /* the first three take long */
	case 0: {
		const pid_t child = fork();
		if (child == 0)
			_exit(0);
		if (child > 0)
			waitpid(child, nullptr, 0);
		break;
	}
	case 1: {
		const int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
		[[maybe_unused]] const auto written = write(fd, "4", 1);
		close(fd);
		break;
	}
	case 2: {
		unsigned long from = 1;
		unsigned long to = 2;
		if (random() % 2)
			std::swap(from, to);
		syscall(SYS_migrate_pages, 0, 3UL, &from, &to);
		break;
	}
	default:
		madvise(range_.addr, range_.length, advices[random() % advices.size()]);
	}
}

void slot::access(generator &random, peer &from)
{
	if ((access_ & remote) != remote)
		return;
	const std::size_t pages = range_.length / page_size();
	const range part{range_.addr + random() % pages * page_size(), 1 + random() % peer::most};
	const bool revoked = revoked_;
	const auto answer = random() % 2 ? from.write(part, mr_->rkey) : from.read(part, mr_->rkey);
	const bool begun = begun_;

	count_.refused += answer == peer::answer::refused;
	if (revoked && answer == peer::answer::done)
		complain("revoked, and reached by the device", word_.value());
	if (!begun && answer == peer::answer::refused && !lends_)
		complain("valid, and not reached by the device", word_.value());
}

/* A user for one access. */
void slot::use(generator &random, peer &from)
{
	const std::shared_lock hold(arming_);
	const std::atomic_ref word(*word_.address());

	if (!armed_ || !in_use_ || (access_ & remote) != remote)
		return;
	uint64_t value = word.fetch_add(one_user);
	if (value & suspended)
		value = settled();
	if (value & suspended)
		complain("in use, settled, and suspended", value);
	if (!(value & IBV_MR_NOTIFY_INVALID)) {
		const range part{range_.addr, 1 + random() % peer::most};
		const auto answer =
			random() % 2 ? from.write(part, mr_->rkey) : from.read(part, mr_->rkey);
		if (answer == peer::answer::refused)
			complain("in use, and not reached by the device", word_.value());
	}
	word.fetch_sub(one_user);
}

/* The registration has no users any more, and was settled. */
void slot::expect_revoked()
{
	peer from(on_);

	if ((access_ & remote) == remote &&
	    from.write({range_.addr, peer::most}, mr_->rkey) == peer::answer::done)
		complain("INVALID and idle, and reached by the device", word_.value());
}

void slot::finish(generator &random)
{
	if (armed_ && random() % 4 == 0 && !applied_) {
		begun_ = true;
		memory_ = memory();
		over_ = true;
	}
	look();
	settle();
	if (armed_ && !begun_) { /* other rows still disturb the whole process */
		uint64_t value = 0;
		if (!happens([&] { return !(value = settled()); }))
			complain("SUSPECT without end", value);
	}
	if (armed_ && over_ && in_use_ && on_.can_revoke() &&
	    word_.value() & IBV_MR_NOTIFY_INVALID) {
		settle();
		expect_revoked();
	}
	if ((word_.value() & ~kernel_bits) != upper_)
		complain("the application's bits were changed", word_.value() ^ upper_);
	const int error = ibv_dereg_mr(mr_.release());
	if (error)
		complain("can't be deregistered", static_cast<uint64_t>(error));
	const uint64_t last = word_.value();
	memory_ = memory();
	if (word_.value() != last)
		complain("changed after it was deregistered", word_.value());
}

} // namespace stress
