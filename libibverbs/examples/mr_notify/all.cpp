// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "all.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "witness.h"

namespace mr_notify {
namespace {

/* The largest number of pages to check. Each page is read and written. */
constexpr std::size_t most = 4;
constexpr int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

/*
 * Checks the rights of this process at an address by system calls, because a load or
 * store without the right would kill the process.
 */
class cpu {
public:
	cpu()
	{
		if (pipe2(ends_, O_CLOEXEC))
			fail("pipe2");
	}
	cpu(const cpu &) = delete;
	cpu &operator=(const cpu &) = delete;
	~cpu()
	{
		close(ends_[0]);
		close(ends_[1]);
	}

	bool reads(range page, std::vector<std::byte> &bytes) const
	{
		bytes.resize(page.length);
		return ::write(ends_[1], page.addr, page.length) ==
			       static_cast<ssize_t>(page.length) &&
		       ::read(ends_[0], bytes.data(), page.length) ==
			       static_cast<ssize_t>(page.length);
	}
	bool writes(std::byte *to, std::byte value) const
	{
		std::byte left{};

		if (::write(ends_[1], &value, 1) != 1)
			fail("write to a pipe");
		if (::read(ends_[0], to, 1) == 1)
			return true;
		if (::read(ends_[0], &left, 1) != 1)
			fail("read of a pipe");
		return false;
	}

private:
	int ends_[2] = {};
};

} // namespace

all_check::all_check(const device &on)
    : on_(on), all_(ibv_register_mr_all(on.pd(), rights)), peer_(anonymous(page_size()))
{
	if (!all_ && errno != EOPNOTSUPP)
		fail("ibv_register_mr_all");
	if (!all_)
		throw unsupported(std::string("ibv_register_mr_all: ") + std::strerror(errno));
}

bool all_check::ended_well(ibv_wc_status status)
{
	if (status != IBV_WC_SUCCESS)
		links_.pop_front();
	return status == IBV_WC_SUCCESS;
}

/* The device accesses the page before the CPU does, because the CPU's access would map the page. */
std::string all_check::look(range page)
{
	const range peer = peer_.registered();
	std::vector<std::byte> seen;
	cpu ours;

	const bool read = ended_well(links_.front().read(all_.get(), peer, page.addr, all_->rkey));
	if (read != ours.reads(page, seen))
		return read ? "the device can read a page that the CPU can't read"
			    : "the device can't read a page that the CPU can read";
	if (read && std::memcmp(peer.addr, seen.data(), page.length) != 0)
		return "the device reads bytes that the CPU does not see";

	std::memset(peer.addr, ++pattern_, page.length);
	const bool written =
		ended_well(links_.front().write(all_.get(), peer, page.addr, all_->rkey));
	if (written != ours.writes(page.addr, peer.addr[0]))
		return written ? "the device can write a page that the CPU can't write"
			       : "the device can't write a page that the CPU can write";
	if (!written)
		return "";
	if (!ours.reads(page, seen) || std::memcmp(peer.addr, seen.data(), page.length) != 0)
		return "the CPU reads other bytes than the device wrote";
	return "";
}

std::string all_check::try_operation(const operation &what, std::size_t length)
{
	if (what.watch)
		throw unsupported("the memory belongs to another process");
	/* A fault of userfaultfd would block the CPU, too. odp_wait_test.cpp tests such faults. */
	if (what.name.find("userfaultfd") != std::string::npos ||
	    what.name.find("UFFDIO") != std::string::npos)
		throw unsupported("a page fault would wait for a userfaultfd handler");
	memory m = what.map(length);
	const range r = m.registered();
	const std::size_t pages = r.length / page_size();
	const std::size_t count = std::min(pages, most);

	while (links_.size() < 2 * most)
		links_.emplace_back(on_);
	const bool has_witness = m.witness().length && !what.may_leave_alone();
	const auto before = has_witness ? frames(r) : std::vector<uint64_t>();
	try {
		what.apply(m);
	} catch (const not_refused &) {
		/* The kernel refuses this operation only for pinned pages. */
	}
	/* If the witness's pages changed, the MR's pages must have changed, too, because
	 * no page is pinned. */
	if (has_witness && frames(r) == before)
		return "the kernel changed the pages next to the range, but not the range";
	for (std::size_t i = 0; i < count; i++) {
		const std::size_t at = count > 1 ? i * (pages - 1) / (count - 1) : 0;
		std::string wrong = look({r.addr + at * page_size(), page_size()});
		if (!wrong.empty())
			return wrong;
	}
	return pinned_bytes() ? "pages are pinned" : "";
}

} // namespace mr_notify
