// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "scenario.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "loopback.h"
#include "trial.h"

namespace mr_notify {
namespace {

/* Maps fresh, zeroed memory at exactly this address. */
void map_again(range r)
{
	if (mmap(r.addr, r.length, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != r.addr)
		fail("mmap at the same address");
}

bool all_bytes_are(range r, std::byte value)
{
	return std::all_of(r.addr, r.end(), [=](std::byte b) { return b == value; });
}

void fill(range r, int value)
{
	std::memset(r.addr, value, r.length);
}

std::string status_text(ibv_wc_status status)
{
	return ibv_wc_status_str(status);
}

} // namespace

std::vector<step> run_scenario(const device &on, std::size_t length)
{
	std::vector<step> steps;
	const auto note = [&](std::string what, bool ok, std::string seen) {
		steps.push_back({std::move(what), ok, std::move(seen)});
	};

	const memory peer = anonymous(length);
	const memory buffer = anonymous(length);
	const range a = buffer.registered();
	const range b = peer.registered();
	const auto peer_mr = on.register_memory(b);
	word w;

	const std::size_t before = pinned_bytes();
	auto mr = on.register_memory(a);
	check_verb(ibv_reg_mr_notify(mr.get(), w.address()), "ibv_reg_mr_notify");
	note("register and arm buffer A", w.value() == 0, "word " + std::to_string(w.value()));

	/* Writes by RDMA on a new connection, because an error ends a connection. Then compares the
	 * bytes. */
	const auto write = [&](std::string what, range from, range to, std::byte then,
			       const std::function<bool(const loopback &, ibv_wc_status)> &right) {
		const bool out = from.addr == a.addr;
		const auto &local = out ? mr : peer_mr;
		const auto &remote = out ? peer_mr : mr;
		loopback link(on);
		const ibv_wc_status status = link.write(local.get(), from, to.addr, remote->rkey);

		note(std::move(what), right(link, status) && all_bytes_are(to, then),
		     status_text(status));
	};
	const auto success = [](const loopback &, ibv_wc_status s) { return s == IBV_WC_SUCCESS; };

	fill(a, 0x11);
	write("RDMA write from A: the bytes arrive", a, b, std::byte{0x11}, success);
	fill(b, 0x22);
	write("RDMA write of a peer into A: the bytes arrive", b, a, std::byte{0x22}, success);

	if (munmap(a.addr, a.length))
		fail("munmap");
	note("unmap A: the word says INVALID", w.value() == IBV_MR_NOTIFY_INVALID,
	     "word " + std::to_string(w.value()));

	/* Map the range again immediately, as malloc() may do. */
	map_again(a);
	fill(a, 0x33);
	const std::size_t expected = on.can_revoke() ? before : before + a.length;
	const std::size_t pinned = wait_for_pinned(expected);
	note(on.can_revoke() ? "the pages of A are unpinned"
			     : "the pages of A stay pinned (no revoke)",
	     pinned == expected, std::to_string(pinned / page_size()) + " pages pinned");

	if (on.can_revoke()) {
		fill(b, 0x44);
		write("RDMA write of a peer with the old rkey: refused, changes nothing", b, a,
		      std::byte{0x33},
		      [](const loopback &link, ibv_wc_status s) { return link.refused(s); });
		write("RDMA write with the old lkey: local protection error", a, b, std::byte{0x44},
		      [](const loopback &, ibv_wc_status s) { return s == IBV_WC_LOC_PROT_ERR; });
	}

	mr.reset();
	word again;
	mr = on.register_memory(a);
	check_verb(ibv_reg_mr_notify(mr.get(), again.address()), "ibv_reg_mr_notify");
	note("register and arm A again", again.value() == 0,
	     "word " + std::to_string(again.value()));
	fill(a, 0x55);
	write("RDMA write from A: the new bytes arrive", a, b, std::byte{0x55}, success);
	return steps;
}

} // namespace mr_notify
