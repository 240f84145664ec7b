/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The kernel's commands of MR notification, for the verbs (mr_notify.c) and for the
 * registration cache (mr_cache.c): neither asks here whose the MR is.
 */
#ifndef IB_VERBS_MR_NOTIFY_CMD_H
#define IB_VERBS_MR_NOTIFY_CMD_H

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ibv_command_buffer;
struct ibv_context;
struct ibv_mr;
struct ibv_mr_notify_attr;
struct ibv_pd;

/*
 * 0 or an errno value; EOPNOTSUPP of a kernel without them. The attributes are valid.
 * reclaims: while no bit of in_use is set the kernel may take the pages, or says EOPNOTSUPP.
 */
int mr_notify_arm(struct ibv_mr *mr, const struct ibv_mr_notify_attr *attr,
		  bool reclaims);
int mr_notify_disarm(struct ibv_mr *mr);
int mr_notify_settle(struct ibv_mr *mr);
int mr_notify_suspend(struct ibv_mr *mr);
/* Of a command: a kernel that lacks it says so in several ways. */
int mr_notify_errno(int err);

/*
 * The first arming of an address space takes the locks of all its mappings, and gives up at
 * any signal: nothing has happened then, and the caller has no use for knowing it. The
 * loser, if it were only tried again: a process with a timer (a profiler, say) whose
 * interval is shorter than the walk along its mappings. So from the second time on with
 * signals blocked, but for a thread's own faults: one that kills ends it.
 */
struct mr_notify_retry {
	bool blocked;
	sigset_t before;
};
bool mr_notify_retries_blocked(struct mr_notify_retry *retry, int error);

/* After each time, with how it ended: is it to be tried once more? Not @blocked to begin with. */
static inline bool mr_notify_retries(struct mr_notify_retry *retry, int error)
{
	return (error == EINTR || retry->blocked) &&
	       mr_notify_retries_blocked(retry, error);
}

/* A registration that is to be armed from the start. */
struct mr_notify_request {
	uint64_t start;
	uint64_t length;
	uint64_t iova;
	const struct ibv_mr_notify_attr *attr; /* a verb's, or NULL: the fields below */
	uint64_t *word;
	uint64_t in_use;
	uint32_t access;
	bool reclaims;
	bool once; /* if it lacks room it is not tried again */
	uint32_t idle_ms;

	/* mr_notify_reg_mr()'s own */
	uint32_t armed;	 /* the handle that its command made */
	uint64_t answer; /* the address of the kernel's answer to it */
	const struct ibv_command_buffer *cmd;
	struct mr_notify_request *outer;
};

/*
 * Registers and arms, in one system call where the provider takes the usual way
 * (mr_notify_reg.c). NULL: errno is set. idle_ms, if it reclaims, where that way is taken
 * and the kernel knows of it: when the kernel takes the pages of an idle registration; 0: when it
 * needs them. The kernel's own time (IB_UVERBS_MR_NOTIFY_IDLE_MS) costs no attribute.
 */
struct ibv_mr *mr_notify_reg_mr(struct ibv_pd *pd,
				struct mr_notify_request *request);
int mr_notify_dereg_mr(struct ibv_mr *mr);
/*
 * Is this command (its core part) the registration that is to be armed at once? Then
 * mr_notify_execute() in place of execute_ioctl().
 */
bool mr_notify_tells_word(unsigned int write_method, const void *core);
int mr_notify_execute(struct ibv_context *context,
		      struct ibv_command_buffer *cmd);
/* The request of this thread with that command, or NULL. */
const struct mr_notify_request *
mr_notify_request_of(const struct ibv_command_buffer *cmd);

#endif /* IB_VERBS_MR_NOTIFY_CMD_H */
