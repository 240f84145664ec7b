/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * On-demand paging: MRs whose pages are found when a packet needs them, see
 * rxe_mem_mr.c, and how a queue pair waits for a page, see rxe_mem_wait.c. The
 * functions that the rest of rxe calls, and those of the files among each other.
 */
#ifndef RXE_MEM_H
#define RXE_MEM_H

/* An MR with on-demand paging */
struct rxe_mem_mr {
	struct rxe_mem_pool	*pool;	/* of the registering process */
	u64			start;	/* user address of ibmr.iova */
	atomic64_t		faults;
	atomic64_t		waits;	/* for pages, or for mmap_lock */
	atomic64_t		prefetched; /* pages */
};

/* rxe_mem_mr.c */
void rxe_mem_init_caps(struct ib_device_attr *attr);
int rxe_mem_init_mr(struct rxe_mr *mr, u64 start, u64 length);
int rxe_mem_check_rereg(struct rxe_mr *mr, int flags, int access);
void rxe_mem_cleanup_mr(struct rxe_mr *mr);
int rxe_mem_fill_stat_mr(struct sk_buff *msg, struct ib_mr *ibmr);

/* rxe_mem_pool.c */
void rxe_mem_pool_exit(void);

/* rxe_mem_page.c */
void rxe_mem_end_task(void);

/* rxe_mem_copy.c */
int rxe_mem_copy(struct rxe_mr *mr, u64 iova, void *buf, unsigned int length,
		 enum rxe_mr_copy_dir dir);

/* rxe_mem_atomic.c */
enum resp_states rxe_qp_do_atomic_op(struct rxe_qp *qp, struct rxe_mr *mr,
				     u64 iova, int opcode, u64 compare,
				     u64 swap_add, u64 *orig_val);
enum resp_states rxe_qp_do_atomic_write(struct rxe_qp *qp, struct rxe_mr *mr,
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
void rxe_mem_fault_accessed(struct rxe_mem_mr *odp, unsigned long addr,
			    unsigned int length, bool write);
struct page *rxe_mem_fault_take_page(struct rxe_mem_mr *odp,
				     unsigned long addr);

/* rxe_mem_wait.c */
bool rxe_mem_req_waits(struct rxe_qp *qp, struct rxe_send_wqe *wqe, int err);
void rxe_mem_req_ends(struct rxe_qp *qp);
bool rxe_mem_take_retry(struct rxe_qp *qp);
bool rxe_mem_comp_waits(struct rxe_qp *qp, struct rxe_pkt_info *pkt, int err);
enum resp_states rxe_mem_resp_state(struct rxe_qp *qp, int err,
				    enum resp_states state);
u64 rxe_mem_flushed(struct rxe_qp *qp);
bool rxe_mem_has_wqe(struct rxe_qp *qp);
void rxe_mem_reset_qp(struct rxe_qp *qp);
void rxe_mem_destroy_qp(struct rxe_qp *qp);

#endif /* RXE_MEM_H */
