// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "reclaim.h"

#include <algorithm>

#include "system.h"
#include "trial.h"
#include "witness.h"

namespace mr_notify {
namespace {

constexpr uint64_t users = 0xffff00;
constexpr uint64_t one_user = 0x100;
constexpr uint64_t one_use = uint64_t{1} << 32; /* outside of the mask */

/* If two scans of the shrinker are closer together than this, they may count as one scan. */
constexpr std::chrono::milliseconds apart(100);

/* Runs all shrinkers, several times. */
void shrink()
{
	write_system_file("/proc/sys/vm/drop_caches", "2");
}

int rights_to(const memory &m)
{
	return m.read_only()
		       ? 0
		       : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
}

/* A registration that the kernel may suspend. */
struct lender {
	lender(const device &on, const memory &m)
	    : before(pinned_bytes()), mr(on.register_memory(m.registered(), rights_to(m)))
	{
		check_verb(ibv_reg_mr_notify_reclaim(mr.get(), w.address(), users),
			   "ibv_reg_mr_notify_reclaim");
	}

	void add(uint64_t value) { std::atomic_ref<uint64_t>(*w.address()).fetch_add(value); }

	/* Returns an empty string or the complaint. The page of the word stays pinned. */
	std::string suspend()
	{
		shrink();
		if (w.value() != IBV_MR_NOTIFY_SUSPENDED)
			return "not suspended, although it is idle";
		if (wait_for_pinned(before + page_size()) != before + page_size())
			return "suspended, but its pages are still pinned";
		return "";
	}

	std::size_t before;
	word w;
	owned<ibv_mr> mr;
};

/* Does an operation on unpinned pages. Returns true if the kernel would refuse pinned pages. */
bool was_to_be_refused(const operation &what, memory &m)
{
	try {
		what.apply(m);
	} catch (const unsupported &) {
		throw;
	} catch (const std::system_error &) {
		throw;
	} catch (const std::runtime_error &) {
		return true;
	}
	return false;
}

} // namespace

reclaim_check::reclaim_check(const device &on) : on_(on), bytes_(on)
{
	ibv_device_attr_ex attr{};

	if (ibv_query_device_ex(on.context(), nullptr, &attr) ||
	    !(attr.device_cap_flags_ex & IBV_DEVICE_MR_RECLAIM))
		throw unsupported("this kernel and driver can't suspend idle registrations");
	try {
		write_system_file("/proc/sys/vm/drop_caches", "2");
	} catch (const unsupported &reason) { /* the user lacks a right */
		throw std::runtime_error(reason.what());
	}
}

std::string reclaim_check::try_operation(const operation &what, std::size_t length)
{
	if (what.watch)
		throw unsupported("the memory belongs to another process");
	memory m = what.map(length);
	lender one(on_, m);
	std::string wrong = one.suspend();
	if (!wrong.empty())
		return wrong;

	const auto mine = frames(m.registered());
	const auto beside = frames(m.witness());
	const bool done_after_all = was_to_be_refused(what, m);
	const uint64_t after = one.w.value();
	if (after != IBV_MR_NOTIFY_SUSPENDED && after != IBV_MR_NOTIFY_INVALID)
		return "the word is neither SUSPENDED nor INVALID";
	const auto was_left_alone = [&] {
		return frames(m.witness()) != beside && frames(m.registered()) == mine;
	};
	if (!what.may_leave_alone()) {
		/* The kernel reclaims the least recently used pages first, so try several times. */
		for (int i = 0; i < 10 && was_left_alone(); i++)
			what.apply(m);
		if (was_left_alone())
			return "the kernel left the unpinned pages alone";
	}

	check_verb(ibv_settle_mr_notify(one.mr.get()), "ibv_settle_mr_notify");
	if (one.w.value() == 0)
		return bytes_.same(one.mr.get(), m)
			       ? ""
			       : "the device reaches bytes that the CPU does not see";
	if (!one.w.invalid())
		return "settling left the word neither 0 nor INVALID";
	if (wait_for_pinned(one.before) != one.before)
		return "INVALID, but its pages are still pinned";
	if (!m.read_only() && !bytes_.refused(one.mr.get()))
		return "INVALID, but the device still has access";
	if (what.expected == effect::harmless && !done_after_all) {
		const range r = m.registered();
		const owned<ibv_mr> fresh(ibv_reg_mr(on_.pd(), r.addr, r.length, rights_to(m)));
		if (fresh)
			return "INVALID, although the same range can be registered";
	}
	return "";
}

std::string reclaim_check::try_restore(std::size_t length)
{
	const memory m = anonymous(length);
	lender one(on_, m);
	std::string wrong = one.suspend();
	if (!wrong.empty())
		return wrong;
	if (!bytes_.refused(one.mr.get()))
		return "suspended, but the device still has access";
	check_verb(ibv_settle_mr_notify(one.mr.get()), "ibv_settle_mr_notify");
	if (one.w.value())
		return "settling did not set the word to 0";
	if (pinned_bytes() != one.before + length + page_size())
		return "restored, but its pages are not pinned";
	return bytes_.same(one.mr.get(), m) ? ""
					    : "the device reaches bytes that the CPU does not see";
}

std::string reclaim_check::try_in_use(std::size_t length)
{
	const memory m = anonymous(length);
	lender one(on_, m);

	one.add(one_user);
	for (int i = 0; i < 3; i++) {
		let_pass(apart);
		shrink();
		if (one.w.value() != one_user)
			return "the kernel changed the word of a registration in use";
	}
	return bytes_.same(one.mr.get(), m) ? ""
					    : "the device reaches bytes that the CPU does not see";
}

std::string reclaim_check::second_chance(std::size_t length, bool &looked_once) const
{
	const memory m = anonymous(length);
	lender one(on_, m);
	const auto leaves = [&](uint64_t value, auto what) {
		let_pass(apart);
		const auto begin = kernel_time();
		what();
		shrink();
		const bool so = one.w.value() == value;
		looked_once &= kernel_time() - begin < one_look;
		return so;
	};

	looked_once = true;
	if (!leaves(one_use, [&] {
		    one.add(one_user + one_use);
		    one.add(-one_user);
	    }))
		return "suspended, although it was used since the last scan";
	if (!leaves(one_use | IBV_MR_NOTIFY_SUSPENDED, [] {}))
		return "not suspended, although it was not used since the last scan";
	if (!leaves(one_use, [&] {
		    check_verb(ibv_settle_mr_notify(one.mr.get()), "ibv_settle_mr_notify");
	    }))
		return "suspended, although it has just been restored";
	return "";
}

/* On a slow machine the shrinker may scan twice. */
std::string reclaim_check::try_second_chance(std::size_t length)
{
	for (int i = 0; i < 100; i++) {
		bool looked_once = false;
		std::string problem = second_chance(length, looked_once);

		if (problem.empty() || looked_once)
			return problem;
	}
	throw unsupported("the machine is too slow for a single scan");
}

} // namespace mr_notify
