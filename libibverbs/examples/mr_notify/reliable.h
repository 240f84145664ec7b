/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * One end of a reliable connection over InfiniBand or RoCE, the address that the other end
 * needs, and the states of a queue pair of any type. For iWARP see iwarp.h.
 */
#ifndef MR_NOTIFY_RELIABLE_H
#define MR_NOTIFY_RELIABLE_H

#include "device.h"

namespace mr_notify {

/* How long an end waits for a response (4 us << timeout), and how often the end retries. */
struct patience {
	/* One second, because the CPU may be busy. No packet is lost. */
	uint8_t timeout = 18;
	uint8_t retries = 7; /* on soft-RoCE, 7 means forever */
};

/* The address that an end sends to the other end, and its own settings. */
struct address {
	uint16_t lid = 0;
	uint8_t link_layer = IBV_LINK_LAYER_UNSPECIFIED;
	ibv_mtu mtu = IBV_MTU_1024;
	int gid_index = 0;
	ibv_gid gid{};
	uint32_t qp = 0;
	uint32_t psn = 0; /* the PSN of the first packet that this end sends */
};

/* Makes a queue pair for 16 requests at a time, each with up to 30 SGEs. */
owned<ibv_qp> make_reliable(const device &on, ibv_cq *cq, ibv_srq *srq = nullptr);

/* Uses an IPv4 GID of the newest RoCE version if there is one. Throws unsupported if the port is
 * down. */
address address_of(const ibv_qp *qp);

/* Returns the attributes of a connection to the other end, except resources and times. */
ibv_qp_attr attributes_to(const address &own, const address &other);

/*
 * Enters a state. For INIT, RTR and RTS, also passes the attributes that an RC, UC or UD queue pair
 * needs. For other states, passes only the state. Returns 0 or an errno value, as ibv_modify_qp()
 * does.
 */
int enter(ibv_qp *qp, ibv_qp_state state, ibv_qp_attr attr = {});

/* Moves the queue pair to RTS. Both ends have the same MTU. */
void connect_reliable(ibv_qp *qp, const address &own, const address &other,
		      const patience &waits = {});

} // namespace mr_notify

#endif
