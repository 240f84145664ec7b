// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "operations.h"

namespace odp {

using namespace mr_notify;

both send(loopback &link, const std::vector<piece> &from, const std::vector<piece> &into)
{
	both ends{};

	post_receive(link.far_end(), into);
	post(link.near_end(), {IBV_WR_SEND, from});
	for (int i = 0; i < 2; i++) {
		const ibv_wc wc = link.wait();
		(wc.qp_num == link.far_end()->qp_num ? ends.receiver : ends.sender) = wc.status;
	}
	return ends;
}

ibv_wc_status run(loopback &link, const request &what)
{
	post(link.near_end(), what);
	return link.wait().status;
}

bool offers_all(const device &on)
{
	ibv_device_attr_ex attr{};

	check_verb(ibv_query_device_ex(on.context(), nullptr, &attr), "ibv_query_device_ex");
	return attr.device_cap_flags_ex & IBV_DEVICE_MR_ALL;
}

owned<ibv_mr> register_all(const device &on, int access)
{
	owned<ibv_mr> mr(ibv_register_mr_all(on.pd(), access));

	if (!mr)
		fail("ibv_register_mr_all");
	return mr;
}

} // namespace odp
