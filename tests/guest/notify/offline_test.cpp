// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Taking memory blocks offline. A block with idle registered pages goes offline, and the
 * registrations work again under their keys. A block with a registration in use stays online, as
 * with any pinned page. The test needs offline blocks of a node without other memory:
 * tests/lab/machines/hotplug.toml.
 */
#include "catch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <vector>

#include "bytes.h"
#include "skip.h"
#include "system.h"
#include "trial.h"
#include "witness.h"

using namespace mr_notify;

namespace {

const std::string folder = "/sys/devices/system/memory/";
constexpr std::size_t length = 16 * 4096;
constexpr uint64_t users = 0xffff00;
constexpr uint64_t one_user = 0x100;
constexpr uint64_t one_use = uint64_t{1} << 32; /* not a bit of the mask */
constexpr uint64_t suspect = IBV_MR_NOTIFY_SUSPECT;
constexpr std::byte ours{0x5a};

/* Uses only system calls, so a child may call it between fork() and _exit(). */
int write_state(const std::string &block, const char *state)
{
	const int fd = open((folder + block + "/state").c_str(), O_WRONLY | O_CLOEXEC);
	const bool written = write(fd, state, std::strlen(state)) > 0;
	const int error = errno;

	close(fd);
	return written ? 0 : error;
}

std::string state_of(const std::string &block)
{
	return read_system_file(folder + block + "/state");
}

/* The blocks of the DIMM, which were offline when the program began. */
const std::vector<std::string> &dimm()
{
	static const std::vector<std::string> blocks = [] {
		std::vector<std::string> found;
		if (!std::filesystem::exists(folder))
			return found;
		for (const auto &entry : std::filesystem::directory_iterator(folder)) {
			const std::string name = entry.path().filename();
			if (name.starts_with("memory") && state_of(name).starts_with("offline"))
				found.push_back(name);
		}
		return found;
	}();

	return blocks;
}

void bring_online()
{
	for (const std::string &block : dimm())
		if (state_of(block).starts_with("offline"))
			REQUIRE(write_state(block, "online_kernel") == 0);
}

/*
 * Takes a block offline without a child, because fork() suspends idle registrations. The kernel
 * tries until it succeeds or a signal comes. Returns EINTR at the time limit.
 */
int take_offline(const std::string &block)
{
	const auto before = std::signal(SIGALRM, [](int) {});

	alarm(time_limit.count());
	const int error = write_state(block, "offline");
	alarm(0);
	std::signal(SIGALRM, before);
	return error;
}

/* Returns the memory blocks of the DIMM that have pages of the range. */
std::set<std::string> blocks_of(range r)
{
	const std::size_t size =
		std::stoull(read_system_file(folder + "block_size_bytes"), nullptr, 16);
	std::set<std::string> found;

	for (const uint64_t frame : frames(r)) {
		const std::string name = "memory" + std::to_string(frame * page_size() / size);
		if (std::find(dimm().begin(), dimm().end(), name) != dimm().end())
			found.insert(name);
	}
	return found;
}

/*
 * Memory of the DIMM, with page tables on another node, because the kernel can't move page tables.
 */
memory on_dimm()
{
	constexpr int bind = 2; /* MPOL_BIND */
	const unsigned long nodes = 1UL << another_node();
	void *addr =
		mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (addr == MAP_FAILED)
		fail("mmap");
	memory m({static_cast<std::byte *>(addr), length});
	if (syscall(SYS_mbind, addr, length, bind, &nodes, 8 * sizeof(nodes), 0))
		fail("mbind");
	std::memset(addr, static_cast<int>(ours), length);
	return m;
}

/* A registration that the kernel may suspend while its word counts no users. */
struct counted {
	counted(const device &on, memory what)
	    : m(std::move(what)), mr(on.register_memory(m.registered()))
	{
		check_verb(ibv_reg_mr_notify_reclaim(mr.get(), w.address(), users),
			   "ibv_reg_mr_notify_reclaim");
	}

	void add(uint64_t value) { std::atomic_ref<uint64_t>(*w.address()).fetch_add(value); }
	bool is_untouched() const
	{
		const range r = m.registered();
		return std::all_of(r.addr, r.end(), [](std::byte b) { return b == ours; });
	}

	memory m;
	word w;
	owned<ibv_mr> mr;
};

/*
 * Takes the DIMM online so that each block can go offline. A block with a page that the kernel
 * can't move stays online (EBUSY). The workqueue of a device has such a page on each node with
 * memory. The first arming makes the workqueue, which exists as long as the device. So the test
 * arms an MR before this node has memory.
 */
void prepare_dimm(const device &on)
{
	const counted first(on, anonymous(length));

	bring_online();
	INFO("a block without registrations does not go: dmesg shows the page");
	for (const std::string &block : dimm())
		REQUIRE(take_offline(block) == 0);
	bring_online();
}

/*
 * A process that takes a block offline; the kernel tries until it succeeds or the process is
 * killed.
 */
class taker {
public:
	explicit taker(const std::string &block)
	{
		const std::size_t failures = failed_migrations();

		child_ = fork();
		if (child_ < 0)
			fail("fork");
		if (child_ == 0)
			_exit(write_state(block, "offline"));
		began_ = happens([&] { return failed_migrations() > failures || has_ended(); }) &&
			 !has_ended();
	}
	taker(const taker &) = delete;
	taker &operator=(const taker &) = delete;
	~taker() { end(); }

	/* The process has found pages that can't be moved, and keeps trying. */
	bool began() const { return began_; }
	bool succeeds()
	{
		return happens([&] { return has_ended(); }) && status_ == 0;
	}
	void end()
	{
		if (child_ < 0)
			return;
		kill(child_, SIGKILL);
		waitpid(child_, nullptr, 0);
		child_ = -1;
	}

private:
	static std::size_t failed_migrations()
	{
		return proc_number("/proc/vmstat", "pgmigrate_fail ");
	}

	bool has_ended()
	{
		if (child_ >= 0 && waitpid(child_, &status_, WNOHANG) == child_)
			child_ = -1;
		return child_ < 0;
	}

	pid_t child_ = -1;
	int status_ = -1;
	bool began_ = false;
};

} // namespace

TEST_CASE("a memory block with idle registrations goes offline, and comes back")
{
	SKIP_IF(dimm().empty(), "no memory block is offline");
	const device on;
	prepare_dimm(on);
	byte_check bytes(on);
	const std::size_t before = pinned_bytes();
	counted beside(on, anonymous(length));
	std::vector<std::unique_ptr<counted>> all;

	for (int i = 0; i < 80; i++) {
		all.push_back(std::make_unique<counted>(on, on_dimm()));
		REQUIRE(!blocks_of(all.back()->m.registered()).empty());
		all.back()->add(one_use); /* just used, so this scan does not suspend it */
	}
	const uint32_t rkey = all[0]->mr->rkey;
	const std::size_t pinned = pinned_bytes();

	for (const std::string &block : dimm())
		REQUIRE(take_offline(block) == 0);
	for (const auto &one : all) {
		CHECK(one->w.value() == (one_use | IBV_MR_NOTIFY_SUSPENDED));
		CHECK(blocks_of(one->m.registered()).empty());
		CHECK(one->is_untouched());
	}
	CHECK(beside.w.value() == 0);
	CHECK(pinned_bytes() == pinned - all.size() * length);

	SECTION("restored while it is offline") {}
	SECTION("restored when it is back")
	{
		bring_online();
	}
	for (const auto &one : all) {
		CHECK(ibv_settle_mr_notify(one->mr.get()) == 0);
		CHECK(one->w.value() == one_use);
		CHECK(one->is_untouched());
		CHECK(bytes.same(one->mr.get(), one->m));
	}
	CHECK(all[0]->mr->rkey == rkey);
	CHECK(pinned_bytes() == pinned);
	bring_online();
	counted again(on, on_dimm());
	CHECK(!blocks_of(again.m.registered()).empty());
	CHECK(bytes.same(again.mr.get(), again.m));
	all.clear();
	CHECK(pinned_bytes() < pinned);
	CHECK(before < pinned);
}

TEST_CASE("a memory block with a registration in use stays until that is idle")
{
	SKIP_IF(dimm().empty(), "no memory block is offline");
	const device on;
	prepare_dimm(on);
	byte_check bytes(on);
	counted one(on, on_dimm());
	const auto where = blocks_of(one.m.registered());
	REQUIRE(where.size() == 1);
	const std::string block = *where.begin();

	one.add(one_user);
	taker waits(block);
	CHECK(waits.began());
	CHECK((one.w.value() & ~suspect) == one_user); /* a page is unmapped for a moment */
	CHECK(blocks_of(one.m.registered()) == where);
	CHECK(bytes.same(one.mr.get(), one.m));

	SECTION("the waiting process gives up")
	{
		waits.end();
		CHECK(state_of(block).starts_with("online"));
		CHECK((one.w.value() & ~suspect) == one_user);
		CHECK(bytes.same(one.mr.get(), one.m));
	}
	SECTION("it is given back, and taken")
	{
		one.add(-one_user);
		/*
		 * An attempt to move pages makes the registration SUSPECT. The shrinker can suspend
		 * it only after the worker has cleared SUSPECT.
		 */
		CHECK(happens([&] {
			write_system_file("/proc/sys/vm/drop_caches", "2");
			return one.w.value() == IBV_MR_NOTIFY_SUSPENDED;
		}));
		CHECK(waits.succeeds());
		CHECK(state_of(block).starts_with("offline"));
		CHECK(ibv_settle_mr_notify(one.mr.get()) == 0);
		CHECK(one.w.value() == 0);
		CHECK(bytes.same(one.mr.get(), one.m));
		CHECK(blocks_of(one.m.registered()).count(block) == 0);
	}
}
