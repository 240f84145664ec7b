// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Sends the messages of rotation.h with libfabric's verbs provider. Each message takes fi_mr_reg +
 * fi_write + fi_close on a connected endpoint. FI_MR_CACHE_MONITOR chooses libfabric's cache
 * (memhooks, userfaultfd) or no cache (disabled). RDMAV_MR_CACHE=remote uses libibverbs' cache
 * below libfabric.
 */
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <sched.h>

#include <deque>

#include "libfabric.h"
#include "rotation.h"

namespace {

constexpr uint64_t access_flags = FI_WRITE | FI_REMOTE_WRITE;

/*
 * Finds the guest's soft-RoCE device. The flag FI_SOURCE is for listening, and 0 is for connecting.
 */
fi_info *find(uint64_t flags)
{
	return find_verbs("10.0.0.1", "7471", flags);
}

/* This process is its own peer, so this class has both ends of a connection, in one domain. */
class sender {
public:
	sender()
	{
		fi_eq_attr eq_attr{};
		fi_cq_attr cq_attr{};
		fid_fabric *fabric = nullptr;
		fid_pep *listener = nullptr;
		fi_info *info = find(FI_SOURCE);

		check(fi_fabric(info->fabric_attr, &fabric, nullptr), "fi_fabric");
		eq_attr.wait_obj = FI_WAIT_UNSPEC;
		check(fi_eq_open(fabric, &eq_attr, &eq_, nullptr), "fi_eq_open");
		check(fi_passive_ep(fabric, info, &listener, nullptr), "fi_passive_ep");
		check(fi_pep_bind(listener, &eq_->fid, 0), "fi_pep_bind");
		check(fi_listen(listener), "fi_listen");
		check(fi_domain(fabric, info, &domain_, nullptr), "fi_domain");
		cq_attr.format = FI_CQ_FORMAT_CONTEXT;
		cq_attr.size = 64;
		check(fi_cq_open(domain_, &cq_attr, &cq_, nullptr), "fi_cq_open");

		fi_info *there = find(0);
		near_ = endpoint(there);
		check(fi_connect(near_, there->dest_addr, nullptr, 0), "fi_connect");
		fid_ep *far_end = endpoint(wait_for(FI_CONNREQ));
		check(fi_accept(far_end, nullptr, 0), "fi_accept");
		wait_for(FI_CONNECTED);
		wait_for(FI_CONNECTED);

		to_ = rotation::memory(rotation::largest);
		to_mr_ = reg(to_, rotation::largest);
	}

	void start(std::byte *addr, std::size_t length)
	{
		fid_mr *mr = reg(addr, length);

		check(fi_write(near_, addr, length, fi_mr_desc(mr), 0,
			       reinterpret_cast<uint64_t>(to_), fi_mr_key(to_mr_), nullptr),
		      "fi_write");
		posted_.push_back(mr);
	}

	void finish()
	{
		fi_cq_entry entry{};
		ssize_t ret = 0;

		while ((ret = fi_cq_read(cq_, &entry, 1)) == -FI_EAGAIN)
			sched_yield(); /* a software device needs the CPU too */
		check(ret, "fi_cq_read");
		check(fi_close(&posted_.front()->fid), "fi_close");
		posted_.pop_front();
	}

private:
	fid_ep *endpoint(fi_info *info)
	{
		fid_ep *ep = nullptr;

		check(fi_endpoint(domain_, info, &ep, nullptr), "fi_endpoint");
		check(fi_ep_bind(ep, &eq_->fid, 0), "fi_ep_bind");
		check(fi_ep_bind(ep, &cq_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
		check(fi_enable(ep), "fi_enable");
		return ep;
	}

	/*
	 * Waits for the connection manager's next event, which must be `expected`. Returns the
	 * event's info.
	 */
	fi_info *wait_for(uint32_t expected)
	{
		fi_eq_cm_entry entry{};
		uint32_t event = 0;

		check(fi_eq_sread(eq_, &event, &entry, sizeof(entry), 20000, 0), "fi_eq_sread");
		if (event != expected)
			check(-FI_EOTHER, "connecting");
		return entry.info;
	}

	fid_mr *reg(std::byte *addr, std::size_t length)
	{
		fid_mr *mr = nullptr;

		check(fi_mr_reg(domain_, addr, length, access_flags, 0, 0, 0, &mr, nullptr),
		      "fi_mr_reg");
		return mr;
	}

	fid_domain *domain_ = nullptr;
	fid_eq *eq_ = nullptr;
	fid_cq *cq_ = nullptr;
	fid_ep *near_ = nullptr;
	std::byte *to_ = nullptr;
	fid_mr *to_mr_ = nullptr;
	std::deque<fid_mr *> posted_;
};

} // namespace

int main(int argc, char **argv)
{
	sender libfabric;

	rotation::add("libfabric", libfabric);
	benchmark::Initialize(&argc, argv);
	benchmark::RunSpecifiedBenchmarks();
	return 0;
}
