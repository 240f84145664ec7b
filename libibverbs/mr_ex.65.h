/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* ibv_reg_mr_ex() with the registration cache and with a word. verbs.c includes this file. */
#ifndef IB_VERBS_MR_EX_H
#define IB_VERBS_MR_EX_H

#include <stdbool.h>

#include <infiniband/verbs.h>

/*
 * attr is the copy of *asked for the provider. For a struct ibv_buf, attr already has the range.
 * Returns true if *mr is the result of the verb.
 */
bool mr_ex_reg(struct ibv_pd *pd, const struct ibv_mr_init_attr *asked,
	       struct ibv_mr_init_attr *attr, struct ibv_mr **mr);

#endif /* IB_VERBS_MR_EX_H */
