/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * On-demand paging: rxe looks up the pages of an MR when a packet needs them. See
 * rxe_mem_mr.c for the MR, and rxe_mem_wait.c for a queue pair that waits for a
 * page. This file declares the functions that the rest of rxe calls, and the
 * functions that rxe_mem_*.c share. Without CONFIG_RDMA_RXE_PAGING rxe works as if
 * this file did not exist.
 */
#ifndef RXE_MEM_H
#define RXE_MEM_H

/*
 * A process that has MRs with on-demand paging, and the threads that handle its
 * faults. MRs, faults and threads hold references.
 */
struct rxe_mem_pool {
	struct kref		ref;
	struct mm_struct	*mm;		/* held by mmgrab() */
	struct pid		*process;	/* the registering process */
	struct mutex		start_lock;	/* lets one MR make the first thread */

	/* rxe_mem_lock protects the fields below. */
	struct list_head	list;		/* in rxe_mem_pools until @closed */
	unsigned int		mrs;
	unsigned int		count;		/* existing and starting threads */
	bool			closed;		/* the last MR or the process ended */
	struct list_head	threads;	/* sorted by the age of their faults */
	struct list_head	faults;		/* faults that wait for a thread */
	struct list_head	kept;		/* faults that are done and keep a page */
};

/* An MR with on-demand paging */
struct rxe_mem_mr {
	struct rxe_mem_pool	*pool;	/* of the registering process */
	u64			start;	/* the user address of ibmr.iova */
	atomic64_t		faults;
	atomic64_t		waits;	/* waits for a page or for mmap_lock */
	atomic64_t		prefetched; /* pages */
};

#ifdef CONFIG_RDMA_RXE_PAGING

/* rxe_mem_mr.c */
void rxe_mem_init_device(struct rxe_dev *rxe);
int rxe_mem_init_mr(struct rxe_mr *mr, u64 start, u64 length);
int rxe_mem_check_rereg(struct rxe_mr *mr, int flags, int access);
void rxe_mem_cleanup_mr(struct rxe_mr *mr);

/* rxe_mem_pool.c */
void rxe_mem_pool_exit(void);

/* rxe_mem_page.c */
void rxe_mem_end_task(void);

/* rxe_mem_copy.c */
int rxe_mem_copy(struct rxe_mr *mr, u64 iova, void *buf, unsigned int length,
		 enum rxe_mr_copy_dir dir);

/* rxe_mem_atomic.c */
enum resp_states rxe_mem_atomic_op(struct rxe_qp *qp, struct rxe_mr *mr,
				   u64 iova, int opcode, u64 compare,
				   u64 swap_add, u64 *orig_val);
enum resp_states rxe_mem_atomic_write(struct rxe_qp *qp, struct rxe_mr *mr,
				      u64 iova, u64 value);
enum resp_states rxe_mem_flush(struct rxe_qp *qp, struct rxe_mr *mr, u64 iova,
			       u64 length);

/* rxe_mem_prefetch.c */
int rxe_mem_advise_mr(struct ib_pd *ibpd,
		      enum ib_uverbs_advise_mr_advice advice, u32 flags,
		      struct ib_sge *sg_list, u32 num_sge,
		      struct uverbs_attr_bundle *attrs);

/* rxe_mem_fault.c */
int rxe_mem_fault_in(struct mm_struct *mm, unsigned long addr, bool write);
int rxe_mem_fault_meet(struct rxe_mem_mr *odp, unsigned long addr, bool write,
		       bool keep, bool locked);

/* rxe_mem_qp.c */
void rxe_mem_qp_accessed(struct rxe_mem_mr *odp, unsigned long addr,
			 unsigned int length, bool write);
struct page *rxe_mem_qp_take_page(struct rxe_mem_mr *odp, unsigned long addr);

/* rxe_mem_wait.c */
bool rxe_mem_req_waits(struct rxe_qp *qp, struct rxe_send_wqe *wqe, int err);
void rxe_mem_req_ends(struct rxe_qp *qp);
bool rxe_mem_req_holds_up(struct rxe_qp *qp);
bool rxe_mem_comp_waits(struct rxe_qp *qp, struct rxe_pkt_info *pkt, int err);
enum resp_states rxe_mem_resp_state(struct rxe_qp *qp, int err,
				    enum resp_states state);
u64 rxe_mem_flushed(struct rxe_qp *qp);
bool rxe_mem_has_wqe(struct rxe_qp *qp);
void rxe_mem_reset_qp(struct rxe_qp *qp);
void rxe_mem_destroy_qp(struct rxe_qp *qp);

#else

static inline void rxe_mem_init_device(struct rxe_dev *rxe)
{
}

static inline int rxe_mem_init_mr(struct rxe_mr *mr, u64 start, u64 length)
{
	return -EOPNOTSUPP;
}

static inline int rxe_mem_check_rereg(struct rxe_mr *mr, int flags, int access)
{
	return 0;
}

static inline void rxe_mem_cleanup_mr(struct rxe_mr *mr)
{
}

static inline void rxe_mem_pool_exit(void)
{
}

static inline void rxe_mem_end_task(void)
{
}

static inline int rxe_mem_copy(struct rxe_mr *mr, u64 iova, void *buf,
			       unsigned int length, enum rxe_mr_copy_dir dir)
{
	return -EOPNOTSUPP;
}

static inline enum resp_states
rxe_mem_atomic_op(struct rxe_qp *qp, struct rxe_mr *mr, u64 iova, int opcode,
		  u64 compare, u64 swap_add, u64 *orig_val)
{
	return RESPST_ERR_RKEY_VIOLATION;
}

static inline enum resp_states
rxe_mem_atomic_write(struct rxe_qp *qp, struct rxe_mr *mr, u64 iova, u64 value)
{
	return RESPST_ERR_RKEY_VIOLATION;
}

static inline bool rxe_mem_req_waits(struct rxe_qp *qp,
				     struct rxe_send_wqe *wqe, int err)
{
	return false;
}

static inline void rxe_mem_req_ends(struct rxe_qp *qp)
{
}

static inline bool rxe_mem_req_holds_up(struct rxe_qp *qp)
{
	return false;
}

static inline bool rxe_mem_comp_waits(struct rxe_qp *qp,
				      struct rxe_pkt_info *pkt, int err)
{
	return false;
}

static inline enum resp_states rxe_mem_resp_state(struct rxe_qp *qp, int err,
						  enum resp_states state)
{
	return err ? state : RESPST_NONE;
}

static inline enum resp_states rxe_mem_flush(struct rxe_qp *qp,
					     struct rxe_mr *mr, u64 iova,
					     u64 length)
{
	return rxe_mem_resp_state(qp, rxe_flush_pmem_iova(mr, iova, length),
				  RESPST_ERR_RKEY_VIOLATION);
}

static inline bool rxe_mem_has_wqe(struct rxe_qp *qp)
{
	return false;
}

static inline void rxe_mem_reset_qp(struct rxe_qp *qp)
{
}

static inline void rxe_mem_destroy_qp(struct rxe_qp *qp)
{
}

#endif /* CONFIG_RDMA_RXE_PAGING */

/* rxe_mr_do_atomic_op() for any MR */
static inline enum resp_states
rxe_qp_do_atomic_op(struct rxe_qp *qp, struct rxe_mr *mr, u64 iova, int opcode,
		    u64 compare, u64 swap_add, u64 *orig_val)
{
	return mr->odp ? rxe_mem_atomic_op(qp, mr, iova, opcode, compare,
					   swap_add, orig_val) :
			 rxe_mr_do_atomic_op(mr, iova, opcode, compare,
					     swap_add, orig_val);
}

/* rxe_mr_do_atomic_write() for any MR */
static inline enum resp_states
rxe_qp_do_atomic_write(struct rxe_qp *qp, struct rxe_mr *mr, u64 iova,
		       u64 value)
{
	return mr->odp ? rxe_mem_atomic_write(qp, mr, iova, value) :
			 rxe_mr_do_atomic_write(mr, iova, value);
}

/**
 * rxe_mem_take_retry - May the requester send again?
 * @qp: The queue pair
 *
 * Decrements the retry counter, but not while the requester waits for a page.
 * During the wait the peer may have nothing to answer, even if no packet is lost.
 *
 * Return: true if the requester may send again.
 */
static inline bool rxe_mem_take_retry(struct rxe_qp *qp)
{
	if (rxe_mem_req_holds_up(qp))
		return true;
	if (!qp->comp.retry_cnt)
		return false;
	if (qp->comp.retry_cnt != 7)
		qp->comp.retry_cnt--;
	return true;
}

#endif /* RXE_MEM_H */
