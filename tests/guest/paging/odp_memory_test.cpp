// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * With on-demand paging, memory in use is unpinned between transfers, does not count for any
 * limit, can be swapped out, and can move to another node.
 */
#include "catch.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include "odp.h"
#include "pins.h"
#include "probe.h"
#include "skip.h"
#include "system.h"
#include "witness.h"

using namespace mr_notify;
using namespace odp;

namespace {

constexpr std::size_t piece_length = std::size_t{16} << 20;

struct pinned_peer : paged_loopback {
	memory peer = anonymous(piece_length);
	owned<ibv_mr> peer_mr = on.register_memory(peer.registered());

	std::byte *bytes() const { return peer.registered().addr; }
	/* A transfer between this memory and the peer's memory. */
	bool write_to(range r)
	{
		return link.write(peer_mr.get(), {bytes(), r.length}, r.addr, all->rkey) ==
		       IBV_WC_SUCCESS;
	}
	bool read_from(range r)
	{
		return link.read(peer_mr.get(), {bytes(), r.length}, r.addr, all->rkey) ==
		       IBV_WC_SUCCESS;
	}
};

/* The value of each word depends on its address. */
void fill(range r, uint64_t round)
{
	for (std::size_t i = 0; i < r.length; i += 8) {
		const uint64_t value = i * 0x9e3779b97f4a7c15U + round;
		std::memcpy(r.addr + i, &value, 8);
	}
}

std::size_t absent(range r)
{
	const auto pages = frames(r);

	return static_cast<std::size_t>(std::count(pages.begin(), pages.end(), 0));
}

/* Returns the number of pages that are not on this node. With `move` it first moves them there. */
std::size_t elsewhere(range r, unsigned int node, bool move)
{
	const std::size_t count = r.length / page_size();
	std::vector<void *> pages(count);
	const std::vector<int> nodes(count, static_cast<int>(node));
	std::vector<int> status(count, -1);

	for (std::size_t i = 0; i < count; i++)
		pages[i] = r.addr + i * page_size();
	if (move)
		syscall(SYS_move_pages, 0, count, pages.data(), nodes.data(), status.data(), 2);
	if (syscall(SYS_move_pages, 0, count, pages.data(), nullptr, status.data(), 0))
		fail("move_pages");
	return count - static_cast<std::size_t>(
			       std::count(status.begin(), status.end(), static_cast<int>(node)));
}

} // namespace

TEST_CASE("nothing of a gigabyte in use is pinned between transfers", "[odp]")
{
	constexpr std::size_t much = std::size_t{1} << 30;
	SKIP_IF(proc_number("/proc/meminfo", "MemAvailable:") * 1024 < much + much / 8,
		"not that much memory");
	const device probe;
	const std::size_t pinned_before = pinned_bytes();
	const int64_t before = pins();
	const owned<ibv_mr> all = register_all(probe, all_rights);
	loopback link(probe);
	constexpr std::size_t length = 256 << 10;
	const memory from = anonymous(length);
	const memory whole = anonymous(much); /* all touched */
	const range r = whole.registered();

	/* writes only a part of each 4 MiB, because an emulated machine needs minutes for all */
	for (std::size_t at = 0; at < much; at += 16 * length) {
		fill(from.registered(), at);
		REQUIRE(link.write(all.get(), from.registered(), r.addr + at, all->rkey) ==
			IBV_WC_SUCCESS);
		REQUIRE(pinned_bytes() == pinned_before);
		REQUIRE(pins_come_back_to(before));
		REQUIRE(std::memcmp(from.registered().addr, r.addr + at, length) == 0);
	}
	CHECK(absent(r) == 0);
	CHECK(pinned_before == 0);
}

TEST_CASE("the limit of pinned memory does not apply", "[odp]")
{
	const pid_t child = child_that([] {
		const rlimit limit{65536, 65536};
		__user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
		__user_cap_data_struct caps[2]{};

		if (setrlimit(RLIMIT_MEMLOCK, &limit) || syscall(SYS_capget, &header, caps))
			return 1;
		caps[0].effective &= ~(1U << CAP_IPC_LOCK);
		if (syscall(SYS_capset, &header, caps))
			return 2;
		const device on;
		loopback link(on);
		const memory from = anonymous(piece_length);
		const memory into = anonymous(piece_length);
		const auto all = register_all(on, all_rights);
		const owned<ibv_mr> ranged(ibv_reg_mr(on.pd(), into.registered().addr, piece_length,
						      all_rights | IBV_ACCESS_ON_DEMAND));

		fill(from.registered(), 1);
		if (ibv_reg_mr(on.pd(), into.registered().addr, piece_length, all_rights))
			return 3; /* the limit has no effect */
		if (!ranged || link.write(all.get(), from.registered(), into.registered().addr,
					  ranged->rkey) != IBV_WC_SUCCESS)
			return 4;
		return std::memcmp(from.registered().addr, into.registered().addr, piece_length)
			       ? 5
			       : 0;
	});
	int status = -1;
	REQUIRE(waitpid(child, &status, 0) == child);
	CHECK(status == 0);
}

/*
 * If the OOM killer finds no process to kill, a page fault of the CPU waits for free memory. A
 * request must wait likewise.
 */
TEST_CASE("a page for which there is no memory is waited for", "[odp]")
{
	std::optional<control_group> group;
	try {
		group.emplace("short");
	} catch (const unsupported &) {
	}
	SKIP_IF(!group || access((group->path() + "/memory.max").c_str(), W_OK),
		"no memory control groups");
	const std::string limit = group->path() + "/memory.max";
	const pid_t child = child_that([&] {
		group->enter();
		write_system_file("/proc/self/oom_score_adj", "-1000");
		const pinned_peer s;
		const memory m = anonymous(piece_length);
		fill({s.bytes(), piece_length}, 1);
		if (madvise(m.registered().addr, piece_length, MADV_DONTNEED))
			return 1;
		loopback link(s.on);
		write_system_file(limit,
				  std::to_string(std::stoul(read_system_file(group->path() +
									     "/memory.current")) +
						 piece_length / 8));
		if (link.write(s.peer_mr.get(), {s.bytes(), piece_length}, m.registered().addr,
			       s.all->rkey) != IBV_WC_SUCCESS)
			return 2;
		return std::memcmp(s.bytes(), m.registered().addr, piece_length) ? 3 : 0;
	});
	int status = -1;
	bool ended = false;
	const auto events = group->path() + "/memory.events";

	CHECK(happens([&] {
		ended = waitpid(child, &status, WNOHANG) == child;
		return ended || proc_number(events.c_str(), "oom ") > 3;
	}));
	write_system_file(limit, "max");
	CHECK((ended || waitpid(child, &status, 0) == child));
	CHECK(status == 0);
}

TEST_CASE("reading untouched memory allocates none", "[odp]")
{
	pinned_peer s;
	const memory m = anonymous(piece_length);
	const auto used = [] { return proc_number("/proc/self/status", "RssAnon:"); };

	madvise(m.registered().addr, piece_length, MADV_NOHUGEPAGE);
	REQUIRE(madvise(m.registered().addr, piece_length, MADV_DONTNEED) == 0);
	const std::size_t before = used();
	CHECK(s.read_from(m.registered()));
	/* some pages may have been found without mmap_lock */
	CHECK(used() < before + piece_length / 1024 / 4);
}

TEST_CASE("memory in use is swapped out, and comes back for the device", "[odp]")
{
	pinned_peer s;
	const bool shared = GENERATE(false, true);
	const std::size_t length = piece_length / 4;
	const memory m = shared ? shared_file(length) : anonymous(length);
	const range r = m.registered();
	try {
		need_swap();
	} catch (const unsupported &why) {
		SKIP_IF(true, why.what());
	}
	const auto page_out = [&] {
		return happens([&] {
			/*
			 * empties the per-CPU lists, which hold pages that a worker has faulted in
			 */
			write_system_file("/proc/sys/vm/drop_caches", "1");
			madvise(r.addr, r.length, MADV_PAGEOUT);
			return absent(r) > r.length / page_size() * 9 / 10;
		});
	};

	for (uint64_t round = 0; round < 3; round++) {
		CAPTURE(shared, round);
		fill(r, round);
		REQUIRE(page_out());
		CHECK(s.read_from(r));
		CHECK(absent(r) == 0);
		CHECK(std::memcmp(s.bytes(), r.addr, r.length) == 0);

		REQUIRE(page_out());
		fill({s.bytes(), r.length}, round + 100);
		CHECK(s.write_to(r));
		/* the bytes that the device wrote must survive swapping */
		REQUIRE(page_out());
		CHECK(std::memcmp(s.bytes(), r.addr, r.length) == 0);
	}
	CHECK(pinned_bytes() <= s.peer.registered().length);
}

/*
 * The file system tracks dirty pages of the file, and warns about a write to a page that it has not
 * marked dirty.
 */
TEST_CASE("a file in use is written to its disk", "[odp]")
{
	pinned_peer s;
	SKIP_IF(std::system("modprobe -a loop ext4 2>/dev/null; cd /run && mkdir -p odp_disk && "
			    "truncate -s 32M odp_image && mkfs.ext4 -q -F odp_image && "
			    "mount -o loop odp_image odp_disk 2>/dev/null"),
		"no ext4");
	const int fd = open("/run/odp_disk/file", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	umount2("/run/odp_disk", MNT_DETACH);
	REQUIRE(fd >= 0);
	const std::size_t length = 8 * page_size();
	REQUIRE(ftruncate(fd, static_cast<off_t>(length)) == 0);
	void *const at = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	REQUIRE(at != MAP_FAILED);
	const memory file({static_cast<std::byte *>(at), length}, fd);
	const range r = file.registered();
	std::atomic<bool> stop{false};

	std::thread writing_back([&] {
		while (!stop)
			fdatasync(fd);
	});
	const piece before{{s.bytes() + length, 8}, s.peer_mr->lkey};
	bool right = true;
	for (uint64_t round = 0; round < 150 && right; round++) {
		fill({s.bytes(), length}, round); /* the first word is the number of the round */
		right = s.write_to(r) && std::memcmp(s.bytes(), r.addr, length) == 0;
		right = right && run(s.link, {IBV_WR_ATOMIC_FETCH_AND_ADD,
					      {before},
					      number(r.addr),
					      s.all->rkey,
					      1,
					      0}) == IBV_WC_SUCCESS;
	}
	stop = true;
	writing_back.join();
	fill({s.bytes(), 8}, 150);
	CHECK(right);

	std::vector<std::byte> there(length);
	REQUIRE(fsync(fd) == 0);
	REQUIRE(madvise(r.addr, length, MADV_DONTNEED) == 0);
	REQUIRE(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
	CHECK(absent(r) == r.length / page_size());
	REQUIRE(pread(fd, there.data(), length, 0) == static_cast<ssize_t>(length));
	CHECK(std::memcmp(s.bytes(), there.data(), length) == 0);
}

TEST_CASE("memory in use moves to another node", "[odp]")
{
	pinned_peer s;
	unsigned int node = 0;
	std::optional<setting> still; /* pages do not follow the accesses */
	try {
		node = another_node();
		still.emplace("/proc/sys/kernel/numa_balancing", "0");
	} catch (const unsupported &why) {
		SKIP_IF(true, why.what());
	}
	const memory m = anonymous(piece_length / 4);
	const range r = m.registered();
	std::atomic<bool> stop{false};

	/* Most pages may move during the transfers, and all must move afterwards. */
	std::thread moving([&] {
		for (unsigned int i = 0; !stop; i++)
			elsewhere(r, i % 2 ? node : 0, true);
	});
	bool right = true;
	for (uint64_t round = 0; round < 10 && right; round++) {
		fill({s.bytes(), r.length}, round);
		right = s.write_to(r) && std::memcmp(s.bytes(), r.addr, r.length) == 0;
		fill(r, round + 100);
		right = right && s.read_from(r) && std::memcmp(s.bytes(), r.addr, r.length) == 0;
	}
	stop = true;
	moving.join();
	CHECK(right);
	for (const unsigned int to : {node, 0U}) {
		CHECK(elsewhere(r, to, true) == 0);
		CHECK(s.read_from(r));
		CHECK(elsewhere(r, to, false) == 0);
		CHECK(std::memcmp(s.bytes(), r.addr, r.length) == 0);
	}
}

TEST_CASE("a worker leaves the address space with the end of its task", "[odp][kprobes]")
{
	pinned_peer s;
	const memory m = anonymous(piece_length);
	::probe taken("kthread_use_mm", ::probe::at::call, "taken");
	::probe left("kthread_unuse_mm", ::probe::at::call, "left");

	taken.count();
	left.count();
	for (int i = 0; i < 20; i++)
		REQUIRE(s.write_to({m.registered().addr, 256 << 10}));
	CHECK(taken.hits() > 0);
	CHECK(happens([&] { return left.hits() == taken.hits(); }));
}

/*
 * For pages of other kinds, the device looks up the page of each packet under mmap_lock, which
 * takes a tenth longer.
 */
TEST_CASE("huge pages of hugetlb are copied as others are", "[odp][kprobes]")
{
	pinned_peer s;
	const setting pages("/proc/sys/vm/nr_hugepages", "4");
	SKIP_IF(read_system_file("/proc/sys/vm/nr_hugepages") != "4", "no huge pages to be had");
	const memory m = hugetlb(huge_page_size(), GENERATE(false, true));
	::probe looked_up("rxe_mem_page_get");

	REQUIRE(s.write_to(m.registered()));
	looked_up.count();
	REQUIRE(s.write_to(m.registered()));
	REQUIRE(s.read_from(m.registered()));
	/* For most of the 4,096 packets mmap_lock is free, so the device looks no page up. */
	CHECK(looked_up.hits() < 100);
}
