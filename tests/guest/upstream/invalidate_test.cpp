// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Work requests and messages that invalidate the key of a bound or unbound memory window, or of a
 * registration of a kernel client. Also the end of the MR or the queue pair to which a window is
 * bound.
 */
#include "catch.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "loopback.h"
#include "post.h"
#include "probe.h"
#include "raw_uverbs.h"
#include "skip.h"

using namespace mr_notify;

namespace {

/* A reliable queue pair whose send queue can invalidate. */
class end {
public:
	explicit end(const device &on) : cq_(ibv_create_cq(on.context(), 16, nullptr, nullptr, 0))
	{
		ibv_qp_init_attr_ex init{};

		REQUIRE(cq_);
		init.send_cq = cq_.get();
		init.recv_cq = cq_.get();
		init.qp_type = IBV_QPT_RC;
		init.cap = {4, 4, 1, 1, 0};
		init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		init.pd = on.pd();
		init.send_ops_flags = IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV |
				      IBV_QP_EX_WITH_BIND_MW;
		qp_.reset(ibv_create_qp_ex(on.context(), &init));
		REQUIRE(qp_);
	}

	void connect(const end &other) const
	{
		connect_reliable(qp_.get(), address_of(qp_.get()), address_of(other.qp_.get()));
	}

	int destroy() { return ibv_destroy_qp(qp_.release()); }

	template <class Post> ibv_wc_status send(Post post) const
	{
		ibv_qp_ex *const qp = ibv_qp_to_qp_ex(qp_.get());

		ibv_wr_start(qp);
		qp->wr_flags = IBV_SEND_SIGNALED;
		post(qp);
		REQUIRE(ibv_wr_complete(qp) == 0);
		return completion();
	}

	void receive() const { post_receive(qp_.get(), {}); }

	ibv_wc_status completion() const
	{
		ibv_wc wc{};
		int polled = 0;

		while ((polled = ibv_poll_cq(cq_.get(), 1, &wc)) == 0)
			usleep(100);
		REQUIRE(polled == 1);
		return wc.status;
	}

private:
	owned<ibv_cq> cq_;
	owned<ibv_qp> qp_;
};

/* An owner, a peer, and a window of the owner. */
struct scene {
	device on;
	end owner{on};
	end peer{on};
	memory m = anonymous(4096);
	owned<ibv_mr> mr = on.register_memory(m.registered(), IBV_ACCESS_MW_BIND);
	owned<ibv_mw> window{ibv_alloc_mw(on.pd(), IBV_MW_TYPE_2)};

	scene()
	{
		REQUIRE(window);
		owner.connect(peer);
		peer.connect(owner);
	}

	uint32_t bind() const
	{
		const uint32_t rkey = ibv_inc_rkey(window->rkey);
		const ibv_mw_bind_info info{mr.get(),
					    reinterpret_cast<uintptr_t>(m.registered().addr),
					    m.registered().length, IBV_ACCESS_REMOTE_READ};

		REQUIRE(owner.send([&](ibv_qp_ex *qp) {
			ibv_wr_bind_mw(qp, window.get(), rkey, &info);
		}) == IBV_WC_SUCCESS);
		return rkey;
	}

	ibv_wc_status invalidate(uint32_t rkey) const
	{
		return owner.send([&](ibv_qp_ex *qp) { ibv_wr_local_inv(qp, rkey); });
	}

	/* One end sends a message that invalidates; the other end gets the outcome. */
	static ibv_wc_status invalidate_by_message(const end &from, const end &to, uint32_t rkey)
	{
		to.receive();
		from.send([&](ibv_qp_ex *qp) { ibv_wr_send_inv(qp, rkey); });
		return to.completion();
	}
};

/*
 * A kernel client with fast registrations: an NVMe controller on this machine, without a disk, on
 * soft-RoCE.
 */
class kernel_client {
public:
	kernel_client() : connected_(std::system(connect) == 0) {}
	~kernel_client()
	{
		if (std::system(end))
			std::fprintf(stderr, "some of the controller is left\n");
	}
	kernel_client(const kernel_client &) = delete;
	kernel_client &operator=(const kernel_client &) = delete;

	std::vector<uint32_t> keys() const
	{
		std::vector<uint32_t> found;
		std::array<char, 1000> line{};
		std::FILE *const tool = connected_ ? popen(show, "r") : nullptr;

		while (tool && std::fgets(line.data(), line.size(), tool))
			if (const char *const key = std::strstr(line.data(), "rkey "))
				found.push_back(
					static_cast<uint32_t>(std::strtoul(key + 5, nullptr, 0)));
		if (tool)
			pclose(tool);
		return found;
	}

private:
	static constexpr const char *connect =
		"exec 2>/dev/null; modprobe -a nvmet-rdma nvme-rdma && "
		"cd /sys/kernel/config || exit; [ -d nvmet ] || mount -t configfs none .; "
		"cd /sys/kernel/config/nvmet && mkdir subsystems/none ports/1 && "
		"echo 1 >subsystems/none/attr_allow_any_host && "
		"echo ipv4 >ports/1/addr_adrfam && echo rdma >ports/1/addr_trtype && "
		"echo 10.0.0.1 >ports/1/addr_traddr && echo 4420 >ports/1/addr_trsvcid && "
		"ln -s $PWD/subsystems/none ports/1/subsystems/none && "
		"echo transport=rdma,traddr=10.0.0.1,trsvcid=4420,nqn=none,nr_io_queues=1 "
		">/dev/nvme-fabrics";
	static constexpr const char *end =
		"exec 2>/dev/null; cd /sys/kernel/config/nvmet || exit 0; "
		"for one in /sys/class/nvme/*; do echo 1 >$one/delete_controller; done; "
		"rm ports/1/subsystems/none; rmdir ports/1 subsystems/none; "
		"modprobe -r nvme-rdma nvmet-rdma; modprobe -r nvmet nvme-fabrics; true";
	static constexpr const char *show = "rdma -d resource show mr dev rxe0 | grep 'comm \\['";

	bool connected_;
};

} // namespace

TEST_CASE("the owner invalidates a memory window once", "[mw]")
{
	scene s;
	const uint32_t rkey = s.bind();

	CHECK(s.invalidate(rkey) == IBV_WC_SUCCESS);
	CHECK(s.invalidate(rkey) != IBV_WC_SUCCESS);
}

TEST_CASE("the owner can't invalidate a memory window that is not bound", "[mw]")
{
	scene s;

	CHECK(s.invalidate(s.window->rkey) != IBV_WC_SUCCESS);
}

TEST_CASE("a peer invalidates a memory window once", "[mw]")
{
	scene s;
	const uint32_t rkey = s.bind();

	CHECK(scene::invalidate_by_message(s.peer, s.owner, rkey) == IBV_WC_SUCCESS);
	CHECK(scene::invalidate_by_message(s.peer, s.owner, rkey) == IBV_WC_REM_INV_REQ_ERR);
}

TEST_CASE("only its own queue pair invalidates a memory window", "[mw]")
{
	scene s;
	const uint32_t rkey = s.bind();

	CHECK(scene::invalidate_by_message(s.owner, s.peer, rkey) == IBV_WC_REM_INV_REQ_ERR);
}

TEST_CASE("a user can't end a registration that the kernel made for itself", "[mw]")
{
	const kernel_client client;
	const std::vector<uint32_t> keys = client.keys();
	SKIP_IF(keys.empty(), "this kernel has no client with one");

	for (std::size_t i = 0; i < std::min(keys.size(), std::size_t{5}); i++) {
		scene s;
		CHECK(s.invalidate(keys[i]) == IBV_WC_LOC_QP_OP_ERR);
	}
}

/* The kernel waits for a queue pair's references, and complains after a minute. */
TEST_CASE("a queue pair may be destroyed before a window that is bound to it", "[mw]")
{
	scene s;

	s.bind();
	CHECK(s.owner.destroy() == 0);
	CHECK(ibv_dereg_mr(s.mr.release()) == 0);
	CHECK(ibv_dealloc_mw(s.window.release()) == 0);
}

/* A device may have many windows, also of other processes. */
TEST_CASE("destroying a queue pair visits only its own windows", "[kprobes][mw]")
{
	constexpr uint64_t many = 300;
	scene s;
	std::vector<owned<ibv_mw>> others(many);
	probe lookups("rxe_pool_get_index");

	for (auto &other : others)
		other.reset(ibv_alloc_mw(s.on.pd(), IBV_MW_TYPE_2));
	s.bind();
	lookups.count();
	CHECK(s.owner.destroy() == 0);
	CHECK(lookups.hits() < many);
	CHECK(ibv_dereg_mr(s.mr.release()) == 0); /* the MR's window is unbound */
}

TEST_CASE("an MR with a window keeps its rights", "[mw]")
{
	scene s;
	const uint32_t rkey = s.bind();

	const raw_uverbs raw(s.on.context());

	CHECK(raw.change_access(s.mr->handle, IBV_ACCESS_LOCAL_WRITE) != 0);
	CHECK(s.invalidate(rkey) == IBV_WC_SUCCESS);
	CHECK(raw.change_access(s.mr->handle, IBV_ACCESS_LOCAL_WRITE) == 0);
}

/*
 * Without the fix the window keeps a pointer to a freed MR, or deregistering waits a minute for the
 * window.
 */
TEST_CASE("an MR is bound to a window or deregistered, whichever comes first", "[mw]")
{
	using namespace std::chrono_literals;
	using clock = std::chrono::steady_clock;
	const device on;
	const raw_uverbs raw(on.context()); /* posting reads the struct ibv_mr */
	const memory m = anonymous(4096);
	owned<ibv_mw> window(ibv_alloc_mw(on.pd(), IBV_MW_TYPE_1));
	std::optional<loopback> link;
	std::chrono::nanoseconds delay(0); /* makes both run at the same time */
	int both = 0;

	for (int i = 0; i < 600 && both == 0; i++) {
		const auto access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
		owned<ibv_mr> mr = on.register_memory(m.registered(), access);
		std::atomic<bool> go = false;
		bool gone = false;
		ibv_mw_bind all{};

		if (!link)
			link.emplace(on);
		all.send_flags = IBV_SEND_SIGNALED;
		all.bind_info = {mr.get(), reinterpret_cast<uintptr_t>(m.registered().addr),
				 m.registered().length, IBV_ACCESS_REMOTE_READ};
		std::thread ending([&] {
			while (!go)
				;
			const auto until = clock::now() + delay;
			while (clock::now() < until)
				;
			gone = raw.deregister(mr->handle) == 0;
		});
		go = true;
		const int posted = ibv_bind_mw(link->near_end(), window.get(), &all);
		ending.join();
		REQUIRE(posted == 0);
		const bool bound = link->wait().status == IBV_WC_SUCCESS;

		both += gone == bound;
		delay += gone ? delay / 8 + 700ns : -(delay / 8);
		if (gone)
			mr.release(); // NOLINT(bugprone-unused-return-value)
		if (!bound) {
			link.reset();
			window.reset(ibv_alloc_mw(on.pd(), IBV_MW_TYPE_1)); /* its handle is lost */
			REQUIRE(window);
		} else {
			all.bind_info.length = 0;
			REQUIRE(ibv_bind_mw(link->near_end(), window.get(), &all) == 0);
			REQUIRE(link->wait().status == IBV_WC_SUCCESS);
		}
	}
	CHECK(both == 0);
}
