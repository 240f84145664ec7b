// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A registration that is armed from the start, in one system call: the command
 * that registers, which a provider makes, gets one more attribute on its way to
 * the kernel. It is the core's, the same for every driver.
 */
#include <config.h>

#include <errno.h>

#include <infiniband/cmd_ioctl.h>
#include <infiniband/driver.h>
#include <infiniband/mr_notify.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_mr_notify.h>
#include <util/compiler.h>

#include "ibverbs.h"

/* For the registration that this thread is about to ask the kernel for. */
static __thread uint64_t *word_to_tell __attribute__((tls_model("initial-exec")));
static __thread bool word_is_told __attribute__((tls_model("initial-exec")));

void mr_notify_fill_word(struct ibv_command_buffer *cmd,
			 unsigned int write_method)
{
	if (likely(!word_to_tell) || write_method != IB_USER_VERBS_CMD_REG_MR)
		return;
	/* A provider with attributes of its own both ways leaves no room. */
	if (cmd->next_attr == cmd->last_attr)
		return;
	fill_attr_in_uint64(cmd, UVERBS_ATTR_MR_NOTIFY_REG_WORD,
			    ioctl_ptr_to_u64(word_to_tell));
	word_is_told = true;
}

struct ibv_mr *mr_notify_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
				uint64_t iova, unsigned int access,
				uint64_t *word)
{
	struct ibv_mr *mr;
	int ret;

	word_is_told = false;
	word_to_tell = word;
	mr = ibv_reg_mr_iova2(pd, addr, length, iova, access);
	word_to_tell = NULL;
	if (mr && !word_is_told) {
		ret = ibv_reg_mr_notify(mr, word);
		if (ret) {
			ibv_dereg_mr(mr);
			errno = ret;
			mr = NULL;
		}
	}
	/* One that was armed and taken back has been marked. */
	if (!mr)
		__atomic_fetch_and(word, ~(uint64_t)IBV_MR_NOTIFY_KERNEL_MASK,
				   __ATOMIC_RELAXED);
	return mr;
}
