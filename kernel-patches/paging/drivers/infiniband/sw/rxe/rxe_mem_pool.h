/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The threads of a process that has MRs with on-demand paging, see
 * rxe_mem_pool.c.
 */
#ifndef RXE_MEM_POOL_H
#define RXE_MEM_POOL_H

struct rxe_mem_fault;
struct rxe_mem_thread;

/* MRs, faults and threads hold references */
struct rxe_mem_pool {
	struct kref		ref;
	struct mm_struct	*mm;		/* grabbed */
	struct pid		*process;	/* the registering process */
	struct mutex		start_lock;	/* makes only one first thread */

	/* under rxe_mem_lock */
	struct list_head	list;		/* in rxe_mem_pools while open */
	unsigned int		mrs;
	unsigned int		count;		/* of threads, also unfinished ones */
	bool			closed;		/* the last MR or the process ended */
	struct list_head	threads;	/* sorted by age of their faults */
	struct list_head	faults;		/* waiting for a thread */
	struct list_head	kept;		/* done, with a page */
};

struct rxe_mem_pool *rxe_mem_pool_join(void);
void rxe_mem_pool_leave(struct rxe_mem_pool *pool);
void rxe_mem_pool_put(struct rxe_mem_pool *pool);
void rxe_mem_pool_add(struct rxe_mem_fault *fault);
void rxe_mem_pool_interrupt(struct rxe_mem_thread *thread);

#endif /* RXE_MEM_POOL_H */
