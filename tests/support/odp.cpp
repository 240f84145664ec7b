// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "odp.h"

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

owned<ibv_mr> register_all(const device &on, int access)
{
	owned<ibv_mr> mr(ibv_register_mr_all(on.pd(), access));

	if (!mr)
		fail("ibv_register_mr_all");
	return mr;
}

} // namespace odp
