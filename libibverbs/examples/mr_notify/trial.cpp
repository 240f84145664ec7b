// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "trial.h"

#include <algorithm>

#include "system.h"

namespace mr_notify {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

std::size_t wait_for_pinned(std::size_t bytes)
{
	std::size_t seen = 0;

	happens([&] { return (seen = pinned_bytes()) == bytes; });
	return seen;
}

namespace {

std::chrono::nanoseconds timed(const operation &what, memory &m)
{
	const auto start = clock::now();

	what.apply(m);
	return clock::now() - start;
}

owned<ibv_mr> register_all(const device &on, const memory &m)
{
	return m.read_only() ? on.register_memory(m.registered(), 0)
			     : on.register_memory(m.registered());
}

std::chrono::nanoseconds try_plain(const device &on, const operation &what, std::size_t length)
{
	memory m = what.map(length);
	const auto mr = register_all(on, m);

	return timed(what, m);
}

/* Only the last round gets @bytes, because the RDMA takes longer than the rest of a round. */
observation try_armed(const device &on, byte_check *bytes, const operation &what,
		      std::size_t length)
{
	observation seen;
	memory m = what.map(length);
	const std::size_t before = pinned_bytes();
	const auto mr = register_all(on, m);
	word w;

	seen.pages = m.registered().length / page_size();
	check_verb(ibv_reg_mr_notify(mr.get(), w.address()), "ibv_reg_mr_notify");
	if (w.value())
		throw std::runtime_error("the word is not 0 before the operation");

	seen.armed = timed(what, m);
	seen.word_after = w.value();

	check_verb(ibv_settle_mr_notify(mr.get()), "ibv_settle_mr_notify");
	seen.word_settled = w.value();

	/* The kernel also pins the page of the word until the word is INVALID. */
	const bool gone = w.invalid() && on.can_revoke();
	const std::size_t expected = before + (gone ? 0 : m.registered().length + page_size());
	const std::size_t pinned = wait_for_pinned(expected);
	seen.pages_pinned = pinned > before ? (pinned - before) / page_size() : 0;
	if (seen.pages_pinned && pinned == expected)
		seen.pages_pinned--;

	if (bytes && gone)
		seen.refused = bytes->refused(mr.get());
	else if (bytes && !w.invalid())
		seen.reached = bytes->same(mr.get(), m);

	check_verb(ibv_unreg_mr_notify(mr.get()), "ibv_unreg_mr_notify");
	return seen;
}

} // namespace

bool is_timed(const operation &what)
{
	return what.disturbs == reach::process && !what.watch;
}

observation try_operation(const device &on, byte_check &bytes, const operation &what,
			  std::size_t length, bool cost)
{
	const bool once = !cost || !is_timed(what);
	const int rounds = once ? 1 : 3;
	observation best;

	try {
		if (what.watch)
			return what.watch(on, length);
		for (int i = 0; i < rounds; i++) {
			const auto plain = once ? 0ns : try_plain(on, what, length);
			observation seen =
				try_armed(on, i + 1 == rounds ? &bytes : nullptr, what, length);

			seen.plain = i ? std::min(best.plain, plain) : plain;
			seen.armed = i ? std::min(best.armed, seen.armed) : seen.armed;
			best = seen;
			if (!verdict(on, what, seen).empty())
				break;
		}
	} catch (const unsupported &reason) {
		best.skipped = reason.what();
	} catch (const std::exception &reason) {
		best.failed = reason.what();
	}
	return best;
}

std::string verdict(const device &on, const operation &what, const observation &seen)
{
	if (seen.skipped)
		return "";
	if (seen.failed)
		return "could not be tried: " + *seen.failed;
	if (seen.word_settled & IBV_MR_NOTIFY_SUSPECT)
		return "SUSPECT after settling";

	if (what.expected == effect::harmless) {
		if ((seen.word_after | seen.word_settled) & IBV_MR_NOTIFY_INVALID)
			return "INVALID, though nothing has changed";
		if (seen.pages_pinned != seen.pages)
			return "pages are not pinned any more";
		return seen.reached.value_or(true)
			       ? ""
			       : "the device reaches bytes that the CPU does not see";
	}

	if (seen.word_after == 0)
		return "the word was still 0 when the system call returned";
	if (seen.word_settled != IBV_MR_NOTIFY_INVALID)
		return "not INVALID after settling";
	if (!seen.refused.value_or(true))
		return "the device still has access";
	if (on.can_revoke())
		return seen.pages_pinned == 0 ? "" : "pages are still pinned";
	/* A process that has ended has no pages. */
	if (what.watch)
		return "";
	return seen.pages_pinned == seen.pages ? ""
					       : "pages were unpinned, but the device has access";
}

} // namespace mr_notify
