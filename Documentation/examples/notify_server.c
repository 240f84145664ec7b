// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A server tells its client a new key whenever the memory of the old key has changed.
 *
 * Usage: notify_server [DEVICE] (InfiniBand or RoCE; default: the first one)
 *
 * The client writes to the server's buffer by RDMA. A library in the server (here: replace())
 * unmaps the buffer and maps another buffer, and does not tell the server. The server sleeps in
 * poll(). The kernel wakes it by an eventfd, and a word says that its registration is INVALID.
 * The server registers the buffer again and sends its address and key. Server and client are
 * processes of this program. Exit status 3: the device has no MR notification.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rc_link.h"

#define LENGTH (64 * 1024)
#define ROUNDS 5
#define WRITE (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

struct key {
	uint64_t address; /* 0: the client has nothing more to write */
	uint32_t rkey;
};

static void tell(int peer, const void *what, size_t length)
{
	rc_check(send(peer, what, length, 0) == (ssize_t)length, "send");
}

static void hear(int peer, void *what, size_t length)
{
	rc_check(recv(peer, what, length, 0) == (ssize_t)length, "recv");
}

static void connect_to(int peer, struct rc_link *link, const char *device)
{
	const struct rc_address own = rc_open(link, device);
	struct rc_address other;

	tell(peer, &own, sizeof(own));
	hear(peer, &other, sizeof(other));
	rc_connect(link, &other);
}

static void client(int peer, const char *device)
{
	char text[64] = "";
	struct rc_link link;
	struct ibv_mr *mr;
	struct key key;

	connect_to(peer, &link, device);
	mr = ibv_reg_mr(link.pd, text, sizeof(text), 0);
	rc_check(mr != NULL, "ibv_reg_mr");
	for (int i = 0;; i++) {
		hear(peer, &key, sizeof(key));
		if (!key.address)
			break;
		snprintf(text, sizeof(text), "message %d", i);
		rc_write(&link, text, sizeof(text), mr, key.address, key.rkey);
		tell(peer, text, sizeof(text));
	}
	ibv_dereg_mr(mr);
	rc_close(&link);
}

static char *map(void)
{
	void *memory =
		mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	rc_check(memory != MAP_FAILED, "mmap");
	return memory;
}

/* The library replaces the buffer, and does not tell the server. */
static char *replace(char *buffer)
{
	munmap(buffer, LENGTH);
	return map();
}

/* Returns 0, or 3 if the device has no MR notification. */
static int server(int peer, const char *device)
{
	struct ibv_mr_notify_attr attr = { .comp_mask = IBV_MR_NOTIFY_ATTR_EVENT_FD };
	struct pollfd changed = { .events = POLLIN };
	struct key key = { 0 };
	char *buffer = map();
	struct rc_link link;
	struct ibv_mr *mr;
	char text[64];
	eventfd_t times;
	int status = 0;

	connect_to(peer, &link, device);
	changed.fd = attr.event_fd = eventfd(0, EFD_CLOEXEC);
	attr.word = ibv_alloc_notify_word(link.context);
	rc_check(changed.fd >= 0 && attr.word, "eventfd, ibv_alloc_notify_word");
	for (int i = 0; i < ROUNDS; i++) {
		*attr.word = 0;
		mr = ibv_reg_notified_mr(link.pd, buffer, LENGTH, (uintptr_t)buffer, WRITE, &attr);
		if (!mr && errno == EOPNOTSUPP) {
			status = 3;
			break;
		}
		rc_check(mr != NULL, "ibv_reg_notified_mr");
		key = (struct key){ .address = (uintptr_t)buffer, .rkey = mr->rkey };
		tell(peer, &key, sizeof(key));
		hear(peer, text, sizeof(text));
		printf("written: %s\n", buffer);
		rc_check(!strcmp(buffer, text), "other bytes");
		buffer = replace(buffer);
		rc_check(poll(&changed, 1, -1) == 1 && !eventfd_read(changed.fd, &times), "poll");
		rc_check(__atomic_load_n(attr.word, __ATOMIC_ACQUIRE) & IBV_MR_NOTIFY_INVALID,
			 "no INVALID word");
		printf("round %d: the kernel says that the buffer has gone\n", i);
		ibv_dereg_mr(mr);
	}
	memset(&key, 0, sizeof(key));
	tell(peer, &key, sizeof(key));
	ibv_free_notify_word(attr.word);
	close(changed.fd);
	munmap(buffer, LENGTH);
	rc_close(&link);
	return status;
}

int main(int argc, char **argv)
{
	const char *device = argc > 1 ? argv[1] : NULL;
	int ends[2], status, of_client;
	pid_t child;

	rc_check(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), "socketpair");
	child = fork(); /* before a device is open */
	rc_check(child >= 0, "fork");
	if (child == 0) {
		close(ends[0]);
		client(ends[1], device);
		return 0;
	}
	close(ends[1]);
	status = server(ends[0], device);
	rc_check(waitpid(child, &of_client, 0) == child, "waitpid");
	return of_client ? 2 : status;
}
