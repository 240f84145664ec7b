/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Checks by RDMA whether the device reaches the bytes that the CPU sees at the
 * addresses of a registration.
 */
#ifndef MR_NOTIFY_BYTES_H
#define MR_NOTIFY_BYTES_H

#include <optional>

#include "loopback.h"

namespace mr_notify {

class byte_check {
public:
	explicit byte_check(const device &on);

	/* Do device and CPU see the same bytes in the first, the last and some other pages? */
	bool same(const ibv_mr *mr, const memory &m);
	/* Does the device refuse to write through the remote key? */
	bool refused(const ibv_mr *mr);

private:
	ibv_wc_status write(const ibv_mr *from, range local, const void *remote, uint32_t rkey);
	bool arrives(const ibv_mr *mr, range page);
	bool leaves(const ibv_mr *mr, range page);

	const device &on_;
	memory peer_;
	owned<ibv_mr> peer_mr_;
	std::optional<loopback> link_; /* replaced after an error */
	unsigned char pattern_ = 0;
};

} // namespace mr_notify

#endif
