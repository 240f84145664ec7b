// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A server tells its client a new key whenever the memory behind the old one has changed.
 *
 * Usage: notify_server [DEVICE] (InfiniBand or RoCE; default: the first one)
 *
 * The client writes to the server's buffer by RDMA. A library in the server (here: replace())
 * unmaps the buffer and maps another buffer, and does not tell the server. The server sleeps in
 * poll(). The kernel wakes it by an eventfd, and a word says which registration is INVALID. The
 * server registers the buffer again and sends its address and key. Server and client are
 * processes of this program. Exit status 3: the device has no MR notification.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH (64 * 1024)
#define ROUNDS 5
#define WRITE (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

struct end {
	int peer; /* a socket */
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

struct address {
	union ibv_gid gid;
	uint32_t qpn;
	uint16_t lid;
};

struct key {
	uint64_t address; /* 0: there is no more to be written */
	uint32_t rkey;
};

static void check(int good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(2);
}

static void tell(const struct end *end, const void *what, size_t length)
{
	check(send(end->peer, what, length, 0) == (ssize_t)length, "send");
}

static void hear(const struct end *end, void *what, size_t length)
{
	check(recv(end->peer, what, length, 0) == (ssize_t)length, "recv");
}

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	int i = 0;

	check(list && *list, "no RDMA device");
	while (name && list[i] && strcmp(ibv_get_device_name(list[i]), name))
		i++;
	check(list[i] != NULL, "no such device");
	context = ibv_open_device(list[i]);
	check(context != NULL, "ibv_open_device");
	ibv_free_device_list(list);
	return context;
}

/* Port 1; the last GID: an IP address on RoCE. */
static void connect_end(struct end *end, const char *device, int peer)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct address own = { 0 };
	struct ibv_port_attr port;
	struct address other;
	union ibv_gid gid;

	end->peer = peer;
	end->context = open_device(device);
	end->pd = ibv_alloc_pd(end->context);
	end->cq = ibv_create_cq(end->context, 4, NULL, NULL, 0);
	check(end->pd && end->cq, "ibv_alloc_pd, ibv_create_cq");
	init.send_cq = init.recv_cq = end->cq;
	init.cap.max_send_wr = init.cap.max_recv_wr = 1;
	init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	end->qp = ibv_create_qp(end->pd, &init);
	check(end->qp != NULL, "ibv_create_qp");

	check(!ibv_query_port(end->context, 1, &port), "ibv_query_port");
	for (int i = 0; i < port.gid_tbl_len && !ibv_query_gid(end->context, 1, i, &gid); i++) {
		if (!gid.global.interface_id)
			break;
		attr.ah_attr.grh.sgid_index = i;
		own.gid = gid;
	}
	own.qpn = end->qp->qp_num;
	own.lid = port.lid;
	tell(end, &own, sizeof(own));
	hear(end, &other, sizeof(other));

	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	check(!ibv_modify_qp(end->qp, &attr,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
	      "INIT");
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = port.active_mtu;
	attr.dest_qp_num = other.qpn;
	attr.ah_attr.dlid = other.lid;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.grh.dgid = other.gid;
	attr.ah_attr.grh.hop_limit = 1;
	attr.min_rnr_timer = 12;
	check(!ibv_modify_qp(end->qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				     IBV_QP_MIN_RNR_TIMER),
	      "RTR");
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 20; /* 4 s: the machine may be busy */
	attr.retry_cnt = attr.rnr_retry = 7;
	check(!ibv_modify_qp(end->qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
	      "RTS");
}

static void write_to(struct end *end, const char *text, const struct key *key)
{
	static char source[64];
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_mr *mr = ibv_reg_mr(end->pd, source, sizeof(source), 0);
	struct ibv_sge sge = { .addr = (uintptr_t)source, .length = sizeof(source) };
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int got;

	check(mr != NULL, "ibv_reg_mr");
	snprintf(source, sizeof(source), "%s", text);
	sge.lkey = mr->lkey;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.wr.rdma.remote_addr = key->address;
	wr.wr.rdma.rkey = key->rkey;
	check(!ibv_post_send(end->qp, &wr, &bad), "ibv_post_send");
	do
		got = ibv_poll_cq(end->cq, 1, &wc);
	while (!got);
	if (got < 0 || wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "write: %s\n", ibv_wc_status_str(wc.status));
		exit(2);
	}
	ibv_dereg_mr(mr);
}

static int client(const char *device, int peer)
{
	char text[64];
	struct key key;
	struct end end;

	connect_end(&end, device, peer);
	for (int i = 0;; i++) {
		hear(&end, &key, sizeof(key));
		if (!key.address)
			return 0;
		snprintf(text, sizeof(text), "message %d", i);
		write_to(&end, text, &key);
		tell(&end, text, sizeof(text));
	}
}

static char *map(void)
{
	void *memory =
		mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	check(memory != MAP_FAILED, "mmap");
	return memory;
}

/* The library: the server does not see this. */
static char *replace(char *buffer)
{
	munmap(buffer, LENGTH);
	return map();
}

static int server(const char *device, int peer)
{
	struct ibv_mr_notify_attr attr = { .comp_mask = IBV_MR_NOTIFY_ATTR_EVENT_FD };
	struct pollfd changed = { .events = POLLIN };
	char *buffer = map();
	struct ibv_mr *mr;
	char text[64];
	eventfd_t times;
	struct key key;
	struct end end;

	connect_end(&end, device, peer);
	changed.fd = attr.event_fd = eventfd(0, EFD_CLOEXEC);
	attr.word = ibv_alloc_notify_word(end.context);
	check(changed.fd >= 0 && attr.word, "eventfd, ibv_alloc_notify_word");
	for (int i = 0; i < ROUNDS; i++) {
		*attr.word = 0;
		mr = ibv_reg_notified_mr(end.pd, buffer, LENGTH, (uintptr_t)buffer, WRITE, &attr);
		if (!mr && errno == EOPNOTSUPP)
			return 3;
		check(mr != NULL, "ibv_reg_notified_mr");
		key = (struct key){ .address = (uintptr_t)buffer, .rkey = mr->rkey };
		tell(&end, &key, sizeof(key));
		hear(&end, text, sizeof(text));
		printf("written: %s\n", buffer);
		check(!strcmp(buffer, text), "other bytes");
		buffer = replace(buffer);
		check(poll(&changed, 1, -1) == 1 && !eventfd_read(changed.fd, &times), "poll");
		check(__atomic_load_n(attr.word, __ATOMIC_ACQUIRE) & IBV_MR_NOTIFY_INVALID,
		      "no INVALID word");
		printf("round %d: the kernel says that the buffer has gone\n", i);
		ibv_dereg_mr(mr);
	}
	memset(&key, 0, sizeof(key));
	tell(&end, &key, sizeof(key));
	return 0;
}

int main(int argc, char **argv)
{
	const char *device = argc > 1 ? argv[1] : NULL;
	int ends[2];
	int status = 0;
	pid_t child;

	check(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), "socketpair");
	child = fork(); /* before a device is open */
	check(child >= 0, "fork");
	if (child == 0) {
		close(ends[0]);
		return client(device, ends[1]);
	}
	close(ends[1]);
	status = server(device, ends[0]);
	if (status) {
		close(ends[0]);
		return status;
	}
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}
