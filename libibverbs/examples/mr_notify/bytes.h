/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Does the device reach through a registration the very bytes that the CPU sees
 * at its addresses? Asked of the device itself, by RDMA.
 */
#ifndef MR_NOTIFY_BYTES_H
#define MR_NOTIFY_BYTES_H

#include <optional>

#include "loopback.h"

namespace mr_notify {

class byte_check {
public:
	explicit byte_check(const device &on);

	/* The first, the last and some pages between: the same for device and CPU. */
	bool same(const ibv_mr *mr, const memory &m);
	/* The device refuses to write through the remote key. */
	bool refused(const ibv_mr *mr);

private:
	ibv_wc_status write(const ibv_mr *from, range local, const void *remote, uint32_t rkey);
	bool arrives(const ibv_mr *mr, range page);
	bool leaves(const ibv_mr *mr, range page);

	const device &on_;
	memory peer_;
	owned<ibv_mr> peer_mr_;
	std::optional<loopback> link_; /* an error breaks it, and another is made */
	unsigned char pattern_ = 0;
};

} // namespace mr_notify

#endif
