/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The threads of a process that has registered memory on demand, see
 * rxe_odp_pool.c.
 */
#ifndef RXE_ODP_POOL_H
#define RXE_ODP_POOL_H

struct rxe_odp_fault;
struct rxe_odp_thread;

/* Held by MRs, faults and threads */
struct rxe_odp_pool {
	struct kref		ref;
	struct mm_struct	*mm;		/* grabbed */
	struct pid		*process;	/* that registered */
	struct mutex		start_lock;	/* so the first thread is one */

	/* under rxe_odp_lock */
	struct list_head	list;		/* in rxe_odp_pools until closed */
	unsigned int		mrs;
	unsigned int		count;		/* of threads, being made or made */
	bool			closed;		/* no MR is left, or no process */
	struct list_head	threads;	/* by the time of their faults */
	struct list_head	faults;		/* without a thread yet */
	struct list_head	kept;		/* done, with a page */
};

struct rxe_odp_pool *rxe_odp_pool_join(void);
void rxe_odp_pool_leave(struct rxe_odp_pool *pool);
void rxe_odp_pool_put(struct rxe_odp_pool *pool);
void rxe_odp_pool_add(struct rxe_odp_fault *fault);
void rxe_odp_pool_interrupt(struct rxe_odp_thread *thread);

#endif /* RXE_ODP_POOL_H */
