/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * A fault for which a queue pair waits, see rxe_mem_fault.c.
 */
#ifndef RXE_MEM_FAULT_H
#define RXE_MEM_FAULT_H

struct rxe_mem_pool;
struct rxe_mem_thread;

/* The side that waits. The requester and the completer wait independently */
enum rxe_mem_side {
	RXE_MEM_REQ,
	RXE_MEM_COMP,
	RXE_MEM_RESP,
};

struct rxe_mem_fault {
	/* references of the worker or queue pair, and of the thread or pool */
	struct kref		ref;
	struct rxe_mem_pool	*pool;
	unsigned long		addr;
	bool			write;
	bool			keep;	/* pin the page for the task */
	bool			locked;	/* the page was looked up under mmap_lock */

	/*
	 * The fault is in rxe_mem_fault_met until its queue pair is known. It is
	 * in a list of the pool until it has a thread, and while it keeps a page.
	 */
	struct list_head	list;
	struct task_struct	*by;	/* the worker that met the fault */
	unsigned long		since;

	/* rxe_mem_lock protects the fields below. */
	struct rxe_qp		*qp;	/* NULL: no queue pair waits any more */
	u32			psn;	/* of the packet that needs the page */
	enum rxe_mem_side	side;
	bool			over;	/* the queue pair needs no result */
	bool			met;	/* a packet has waited for the fault */
	bool			done;
	int			err;
	struct rxe_mem_thread	*thread; /* NULL: the fault waits for a thread */
	struct page		*page;	/* the kept page, or NULL */
};

/*
 * Protects the pools and the links between faults and queue pairs. The lock of a
 * task and siglock nest inside rxe_mem_lock.
 */
extern spinlock_t rxe_mem_lock;

void rxe_mem_fault_put_pool(struct rxe_mem_pool *pool);
void rxe_mem_fault_put(struct rxe_mem_fault *fault);
struct rxe_mem_fault *rxe_mem_fault_take_met(void);
void rxe_mem_fault_serve(struct rxe_mem_fault *fault);
void rxe_mem_fault_done(struct rxe_mem_fault *fault, int err);
void rxe_mem_fault_release(struct rxe_mem_fault *fault);
void rxe_mem_fault_detach(struct rxe_mem_fault *fault);

#endif /* RXE_MEM_FAULT_H */
