/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The kernel's commands of MR notification, for the verbs (mr_notify.c) and for the registration
 * cache (mr_cache_registrar.c). These functions don't check whether the cache owns the MR.
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
 * These functions return 0 or an errno value. EOPNOTSUPP means that the kernel lacks the method.
 * The caller has checked the attributes. If reclaims is true, the kernel may suspend the MR while
 * no bit of in_use is set. If the kernel can't do this, mr_notify_arm() returns EOPNOTSUPP.
 */
int mr_notify_arm(struct ibv_mr *mr, const struct ibv_mr_notify_attr *attr,
		  bool reclaims);
int mr_notify_disarm(struct ibv_mr *mr);
int mr_notify_settle(struct ibv_mr *mr);
int mr_notify_suspend(struct ibv_mr *mr);
/* Turns each error by which a kernel refuses an unknown method into EOPNOTSUPP. */
int mr_notify_errno(int err);

/*
 * The first arming in an address space takes the locks of all mappings, and any signal
 * interrupts the command. An interrupted command changes nothing, so the library repeats it. But
 * a fast timer, for example of a profiler, would interrupt each attempt. So from the second
 * attempt on, the library blocks all signals except those for faults of the thread itself. A
 * fatal signal still ends the attempt.
 */
struct mr_notify_retry {
	bool blocked;
	sigset_t before;
};
bool mr_notify_retries_blocked(struct mr_notify_retry *retry, int error);

/*
 * Call this after each attempt, with the error of the attempt. Returns true if the caller must
 * repeat the attempt. Set @blocked to false before the first attempt.
 */
static inline bool mr_notify_retries(struct mr_notify_retry *retry, int error)
{
	return (error == EINTR || retry->blocked) &&
	       mr_notify_retries_blocked(retry, error);
}

/* A registration whose command also arms the MR. */
struct mr_notify_request {
	uint64_t start;
	uint64_t length;
	uint64_t iova;
	const struct ibv_mr_notify_attr *attr; /* if NULL, the fields below count instead */
	uint64_t *word;
	uint64_t in_use;
	uint32_t access;
	bool reclaims;
	bool once; /* don't repeat a failed command, as mr_cache_retry_cmd() would */
	uint32_t idle_ms;

	/* private to mr_notify_reg_mr() */
	uint32_t armed;	 /* the handle of the MR that the command made */
	uint64_t answer; /* the address of the command's response */
	const struct ibv_command_buffer *cmd;
	struct mr_notify_request *outer;
};

/*
 * Registers and arms an MR. If the provider uses the command REG_MR (mr_notify_reg.c), this
 * is one system call. On failure returns NULL and sets errno. idle_ms is the idle time. If it
 * is 0, the kernel suspends the MR only when memory is short. idle_ms has an effect only if
 * reclaims is true, the provider uses REG_MR, and the kernel knows the attribute. The
 * kernel's default time (IB_UVERBS_MR_NOTIFY_IDLE_MS) needs no attribute.
 */
struct ibv_mr *mr_notify_reg_mr(struct ibv_pd *pd,
				struct mr_notify_request *request);
int mr_notify_dereg_mr(struct ibv_mr *mr);
/*
 * @core is the core part of a command. Returns true if this command is the registration to arm.
 * Then call mr_notify_execute() instead of execute_ioctl().
 */
bool mr_notify_tells_word(unsigned int write_method, const void *core);
int mr_notify_execute(struct ibv_context *context,
		      struct ibv_command_buffer *cmd);
/* Returns the request of this thread whose command is @cmd, or NULL. */
const struct mr_notify_request *
mr_notify_request_of(const struct ibv_command_buffer *cmd);

#endif /* IB_VERBS_MR_NOTIFY_CMD_H */
