// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Measures RDMA writes over a reliable connection from several buffers in turn (rotation.h):
 *  registered   all buffers are registered once, before the messages: the limit
 *  none         ibv_reg_mr + ibv_dereg_mr around each message
 *  cached       ibv_reg_mr with IBV_ACCESS_CACHED + ibv_dereg_mr around each message
 *  all          one MR of all memory at both ends, if the device has it
 *  dropped      like all, but the pages of both ends are dropped before each message
 * In the row "turns" the ways registered, cached and all take turns, a round each, so that the
 * ratios do not depend on the load. The way dropped does not take part, because it would make
 * cached registrations stale.
 */
#include <sched.h>
#include <sys/mman.h>

#include <deque>
#include <optional>

#include "loopback.h"
#include "rotation.h"

using namespace mr_notify;

namespace {

class sender {
public:
	enum class registering { before, each_time, cached, all, dropped };

	sender(const device &on, registering how)
	    : on_(on), how_(how), link_(on), to_(rotation::memory(rotation::largest)),
	      to_mr_(on.register_memory({to_, rotation::largest})), to_key_(to_mr_->rkey)
	{
		if (how == registering::before)
			area_mr_ = on.register_memory({rotation::the_area(), rotation::area});
		if (how != registering::all && how != registering::dropped)
			return;
		area_mr_.reset(ibv_register_mr_all(on.pd(), IBV_ACCESS_LOCAL_WRITE |
								    IBV_ACCESS_REMOTE_WRITE));
		if (!area_mr_)
			fail("ibv_register_mr_all");
		to_key_ = area_mr_->rkey;
	}

	void start(std::byte *addr, std::size_t length)
	{
		ibv_mr *mr = area_mr_ ? area_mr_.get() : reg(addr, length);

		if (how_ == registering::dropped &&
		    (madvise(addr, length, MADV_DONTNEED) || madvise(to_, length, MADV_DONTNEED)))
			fail("madvise");
		link_.start(IBV_WR_RDMA_WRITE, mr, {addr, length}, to_, to_key_);
		posted_.push_back(mr);
	}

	void finish()
	{
		ibv_wc wc{};
		int polled = 0;

		while (!(polled = ibv_poll_cq(link_.near_end()->send_cq, 1, &wc)))
			sched_yield(); /* a software device needs the CPU too */
		if (polled < 0 || wc.status != IBV_WC_SUCCESS)
			throw std::runtime_error(ibv_wc_status_str(wc.status));
		if (!area_mr_)
			check_verb(ibv_dereg_mr(posted_.front()), "ibv_dereg_mr");
		posted_.pop_front();
	}

private:
	ibv_mr *reg(std::byte *addr, std::size_t length) const
	{
		return on_
			.register_memory(
				{addr, length},
				IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
					(how_ == registering::cached ? IBV_ACCESS_CACHED : 0))
			.release();
	}

	const device &on_;
	registering how_;
	loopback link_;
	std::byte *to_;
	owned<ibv_mr> to_mr_;
	uint32_t to_key_;
	owned<ibv_mr> area_mr_;
	std::deque<ibv_mr *> posted_;
};

} // namespace

int main(int argc, char **argv)
{
	try {
		const device on;
		sender registered(on, sender::registering::before);
		sender none(on, sender::registering::each_time);
		sender cached(on, sender::registering::cached);

		rotation::add("registered", registered);
		rotation::add("none", none);
		rotation::add("cached", cached);

		std::vector<std::pair<std::string, sender *>> ways{{"registered", &registered},
								   {"cached", &cached}};
		std::optional<sender> all, dropped;
		ibv_device_attr_ex attr{};
		if (ibv_query_device_ex(on.context(), nullptr, &attr) == 0 &&
		    attr.device_cap_flags_ex & IBV_DEVICE_MR_ALL) {
			all.emplace(on, sender::registering::all);
			dropped.emplace(on, sender::registering::dropped);
			rotation::add("all", *all);
			rotation::add("dropped", *dropped);
			ways.emplace_back("all", &*all);
		}
		rotation::take_turns(ways);
		benchmark::Initialize(&argc, argv);
		benchmark::RunSpecifiedBenchmarks();
		return 0;
	} catch (const std::exception &e) {
		std::fprintf(stderr, "%s\n", e.what());
		return 1;
	}
}
