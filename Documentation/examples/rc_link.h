/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The RC connection of the examples, for C and C++: functions that open a device, connect
 * (the caller exchanges the addresses) and write to the peer. iWARP does not work, because
 * only the connection manager (librdmacm) connects queue pairs of iWARP. On an error, all
 * functions end the process; mpirun then ends the job.
 */
#ifndef RC_LINK_H
#define RC_LINK_H

#include <infiniband/verbs.h>

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rc_link {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	enum ibv_mtu mtu;
	int gid_index;
};

struct rc_address {
	union ibv_gid gid;
	uint32_t qpn;
	uint16_t lid;
};

static inline void rc_check(int good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(2);
}

/* Opens the named or the first device. Uses port 1, and the last GID (on RoCE an IP address). */
static inline struct rc_address rc_open(struct rc_link *link, const char *device)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init;
	struct ibv_port_attr port;
	struct rc_address own;
	union ibv_gid gid;
	int i = 0;

	rc_check(list && *list, "no RDMA device");
	while (device && list[i] && strcmp(ibv_get_device_name(list[i]), device))
		i++;
	rc_check(list[i] != NULL, "no such device");
	link->context = ibv_open_device(list[i]);
	rc_check(link->context != NULL, "ibv_open_device");
	ibv_free_device_list(list);
	link->pd = ibv_alloc_pd(link->context);
	link->cq = ibv_create_cq(link->context, 4, NULL, NULL, 0);
	rc_check(link->pd && link->cq, "ibv_alloc_pd, ibv_create_cq");
	memset(&init, 0, sizeof(init));
	init.send_cq = init.recv_cq = link->cq;
	init.cap.max_send_wr = init.cap.max_recv_wr = 1;
	init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	init.qp_type = IBV_QPT_RC;
	link->qp = ibv_create_qp(link->pd, &init);
	rc_check(link->qp != NULL, "ibv_create_qp");

	link->gid_index = 0;
	memset(&own, 0, sizeof(own));
	rc_check(!ibv_query_port(link->context, 1, &port), "ibv_query_port");
	for (i = 0; i < port.gid_tbl_len && !ibv_query_gid(link->context, 1, i, &gid); i++) {
		if (!gid.global.interface_id)
			break;
		link->gid_index = i;
		own.gid = gid;
	}
	own.qpn = link->qp->qp_num;
	own.lid = port.lid;
	link->mtu = port.active_mtu;
	return own;
}

static inline void rc_connect(struct rc_link *link, const struct rc_address *peer)
{
	struct ibv_qp_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_INIT;
	attr.port_num = 1;
	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	rc_check(!ibv_modify_qp(link->qp, &attr,
				IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					IBV_QP_ACCESS_FLAGS),
		 "INIT");
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = link->mtu;
	attr.dest_qp_num = peer->qpn;
	attr.ah_attr.dlid = peer->lid;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.grh.dgid = peer->gid;
	attr.ah_attr.grh.sgid_index = link->gid_index;
	attr.ah_attr.grh.hop_limit = 1;
	attr.min_rnr_timer = 12;
	rc_check(!ibv_modify_qp(link->qp, &attr,
				IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					IBV_QP_MIN_RNR_TIMER),
		 "RTR");
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 20; /* 4 s: the machine may be busy */
	attr.retry_cnt = attr.rnr_retry = 7;
	rc_check(!ibv_modify_qp(link->qp, &attr,
				IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
		 "RTS");
}

static inline void rc_close(struct rc_link *link)
{
	ibv_destroy_qp(link->qp);
	ibv_destroy_cq(link->cq);
	ibv_dealloc_pd(link->pd);
	ibv_close_device(link->context);
}

/* Returns when the device is done with the memory. */
static inline void rc_write(struct rc_link *link, void *from, uint32_t length, struct ibv_mr *mr,
			    uint64_t to, uint32_t rkey)
{
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;
	struct ibv_wc wc;
	int got;

	sge.addr = (uintptr_t)from;
	sge.length = length;
	sge.lkey = mr->lkey;
	memset(&wr, 0, sizeof(wr));
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = to;
	wr.wr.rdma.rkey = rkey;
	rc_check(!ibv_post_send(link->qp, &wr, &bad), "ibv_post_send");
	do
		got = ibv_poll_cq(link->cq, 1, &wc);
	while (!got);
	rc_check(got > 0, "ibv_poll_cq");
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "write: %s\n", ibv_wc_status_str(wc.status));
		exit(2);
	}
}

#endif
