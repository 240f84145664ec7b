// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A peer can do with the key of a cached registration what it can do with the key of a plain
 * registration. Each row of the table has a registration with some rights, an operation of the peer
 * (or a message that is received by the key), and an address. With the cache the operation must end
 * as it does with the plain library, which is the oracle. allowed() lists the only intended
 * differences: operations that succeed although they fail with the plain registration.
 *
 * A process reads RDMAV_MR_CACHE only once, so a child for each value reports its whole table.
 */
#include "catch.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "child.h"
#include "device.h"
#include "loopback.h"
#include "post.h"

extern "C" int ibv_forget_mr(struct ibv_mr *) __attribute__((weak));

using namespace mr_notify;

namespace {

constexpr int local_write = IBV_ACCESS_LOCAL_WRITE, remote_write = IBV_ACCESS_REMOTE_WRITE,
	      remote_read = IBV_ACCESS_REMOTE_READ, remote_atomic = IBV_ACCESS_REMOTE_ATOMIC;
constexpr int all_rights = local_write | remote_write | remote_read | remote_atomic;
constexpr int remote_rights = remote_write | remote_read | remote_atomic;

enum class operation { read, write, atomic, receive };
constexpr std::array operations{operation::read, operation::write, operation::atomic,
				operation::receive};

enum class place {
	inside,
	before,	    /* begins one byte before the range */
	after,	    /* ends one byte after the range */
	same_page,  /* after the range, in the same page */
	heap,	    /* the next block of the heap */
	far_idle,   /* 500 KiB after the range, where a larger registration with all rights was */
	far_in_use, /* 500 KiB after the range, where such a registration is in use */
	idle,	    /* inside, after ibv_dereg_mr() */
	idle_user,  /* inside, after ibv_dereg_mr(), while another user has the same registration */
	posted,	    /* inside, by a receive that was posted before ibv_dereg_mr() */
	forgotten,  /* inside, after ibv_forget_mr() */
	fewer,	    /* inside, after it was registered with all rights and deregistered */
};
constexpr std::array places{place::inside,    place::before,   place::after,	  place::same_page,
			    place::heap,      place::far_idle, place::far_in_use, place::idle,
			    place::idle_user, place::posted,   place::forgotten,  place::fewer};

/* Some libraries lack ibv_forget_mr(). */
bool can_forget()
{
	return ibv_forget_mr;
}

const char *name(operation what)
{
	constexpr std::array names{"read", "write", "atomic", "receive"};

	return names[static_cast<std::size_t>(what)];
}

const char *name(place where)
{
	constexpr std::array names{"inside",	 "before",    "after",	     "same page",
				   "heap",	 "far, idle", "far, in use", "idle",
				   "idle, user", "posted",    "forgotten",   "fewer"};

	return names[static_cast<std::size_t>(where)];
}

std::string rights_name(int rights)
{
	std::string said;

	for (const auto &[bit, letter] : {std::pair{local_write, 'l'},
					  {remote_write, 'w'},
					  {remote_read, 'r'},
					  {remote_atomic, 'a'}})
		said += rights & bit ? letter : '-';
	return said;
}

struct row {
	int rights;
	operation what;
	place where;

	std::string name() const
	{
		return rights_name(rights) + ' ' + ::name(what) + ' ' + ::name(where);
	}
};

std::vector<row> all_rows()
{
	std::vector<row> rows;

	for (int rights = 0; rights <= all_rights; rights++)
		for (const operation what : operations)
			for (const place where : places)
				if (where != place::posted || what == operation::receive)
					rows.push_back({rights, what, where});
	return rows;
}

/* The ways to register. */
enum class way { plain, flag, environment, remote };

/*
 * Returns why the cache may let an operation succeed that otherwise fails. An empty reason means
 * that the operation must fail with the cache, too.
 */
std::string allowed(way by, const row &one)
{
	const bool is_remote = one.rights & remote_rights;

	/* Without remote rights only the program itself can use the key. */
	if (!is_remote && one.what == operation::receive && one.where != place::forgotten)
		return "a local key may reach further, with more rights, and be idle";
	if (by == way::remote && one.where != place::inside && one.where != place::forgotten)
		return "RDMAV_MR_CACHE=remote: peers trust one another";
	if (by == way::flag && (one.where == place::idle || one.where == place::idle_user))
		return "an idle key works until its entry goes";
	if (by == way::flag && one.where == place::posted)
		return "a receive that was posted before lands";
	return {};
}

/* Makes the registrations one by one, and performs the operation with each key. */
class table {
public:
	table(const device &on, int extra)
	    : on_(on), extra_(extra), pool_(anonymous(pool_length)), mine_(anonymous(page_size())),
	      source_(plainly(mine_.registered(), local_write))
	{
		std::memset(pool_.registered().addr, 0, pool_length);
		for (auto &block : blocks_)
			block.reset(static_cast<std::byte *>(std::calloc(1, block_length)));
		find_neighbours();
	}

	std::string outcome(const row &one)
	{
		/* Cleans the cache, so that rows do not influence each other. */
		ibv_reg_mr_clean(on_.context(), 0);
		errno = 0;
		owned<ibv_mr> larger, other;
		if (one.where == place::far_idle || one.where == place::far_in_use)
			larger = cached(pool_.registered(), all_rights);
		if (one.where == place::fewer)
			cached(range_of(one), all_rights).reset();
		if (one.where == place::far_idle)
			larger.reset();
		if (one.where == place::idle_user)
			other = cached(range_of(one), one.rights);

		owned<ibv_mr> mr = cached(range_of(one), one.rights);
		if (!mr)
			return std::string("ibv_reg_mr: ") + std::strerror(errno);
		const uint32_t lkey = mr->lkey, rkey = mr->rkey;
		const range to = target(one);
		if (one.where == place::posted)
			post_receive(to, lkey);
		const std::string ended = end(one, mr);
		if (!ended.empty()) {
			link_.reset();
			return ended;
		}
		if (one.where != place::posted && one.what == operation::receive)
			post_receive(to, lkey);
		return transfer(one.what, to, rkey);
	}

private:
	static constexpr std::size_t pool_length = 1 << 20, block_length = 64, length = 64,
				     unit = 8;
	static constexpr int value = 0x5a;

	struct freer {
		void operator()(std::byte *p) const { std::free(p); }
	};

	owned<ibv_mr> plainly(range r, int access) const
	{
		return owned<ibv_mr>(ibv_reg_mr(on_.pd(), r.addr, r.length, access));
	}

	owned<ibv_mr> cached(range r, int access) const { return plainly(r, access | extra_); }

	/* Finds two adjacent blocks in a page. */
	void find_neighbours()
	{
		const auto page = [](const std::byte *p) {
			return reinterpret_cast<uintptr_t>(p) / page_size();
		};

		for (std::size_t i = 1; i < blocks_.size(); i++)
			if (page(blocks_[i - 1].get()) == page(blocks_[i].get() + block_length))
				block_ = i - 1;
	}

	range range_of(const row &one) const
	{
		if (one.where == place::heap)
			return {blocks_[block_].get(), block_length};
		return {pool_.registered().addr + 2 * page_size() + 128, length};
	}

	range target(const row &one) const
	{
		const range r = range_of(one);
		/* The address of an atomic must be aligned. */
		const std::size_t sticks_out = one.what == operation::atomic ? unit : 1;

		switch (one.where) {
		case place::before:
			return {r.addr - sticks_out, unit};
		case place::after:
			return {r.end() - unit + sticks_out, unit};
		case place::same_page:
			return {r.addr + 1024, unit};
		case place::heap:
			return {blocks_[block_ + 1].get(), unit};
		case place::far_idle:
		case place::far_in_use:
			return {r.addr + (500 << 10), unit};
		default:
			return {r.addr + unit, unit};
		}
	}

	/* Ends the registration if the row says so; returns the error. */
	static std::string end(const row &one, owned<ibv_mr> &mr)
	{
		int error = 0;

		if (one.where == place::idle || one.where == place::idle_user ||
		    one.where == place::posted)
			error = ibv_dereg_mr(mr.release());
		else if (one.where == place::forgotten && can_forget())
			error = ibv_forget_mr(mr.release());
		else if (one.where == place::forgotten && std::getenv("RUN_PLAIN"))
			error = ibv_dereg_mr(mr.release());
		else if (one.where == place::forgotten)
			return "there is no ibv_forget_mr()";
		return error ? std::string("end: ") + std::strerror(error) : "";
	}

	loopback &link()
	{
		if (!link_)
			link_.emplace(on_);
		return *link_;
	}

	void post_receive(range to, uint32_t lkey)
	{
		::post_receive(link().far_end(), {{{to.addr, unit}, lkey}});
	}

	static ibv_wr_opcode opcode(operation what)
	{
		constexpr std::array opcodes{IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
					     IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_SEND};

		return opcodes[static_cast<std::size_t>(what)];
	}

	void post(operation what, range to, uint32_t rkey)
	{
		::post(link().near_end(), {opcode(what),
					   {{{mine_.registered().addr, unit}, source_->lkey}},
					   number(to.addr),
					   rkey,
					   1});
	}

	/* The statuses, and whether the bytes were transferred. */
	std::string transfer(operation what, range to, uint32_t rkey)
	{
		const bool reads = what == operation::read;
		const range mine{mine_.registered().addr, unit};
		const range from = reads ? to : mine, into = reads ? mine : to;
		std::array<std::string, 2> said;
		bool broken = false;

		std::memset(from.addr, value, unit);
		std::memset(into.addr, 0, unit);
		post(what, to, rkey);
		for (int left = what == operation::receive ? 2 : 1; left; left--) {
			const ibv_wc wc = link_->wait();

			broken = broken || wc.status != IBV_WC_SUCCESS;
			said[wc.qp_num == link_->far_end()->qp_num] = ibv_wc_status_str(wc.status);
		}
		if (broken)
			link_.reset();
		const bool moved = std::any_of(into.addr, into.end(),
					       [](std::byte b) { return b != std::byte{0}; });
		return said[0] + (said[1].empty() ? "" : ", " + said[1]) +
		       (moved ? ", moved" : ", nothing moved");
	}

	const device &on_;
	int extra_;
	memory pool_;
	memory mine_;
	std::array<std::unique_ptr<std::byte, freer>, 16> blocks_;
	std::size_t block_ = 0;
	owned<ibv_mr> source_;
	std::optional<loopback> link_;
};

void tell_table(int extra)
{
	const device on;
	table of(on, extra);

	for (const row &one : all_rows())
		tell(of.outcome(one));
}

/* The outcome of each row. */
const std::vector<std::string> &told(way by)
{
	static std::map<way, std::vector<std::string>> known;
	const std::map<way, std::vector<std::string>> environments{
		{way::plain, {"RDMAV_MR_CACHE=0", "RUN_PLAIN=1"}},
		{way::flag, {"RDMAV_MR_CACHE"}},
		{way::environment, {"RDMAV_MR_CACHE=1"}},
		{way::remote, {"RDMAV_MR_CACHE=remote"}},
	};
	if (known.contains(by))
		return known[by];
	const child_result result =
		run_child(by == way::flag ? "peer: a table by the flag" : "peer: a table",
			  environments.at(by));

	REQUIRE(result.status == 0);
	REQUIRE(result.lines.size() == all_rows().size());
	return known[by] = result.lines;
}

bool succeeded(const std::string &outcome)
{
	return outcome.starts_with("success") && outcome.ends_with(", moved");
}

void compare(way by)
{
	const std::vector<std::string> &plain = told(way::plain), &cached = told(by);
	const std::vector<row> rows = all_rows();
	std::ostringstream differences;
	std::size_t wrong = 0, known = 0;

	for (std::size_t i = 0; i < rows.size(); i++) {
		if (cached[i] == plain[i])
			continue;
		if (!allowed(by, rows[i]).empty() && succeeded(cached[i])) {
			known++;
			continue;
		}
		wrong++;
		differences << rows[i].name() << ": " << cached[i] << "; plain: " << plain[i]
			    << '\n';
	}
	INFO(rows.size() << " rows, " << known << " differ by decision, " << wrong << " must not:\n"
			 << differences.str());
	CHECK(wrong == 0);
}

} // namespace

/* Other cases run these hidden cases as programs. */
TEST_CASE("peer: a table", "[.]")
{
	tell_table(0);
}

TEST_CASE("peer: a table by the flag", "[.]")
{
	tell_table(IBV_ACCESS_CACHED);
}

TEST_CASE("peer: with RDMAV_MR_CACHE=1 a key opens as much as a plain one")
{
	compare(way::environment);
}

TEST_CASE("peer: by the flag a key opens as much as a plain one, until its entry goes")
{
	compare(way::flag);
}

TEST_CASE("peer: with RDMAV_MR_CACHE=remote keys open more, as documented")
{
	compare(way::remote);
}

TEST_CASE("peer: the plain table has successes and failures of each operation")
{
	const std::vector<std::string> &plain = told(way::plain);
	const std::vector<row> rows = all_rows();
	std::map<operation, std::array<int, 2>> counts;

	for (std::size_t i = 0; i < rows.size(); i++)
		counts[rows[i].what][succeeded(plain[i])]++;
	for (const operation what : operations) {
		INFO(name(what));
		CHECK(counts[what][0] > 0);
		CHECK(counts[what][1] > 0);
	}
}

TEST_CASE("peer: ibv_forget_mr() ends a key for good")
{
	REQUIRE(can_forget());
	const device on;
	const memory m = anonymous(page_size());
	const memory mine = anonymous(page_size());
	const range r = m.registered();
	const auto source = on.register_memory(mine.registered(), local_write);

	for (const int extra : {0, IBV_ACCESS_CACHED}) {
		loopback link(on);
		owned<ibv_mr> mr = on.register_memory(r, local_write | remote_write | extra);
		const uint32_t key = mr->rkey;

		CHECK(link.write(source.get(), {mine.registered().addr, 8}, r.addr, key) ==
		      IBV_WC_SUCCESS);
		CHECK(ibv_forget_mr(mr.release()) == 0);
		CHECK_FALSE(ibv_is_reg(on.pd(), r.addr, r.length, local_write | remote_write));
		CHECK(link.refused(
			link.write(source.get(), {mine.registered().addr, 8}, r.addr, key)));
	}
}

TEST_CASE("peer: a key that others use is forgotten with its last user")
{
	REQUIRE(can_forget());
	const device on;
	loopback link(on);
	const memory m = anonymous(page_size());
	const memory mine = anonymous(page_size());
	const range r = m.registered();
	const int access = local_write | remote_write | IBV_ACCESS_CACHED;
	const auto source = on.register_memory(mine.registered(), local_write);
	owned<ibv_mr> one = on.register_memory(r, access);
	owned<ibv_mr> other = on.register_memory(r, access);
	const uint32_t key = one->rkey;
	const auto write = [&] {
		return link.write(source.get(), {mine.registered().addr, 8}, r.addr, key);
	};

	REQUIRE(other->rkey == key);
	CHECK(ibv_forget_mr(one.release()) == EBUSY);
	CHECK_FALSE(ibv_is_reg(on.pd(), r.addr, r.length, access));
	CHECK(write() == IBV_WC_SUCCESS);
	const owned<ibv_mr> third = on.register_memory(r, access);
	CHECK(third->rkey != key);
	CHECK(ibv_dereg_mr(other.release()) == 0);
	CHECK(link.refused(write()));
}
