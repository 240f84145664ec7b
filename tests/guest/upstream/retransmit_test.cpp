// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Messages are sent again for one of two reasons. The requester and its peer may get no CPU for
 * longer than the timeout. Then the acknowledgment comes during the second sending. The other
 * reason is a message that came too early.
 */
#include "catch.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "loopback.h"
#include "port_counter.h"
#include "post.h"
#include "run_time.h"
#include "skip.h"

using namespace mr_notify;

namespace {

/* More packets than may be in flight at a time, so the second sending stops halfway */
constexpr std::size_t length = 128 << 10;
constexpr auto mtu = IBV_MTU_1024;
constexpr loopback::patience least{1, 7};

/* Repeatedly blocks all CPUs for the rest of the kernel and for user space. */
class thief {
public:
	thief()
	{
		for (unsigned int cpu = 0; cpu < std::thread::hardware_concurrency(); cpu++)
			threads_.emplace_back([this, cpu] { steal(cpu); });
	}

	~thief() { over_ = true; }

private:
	void steal(unsigned int cpu)
	{
		using namespace std::chrono_literals;
		const sched_param first{1};
		cpu_set_t only;

		CPU_ZERO(&only);
		CPU_SET(cpu, &only);
		if (sched_setaffinity(0, sizeof(only), &only) ||
		    sched_setscheduler(0, SCHED_FIFO, &first))
			return;
		while (!over_) {
			const auto end = std::chrono::steady_clock::now() + 30ms;

			while (std::chrono::steady_clock::now() < end)
				;
			std::this_thread::sleep_for(1ms);
		}
	}

	std::atomic<bool> over_{false};
	std::vector<std::jthread> threads_; /* joined before the flag is destroyed */
};

std::optional<uint64_t> sent_again(const device &on)
{
	return port_counter(on, "completer_retry_err");
}

} // namespace

TEST_CASE("a full send queue continues when messages are sent again")
{
	const device on;
	SKIP_IF(!sent_again(on), "TCP sends again, not the device");
	loopback ends(on, nullptr, mtu, least);
	const memory from = anonymous(length);
	const memory to = anonymous(length);
	const auto local = on.register_memory(from.registered());
	const auto remote = on.register_memory(to.registered());
	const auto start = [&] {
		ends.start(IBV_WR_RDMA_WRITE, local.get(), from.registered(), to.registered().addr,
			   remote->rkey);
	};
	ibv_qp_attr attr{};
	ibv_qp_init_attr init{};
	REQUIRE(ibv_query_qp(ends.near_end(), &attr, IBV_QP_CAP, &init) == 0);
	const auto before = sent_again(on);
	const thief thief;
	const run_time time;
	int waits = 0;

	for (; waits < static_cast<int>(init.cap.max_send_wr); waits++)
		start();
	/* wait() throws if no completion comes within minutes. */
	while (time.goes_on(sent_again(on) > before)) {
		REQUIRE(ends.wait().status == IBV_WC_SUCCESS);
		start();
	}
	for (; waits; waits--)
		REQUIRE(ends.wait().status == IBV_WC_SUCCESS);
	CHECK(sent_again(on) > before);
}

TEST_CASE("a message that comes too early consumes no retry, nor do later messages", "[roce]")
{
	using namespace std::chrono_literals;
	const device on;
	constexpr loopback::patience once{18, 0};
	loopback ends(on, nullptr, mtu, once);
	const memory m = anonymous(length);
	const auto mr = on.register_memory(m.registered());
	const piece all{m.registered(), mr->lkey};

	for (int i = 0; i < 2; i++)
		post(ends.near_end(), {IBV_WR_SEND, {all}});
	std::this_thread::sleep_for(200ms);
	CHECK_FALSE(ends.poll());
	for (int i = 0; i < 2; i++)
		post_receive(ends.far_end(), {all});
	for (int i = 0; i < 4; i++)
		CHECK(ends.wait().status == IBV_WC_SUCCESS);
}
