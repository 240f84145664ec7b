/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * A fault that is waited for, between the files of on-demand paging that know it:
 * rxe_odp_fault.c, rxe_odp_pool.c, rxe_odp_wait.c.
 */
#ifndef RXE_ODP_FAULT_H
#define RXE_ODP_FAULT_H

struct rxe_odp_pool;
struct rxe_odp_thread;

/* The side that waits: the two halves of the send task do so on their own */
enum rxe_odp_side {
	RXE_ODP_REQ,
	RXE_ODP_COMP,
	RXE_ODP_RESP,
};

struct rxe_odp_fault {
	/* of the worker or the queue pair, and of the thread or its pool */
	struct kref		ref;
	struct rxe_odp_pool	*pool;
	unsigned long		addr;
	bool			write;
	bool			keep;	/* the page, pinned, for the task */
	bool			locked;	/* mmap_lock was had when it was met */

	/*
	 * in rxe_odp_fault_met until it is known which queue pair waits; in its pool
	 * until there is a thread, and while it keeps a page
	 */
	struct list_head	list;
	struct task_struct	*by;	/* the worker that met it */
	unsigned long		since;

	/* under rxe_odp_lock */
	struct rxe_qp		*qp;	/* NULL: it does not wait any more */
	u32			psn;	/* of the packet that met it */
	enum rxe_odp_side	side;
	bool			over;	/* the waiting packet needs no answer */
	bool			met;	/* a packet has waited for it */
	bool			done;
	int			err;
	struct rxe_odp_thread	*thread; /* NULL: there is none yet */
	struct page		*page;	/* NULL: it keeps none */
};

/*
 * Guards pools, the queue pairs of faults and the faults of queue pairs. A task's
 * lock and siglock nest in it.
 */
extern spinlock_t rxe_odp_lock;

void rxe_odp_fault_put(struct rxe_odp_fault *fault);
void rxe_odp_fault_serve(struct rxe_odp_fault *fault);
void rxe_odp_fault_done(struct rxe_odp_fault *fault, int err);
void rxe_odp_fault_release(struct rxe_odp_fault *fault);
void rxe_odp_fault_leave(struct rxe_qp *qp, enum rxe_odp_side side);
void rxe_odp_fault_end(struct rxe_qp *qp, enum rxe_odp_side side);
int rxe_odp_fault_wait(struct rxe_qp *qp, enum rxe_odp_side side, u32 psn);

#endif /* RXE_ODP_FAULT_H */
