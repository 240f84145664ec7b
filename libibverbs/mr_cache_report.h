/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Statistics of the registration cache for the user that runs a program, not
 * for the program itself: RDMAV_MR_CACHE_STATS=1.
 */
#ifndef IB_VERBS_MR_CACHE_REPORT_H
#define IB_VERBS_MR_CACHE_REPORT_H

struct ibv_context;

/* Once for each context that caches. */
void mr_cache_report_open(struct ibv_context *context);
/* Before the cache forgets the context. */
void mr_cache_report_close(struct ibv_context *context);

#endif /* IB_VERBS_MR_CACHE_REPORT_H */
