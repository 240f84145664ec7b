// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "traffic.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "owner.h"
#include "post.h"
#include "system.h"

namespace nodes {

using namespace mr_notify;
using std::chrono::steady_clock;

namespace {

constexpr std::size_t piece = 16 << 10;
constexpr unsigned int at_a_time = 8;
constexpr uint32_t nearly_last = 0xffffc0;

} // namespace

connection::connection(const device &on, remote &owner, const patience &waits)
    : cq_(ibv_create_cq(on.context(), 64, nullptr, nullptr, 0)), qp_(make_reliable(on, cq_.get()))
{
	if (on.is_iwarp()) {
		sockaddr_in to{};

		to.sin_family = AF_INET;
		owner.ask("listen") >> to.sin_addr.s_addr >> to.sin_port;
		caller_.emplace(qp_.get(), to);
		owner.ask("take");
		caller_->finish();
		return;
	}
	address own = address_of(qp_.get());
	address other;

	own.psn = nearly_last;
	owner.ask("connect", own) >> other;
	connect_reliable(qp_.get(), own, other, waits);
}

void connection::post(ibv_wr_opcode opcode, const ibv_mr *mr, range local, const target &to,
		      std::size_t offset, unsigned int flags, uint64_t added)
{
	::post(qp_.get(),
	       {opcode, {{local, mr->lkey}}, to.addr + offset, to.rkey, added, 0, flags});
}

ibv_wc connection::wait()
{
	ibv_wc wc{};
	int polled = 0;

	if (!happens([&] { return (polled = ibv_poll_cq(cq_.get(), 1, &wc)) != 0; }))
		throw std::runtime_error("no completion: the queue pair hangs");
	if (polled < 0)
		throw std::runtime_error("ibv_poll_cq failed");
	return wc;
}

traffic::traffic(const device &on, remote &owner, const target &to, const patience &waits,
		 bool only_writes)
    : iwarp_(on.is_iwarp()), only_writes_(only_writes), to_(to),
      memory_(anonymous(at_a_time * piece)), mr_(on.register_memory(memory_.registered())),
      link_(on, owner, waits), thread_([this] {
	      try {
		      work();
	      } catch (...) {
		      problem_ = std::current_exception();
		      stop_ = true;
	      }
	      over_ = true;
      })
{
}

/* Writes from one half of the local memory, reads into the other half, and repeats this. */
void traffic::work()
{
	const range local = memory_.registered();
	unsigned int posted = 0;
	unsigned int open = 0;
	auto last = steady_clock::now();

	std::fill(local.addr, local.addr + local.length / 2, byte);
	while (!stop_ || open) {
		for (; open < at_a_time && !stop_; open++, posted++) {
			const bool reads = posted % 2 && !only_writes_;
			const range r{local.addr + (reads ? local.length / 2 : 0), piece};

			try {
				link_.post(reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, mr_.get(),
					   r, to_, posted / 2 * piece % to_.length);
			} catch (const std::system_error &) {
				if (!iwarp_ || !open)
					throw;
				stop_ = true; /* the thread posts no more requests */
				break;
			}
		}
		const ibv_wc_status status = link_.wait().status;
		open--;
		if (status == IBV_WC_SUCCESS && !end_) {
			done_++;
			last = steady_clock::now();
		} else if (!end_) {
			end_ = {status, 0, 0,
				std::chrono::duration_cast<std::chrono::milliseconds>(
					steady_clock::now() - last)};
			stop_ = true;
		} else {
			(status == IBV_WC_WR_FLUSH_ERR ? end_->flushed : end_->others)++;
		}
	}
}

void traffic::go_on(unsigned int more) const
{
	const unsigned int until = done_ + more;

	if (!happens([&] { return done_ >= until || stop_; }) || stop_)
		throw std::runtime_error("the transfers do not go on");
}

traffic::end traffic::wait_for_end()
{
	const unsigned int most = done_ + at_a_time;

	/* Over iWARP a write succeeds as soon as TCP has it. */
	if (!happens([&] { return over_ || (done_ > most && !iwarp_); }) || !over_)
		throw std::runtime_error("the transfers go on");
	thread_.join();
	if (problem_)
		std::rethrow_exception(problem_);
	return *end_;
}

} // namespace nodes
