// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Peers on the first node of tests/lab/run --nodes 2 write and read memory of the second node, over
 * a wire that loses, repeats and reorders packets. At the same time the owner loses this memory.
 * RUN_BYTES sets the number of bytes that the oracle transfers (default: 10 million). RUN_SEED sets
 * its seed.
 */
#include "catch.h"

#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>

#include "nodes/owner.h"
#include "nodes/remote.h"
#include "nodes/traffic.h"
#include "requirement.h"
#include "system.h"

using namespace mr_notify;
using namespace nodes;

namespace {

constexpr std::size_t length = 64 << 10;
const requirements needs({{"two nodes", "one node (tests/lab/run --nodes 2)",
			   [] { return has_another_node(); }}});

using words = std::vector<std::string>;

const words clean;
const words lossy{"loss", "2%", "duplicate", "2%", "reorder", "10%", "delay", "1ms"};
/* A copy of a packet may arrive after later packets. */
const words repeating{"duplicate", "50%", "delay", "4ms", "4ms"};
const words cut{"loss", "100%"};

/* From now on the wire treats the packets of both ends as @how says. */
void set_wire(const words &how)
{
	static words now{"unknown"};
	words command{"lab-node", "2", "wire"};

	command.insert(command.end(), how.begin(), how.end());
	if (how != now)
		run(command);
	now = how;
}

/*
 * Processes on the other node, used by one case after the other, because starting a process takes
 * seconds on an emulated machine.
 */
struct processes {
	std::unique_ptr<remote> owner, watcher;
};

processes &there()
{
	static processes both;

	if (!both.owner)
		both.owner = std::make_unique<remote>("owner");
	if (!both.watcher)
		both.watcher = std::make_unique<remote>("watcher");
	return both;
}

/* If packets are only lost, 7 tries of 134 ms are enough. */
constexpr patience ends_soon{15, 6};
constexpr patience endless{15, 7};

/*
 * Memory of a file. Its owner can unmap or truncate it. Another process has the file open, to
 * detect later writes to the pages.
 */
struct lost_memory {
	explicit lost_memory(const char *arm = "notify")
	{
		int fd = -1;

		to.length = length;
		owner().ask("map file", length, arm) >> to.addr >> to.rkey >> process >> fd;
		watcher().ask("watch", process, fd, length);
	}

	/* Unmaps or truncates the memory. The owner must learn this immediately, with any wire. */
	void lose(const char *how)
	{
		std::size_t pinned = 1;
		uint64_t at_once = 0;
		uint64_t settled = 0;

		owner().ask(how) >> pinned >> at_once >> settled;
		CHECK(at_once != 0);
		CHECK(settled == IBV_MR_NOTIFY_INVALID);
		CHECK(pinned == 0);
	}

	/* Now the watcher owns the memory. */
	void give_to_watcher() { watcher().ask("take"); }
	uint64_t foreign_bytes()
	{
		uint64_t count = 1;

		watcher().ask("foreign") >> count;
		return count;
	}

	static remote &owner() { return *there().owner; }
	static remote &watcher() { return *there().watcher; }

	pid_t process = -1;
	target to;
};

/* Prints the peer's view, which Documentation/observe.md shows. */
void tell_end(const char *event, const words &over, const traffic::end &end)
{
	std::printf("%s, %s wire: %s after %lld ms, then %u flushed\n", event,
		    over.empty() ? "clean" : "lossy", ibv_wc_status_str(end.first),
		    static_cast<long long>(end.duration.count()), end.flushed);
	std::fflush(stdout);
}

/*
 * Over iWARP the connection ends, and no completion tells the reason. The request that soft-iWARP
 * is sending gets IBV_WC_LOC_QP_OP_ERR, other requests IBV_WC_WR_FLUSH_ERR.
 */
bool is_end_of_connection(const traffic::end &end)
{
	return (end.first == IBV_WC_WR_FLUSH_ERR || end.first == IBV_WC_LOC_QP_OP_ERR) &&
	       end.others == 0;
}

/*
 * The owner's queue pair sends one NAK, and enters the error state. If the NAK is lost, or if the
 * peer's timer has just expired, the peer repeats the request and gets no answer.
 */
bool is_refusal(const device &on, const traffic::end &end)
{
	if (on.is_iwarp())
		return is_end_of_connection(end);
	return (end.first == IBV_WC_REM_ACCESS_ERR || end.first == IBV_WC_RETRY_EXC_ERR) &&
	       end.others == 0;
}

bool is_silence(const device &on, const traffic::end &end)
{
	if (on.is_iwarp())
		return is_end_of_connection(end);
	return end.first == IBV_WC_RETRY_EXC_ERR && end.others == 0;
}

/*
 * Makes TCP give up after seconds instead of a quarter of an hour. soft-RoCE ignores this setting.
 */
setting impatient()
{
	return {"/proc/sys/net/ipv4/tcp_retries2", "3"};
}

/* The owner also refuses the key to another queue pair. */
void check_refused(const device &on, lost_memory &from)
{
	traffic again(on, from.owner(), from.to, ends_soon);

	CHECK(is_refusal(on, again.wait_for_end()));
}

} // namespace

TEST_CASE("owner", "[.]")
{
	owner one;
	obey(std::cin, std::cout, [&](auto &words, auto &answer) { one.obey(words, answer); });
}

TEST_CASE("watcher", "[.]")
{
	watcher one;
	obey(std::cin, std::cout, [&](auto &words, auto &answer) { one.obey(words, answer); });
}

TEST_CASE("a peer loses access to memory that its owner unmaps or truncates", "[two nodes]")
{
	const char *const how = GENERATE("unmap", "truncate");
	const auto over = GENERATE(clean, lossy);
	const device on;
	set_wire(over);
	lost_memory from;
	traffic peer(on, from.owner(), from.to, ends_soon);

	peer.go_on(20);
	from.lose(how);
	if (how == std::string("unmap"))
		from.give_to_watcher();
	const traffic::end end = peer.wait_for_end();
	tell_end(how, over, end);
	CHECK(is_refusal(on, end));
	check_refused(on, from);
	if (how == std::string("unmap"))
		CHECK(from.foreign_bytes() == 0);
}

TEST_CASE("a peer loses access to the memory of a killed process", "[two nodes]")
{
	const auto over = GENERATE(clean, lossy);
	const device on;
	set_wire(over);
	lost_memory from;
	traffic peer(on, from.owner(), from.to, ends_soon);

	peer.go_on(20);
	from.owner().kill();
	there().owner.reset();
	from.give_to_watcher();
	const traffic::end end = peer.wait_for_end();
	tell_end("the owner is killed", over, end);
	CHECK(is_refusal(on, end));
	CHECK(from.foreign_bytes() == 0);
}

TEST_CASE("a peer loses access to suspended memory, until it is used again", "[two nodes]")
{
	const auto over = GENERATE(clean, lossy);
	const device on;
	set_wire(over);
	lost_memory from("reclaim");
	std::size_t pinned = 1;
	int settled = -1;
	uint64_t word = 1;

	{
		traffic peer(on, from.owner(), from.to, ends_soon);
		peer.go_on(20);
		from.owner().ask("suspend") >> pinned >> word;
		CHECK(word == IBV_MR_NOTIFY_SUSPENDED);
		CHECK(pinned <= page_size()); /* the page of the word */
		from.give_to_watcher();
		const traffic::end end = peer.wait_for_end();
		tell_end("suspended", over, end);
		CHECK(is_refusal(on, end));
	}
	check_refused(on, from);
	CHECK(from.foreign_bytes() == 0);
	from.owner().ask("settle") >> settled >> word;
	CHECK(settled == 0);
	CHECK(word == 0);
	traffic again(on, from.owner(), from.to, ends_soon);
	again.go_on(20);
	CHECK(from.foreign_bytes() > 0);
}

TEST_CASE("a peer that sends again when the wire is repaired is refused", "[two nodes]")
{
	const device on;
	set_wire(clean);
	lost_memory from;
	traffic peer(on, from.owner(), from.to, endless);

	peer.go_on(20);
	set_wire(cut);
	from.lose("unmap");
	from.give_to_watcher();
	set_wire(clean);
	const traffic::end end = peer.wait_for_end();
	tell_end("cut, unmapped, mended", clean, end);
	CHECK((on.is_iwarp() ? is_end_of_connection(end) : end.first == IBV_WC_REM_ACCESS_ERR));
	CHECK(end.others == 0);
	CHECK(from.foreign_bytes() == 0);
}

TEST_CASE("cutting the wire ends the transfers, and no packet of them comes later", "[two nodes]")
{
	const device on;
	const setting few = impatient();
	set_wire(clean);
	lost_memory from;
	traffic peer(on, from.owner(), from.to, ends_soon, on.is_iwarp());

	peer.go_on(20);
	set_wire(cut);
	const traffic::end end = peer.wait_for_end();
	tell_end("cut", clean, end);
	CHECK(is_silence(on, end));
	from.give_to_watcher();
	set_wire(clean);
	/* The owner has not noticed the cut, and another queue pair works. */
	CHECK(from.foreign_bytes() == 0);
	traffic again(on, from.owner(), from.to, ends_soon);
	again.go_on(20);
	from.lose("unmap");
	CHECK(is_refusal(on, again.wait_for_end()));
}

TEST_CASE("a node that dies ends the transfers", "[two nodes]")
{
	const device on;
	const setting few = impatient();
	set_wire(clean);
	{
		lost_memory from;
		traffic peer(on, from.owner(), from.to, ends_soon, on.is_iwarp());

		peer.go_on(20);
		run({"lab-node", "2", "kill"});
		from.owner().forget();
		from.watcher().forget();
		const traffic::end end = peer.wait_for_end();
		tell_end("the node is killed", clean, end);
		CHECK(is_silence(on, end));
	}
	there() = {};
	run({"lab-node", "2", "start"});
	/* No later packet with the old key may reach the memory of any process. */
	lost_memory next;
	traffic peer(on, next.owner(), next.to, ends_soon);
	peer.go_on(20);
}

namespace {

/* Memory on the other node; this node knows the right value of each byte. */
class oracle {
public:
	oracle(const device &on, remote &owner, const target &to, uint64_t seed)
	    : roll_(seed), owner_(owner), to_(to), model_(to.length),
	      local_(anonymous(at_a_time * most)), mr_(on.register_memory(local_.registered())),
	      link_(on, owner, endless)
	{
		drop(0, to.length);
	}

	/* Posts some transfers at a time. Each must complete once, in the order of posting. */
	void step()
	{
		std::vector<expected> all;

		if (below(4) == 0)
			drop();
		reads_.clear();
		while (all.size() < at_a_time)
			all.push_back(start(local_.registered().addr + all.size() * most));
		for (const expected &one : all) {
			const ibv_wc_status status = link_.wait().status;

			if (status != IBV_WC_SUCCESS)
				throw std::runtime_error(ibv_wc_status_str(status));
			for (std::size_t i = 0; i < one.bytes.size(); i++)
				wrong_ += one.at[i] != one.bytes[i];
			bytes_ += one.bytes.size();
		}
	}

	uint64_t bytes() const { return bytes_; }
	uint64_t wrong() const { return wrong_; }

	void look_at_all()
	{
		for (std::size_t at = 0; at < to_.length; at += most) {
			const range r{local_.registered().addr, std::min(most, to_.length - at)};

			link_.post(IBV_WR_RDMA_READ, mr_.get(), r, to_, at);
			if (link_.wait().status != IBV_WC_SUCCESS)
				throw std::runtime_error("the last look failed");
			for (std::size_t i = 0; i < r.length; i++)
				wrong_ += r.addr[i] != model_[at + i];
		}
	}

private:
	static constexpr std::size_t at_a_time = 8;
	static constexpr std::size_t most = 24 << 10;

	/* The bytes that local memory must have when a transfer has completed. */
	struct expected {
		const std::byte *at;
		std::vector<std::byte> bytes;
	};

	std::size_t below(std::size_t limit)
	{
		return std::uniform_int_distribution<std::size_t>(0, limit - 1)(roll_);
	}

	/* Drops pages while no transfer is in progress. */
	void drop()
	{
		const std::size_t pages = to_.length / page_size();
		const std::size_t first = below(pages);
		const std::size_t count = 1 + below(std::min<std::size_t>(pages - first, 9));

		drop(first * page_size(), count * page_size());
	}

	void drop(std::size_t at, std::size_t bytes)
	{
		owner_.ask("drop", at, bytes);
		std::memset(model_.data() + at, 0, bytes);
	}

	/*
	 * If the response to a read is lost, the read is executed again. Then it finds the bytes of
	 * later transfers, unless they have IBV_SEND_FENCE.
	 */
	unsigned int fence(std::size_t at, std::size_t size) const
	{
		const bool overlaps =
			std::any_of(reads_.begin(), reads_.end(), [&](const auto &of) {
				return at < of.first + of.second && of.first < at + size;
			});

		return overlaps ? IBV_SEND_FENCE : 0;
	}

	expected start(std::byte *local)
	{
		const std::size_t size = 1 + below(below(4) ? most : 64);
		const std::size_t at = below(to_.length - size + 1);
		const auto kind = below(8);

		if (kind == 0)
			return add(local);
		if (kind < 4)
			std::generate_n(local, size, [&] { return std::byte(roll_()); });
		const auto model = model_.begin() + static_cast<std::ptrdiff_t>(at);
		if (kind < 4)
			std::copy_n(local, size, model);
		else
			reads_.emplace_back(at, size);
		link_.post(kind < 4 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, mr_.get(),
			   {local, size}, to_, at, kind < 4 ? fence(at, size) : 0);
		return {local, {model, model + static_cast<std::ptrdiff_t>(size)}};
	}

	expected add(std::byte *local)
	{
		const std::size_t at = 8 * below(to_.length / 8);
		const auto model = model_.begin() + static_cast<std::ptrdiff_t>(at);
		const uint64_t added = roll_();
		expected one{local, {model, model + 8}};
		uint64_t value = 0;

		std::memcpy(&value, &*model, 8);
		value += added;
		std::memcpy(&*model, &value, 8);
		link_.post(IBV_WR_ATOMIC_FETCH_AND_ADD, mr_.get(), {local, 8}, to_, at,
			   fence(at, 8), added);
		return one;
	}

	std::mt19937_64 roll_;
	remote &owner_;
	const target to_;
	std::vector<std::byte> model_;
	memory local_;
	owned<ibv_mr> mr_;
	connection link_;
	std::vector<std::pair<std::size_t, std::size_t>> reads_; /* in progress: offset, size */
	uint64_t bytes_ = 0;
	uint64_t wrong_ = 0;
};

/* Writes a word on the other node, adds to it once, and checks the results. */
class counter {
public:
	counter(const device &on, remote &owner, const target &to)
	    : to_(to), local_(anonymous(page_size())), mr_(on.register_memory(local_.registered())),
	      link_(on, owner, endless)
	{
	}

	bool is_right(uint64_t begin, uint64_t added)
	{
		const std::array<uint64_t, 3> expected{begin, begin, begin + added};
		const range r = local_.registered();

		std::memcpy(r.addr, &begin, 8);
		link_.post(IBV_WR_RDMA_WRITE, mr_.get(), part(0), to_, 0);
		link_.post(IBV_WR_ATOMIC_FETCH_AND_ADD, mr_.get(), part(1), to_, 0, 0, added);
		link_.post(IBV_WR_RDMA_READ, mr_.get(), part(2), to_, 0);
		for (std::size_t i = 0; i < expected.size(); i++)
			if (link_.wait().status != IBV_WC_SUCCESS)
				throw std::runtime_error("a request failed");
		return std::memcmp(r.addr, expected.data(), sizeof(expected)) == 0;
	}

private:
	range part(std::size_t i) const { return {local_.registered().addr + 8 * i, 8}; }

	const target to_;
	memory local_;
	owned<ibv_mr> mr_;
	connection link_;
};

uint64_t from_environment(const char *name, uint64_t otherwise)
{
	const char *const text = std::getenv(name);

	return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

} // namespace

TEST_CASE("a duplicate request is not executed again", "[roce][two nodes]")
{
	const device on;
	set_wire(repeating);
	lost_memory at;
	counter counts(on, at.owner(), at.to);
	uint64_t wrong = 0;

	for (uint64_t i = 0; i < 100; i++)
		wrong += !counts.is_right(i << 32, i);
	std::printf("comes again: %" PRIu64 " of 100 wrong\n", wrong);
	std::fflush(stdout);
	CHECK(wrong == 0);
}

TEST_CASE("each byte on demand is where it belongs, and is changed once", "[roce][two nodes]")
{
	const char *const kind = GENERATE("anonymous", "file");
	const uint64_t bytes = from_environment("RUN_BYTES", 10'000'000) / 2;
	const uint64_t seed = from_environment("RUN_SEED", std::random_device()());
	const device on;
	set_wire(lossy);
	remote &owner = *there().owner;
	target to;

	to.length = std::size_t{1} << 20;
	owner.ask("map", kind, to.length, "all") >> to.addr >> to.rkey;
	owner.ask("disturb");
	oracle knows(on, owner, to, seed);
	const auto begin = std::chrono::steady_clock::now();
	while (knows.bytes() < bytes && !knows.wrong())
		knows.step();
	knows.look_at_all();
	std::printf(
		"%s, seed %" PRIu64 ": %" PRIu64 " bytes, %" PRIu64 " wrong, %.0f s\n", kind, seed,
		knows.bytes(), knows.wrong(),
		std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
	std::fflush(stdout);
	CHECK(knows.wrong() == 0);
}
