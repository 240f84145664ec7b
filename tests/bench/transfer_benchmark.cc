// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * RDMA writes over a reliable connection from buffers that take turns (rotation.h):
 *  registered   all are registered once, before: the limit
 *  none         ibv_reg_mr + ibv_dereg_mr around each message
 *  cached       the same with IBV_ACCESS_CACHED
 */
#include <sched.h>

#include <deque>

#include "loopback.h"
#include "rotation.h"

using namespace mr_notify;

namespace {

class sender {
public:
	enum class registering { before, each_time, cached };

	sender(const device &on, registering how)
	    : on_(on), how_(how), link_(on), to_(rotation::memory(rotation::largest)),
	      to_mr_(on.register_memory({to_, rotation::largest}))
	{
		if (how == registering::before)
			area_mr_ = on.register_memory({rotation::the_area(), rotation::area});
	}

	void start(std::byte *addr, std::size_t length)
	{
		ibv_mr *mr = area_mr_ ? area_mr_.get() : reg(addr, length);

		link_.start(IBV_WR_RDMA_WRITE, mr, {addr, length}, to_, to_mr_->rkey);
		posted_.push_back(mr);
	}

	void finish()
	{
		ibv_wc wc{};
		int polled = 0;

		while (!(polled = ibv_poll_cq(link_.near_end()->send_cq, 1, &wc)))
			sched_yield(); /* a software device needs a CPU too */
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
		benchmark::Initialize(&argc, argv);
		benchmark::RunSpecifiedBenchmarks();
		return 0;
	} catch (const std::exception &e) {
		std::fprintf(stderr, "%s\n", e.what());
		return 1;
	}
}
