/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * A fault that is waited for, between the files of on-demand paging that know it:
 * rxe_odp_fault.c, rxe_odp_loan.c, rxe_odp_wait.c.
 */
#ifndef RXE_ODP_FAULT_H
#define RXE_ODP_FAULT_H

/* The side that waits: the two halves of the send task do so on their own */
enum rxe_odp_side {
	RXE_ODP_REQ,
	RXE_ODP_COMP,
	RXE_ODP_RESP,
};

enum rxe_odp_loan {
	RXE_ODP_KEPT,
	RXE_ODP_LENT,
	RXE_ODP_BORROWED,
	RXE_ODP_RECALLED,	/* borrowed, for the last time */
};

/* A user that registers memory. Held by MRs and faults */
struct rxe_odp_user {
	refcount_t		ref;
	struct list_head	list;	/* in rxe_odp_users */
	kuid_t			uid;

	/* under rxe_odp_lock */
	unsigned int		threads;
	struct list_head	faults;	/* without a thread yet */
	struct list_head	served;	/* by a thread */
};

struct rxe_odp_fault {
	/* of the worker or the queue pair, and of the thread or its user's list */
	struct kref		ref;
	struct rxe_odp_user	*user;
	struct mm_struct	*mm;
	unsigned long		addr;
	bool			write;

	/*
	 * in rxe_odp_met until it is known which queue pair waits; in its user's list
	 * until there is a thread; in rxe_odp_loans
	 */
	struct list_head	list;
	struct list_head	of_user; /* in its user's list while there is one */
	struct task_struct	*by;	/* the worker that met it */

	struct task_struct	*thread; /* NULL: there is none yet */
	struct work_struct	*work;	/* the task that waits; may have gone */
	unsigned long		since;

	/* under rxe_odp_lock */
	struct rxe_qp		*qp;	/* NULL: it does not wait any more */
	enum rxe_odp_side	side;
	bool			over;	/* the waiting packet needs no answer */
	bool			met;	/* a packet has waited for it */
	bool			begun;	/* the thread has the address space until done */
	bool			done;
	int			err;
	enum rxe_odp_loan	loan;	/* of mmap_lock, by the thread */
};

/*
 * Guards the queue pairs of faults, the faults of queue pairs and of users, and
 * the lists of faults. A task's lock nests in it.
 */
extern spinlock_t rxe_odp_lock;

/* rxe_odp_fault.c */
void rxe_odp_put_fault(struct rxe_odp_fault *fault);
void rxe_odp_leave_fault(struct rxe_qp *qp, enum rxe_odp_side side);
void rxe_odp_end_fault(struct rxe_qp *qp, enum rxe_odp_side side);
int rxe_odp_wait(struct rxe_qp *qp, enum rxe_odp_side side);

/* rxe_odp_loan.c */
void rxe_odp_lend(struct rxe_odp_fault *fault);
void rxe_odp_decline(struct work_struct *work);
void rxe_odp_get_back(struct rxe_odp_fault *fault);

#endif /* RXE_ODP_FAULT_H */
