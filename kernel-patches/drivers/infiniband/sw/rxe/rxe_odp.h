/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * On-demand paging: MRs whose pages are found when a packet needs them, see
 * rxe_odp_mr.c, and how a queue pair waits for a page, see rxe_odp_wait.c. The
 * functions that the rest of rxe calls, and those of the files among each other.
 */
#ifndef RXE_ODP_H
#define RXE_ODP_H

/* An MR with on-demand paging */
struct rxe_odp_mr {
	struct rxe_odp_pool	*pool;	/* of the registering process */
	u64			start;	/* user address of ibmr.iova */
	atomic64_t		faults;
	atomic64_t		waits;	/* for pages, or for mmap_lock */
	atomic64_t		prefetched; /* pages */
};

/* rxe_odp_mr.c */
void rxe_odp_init_caps(struct ib_device_attr *attr);
int rxe_odp_init_mr(struct rxe_mr *mr, u64 start, u64 length);
int rxe_odp_check_rereg(struct rxe_mr *mr, int flags, int access);
void rxe_odp_cleanup_mr(struct rxe_mr *mr);
int rxe_odp_fill_stat_mr(struct sk_buff *msg, struct ib_mr *ibmr);

/* rxe_odp_pool.c */
void rxe_odp_pool_exit(void);

/* rxe_odp_page.c */
void rxe_odp_end_task(void);

/* rxe_odp_copy.c */
int rxe_odp_copy(struct rxe_mr *mr, u64 iova, void *buf, unsigned int length,
		 enum rxe_mr_copy_dir dir);

/* rxe_odp_atomic.c */
enum resp_states rxe_qp_do_atomic_op(struct rxe_qp *qp, struct rxe_mr *mr,
				     u64 iova, int opcode, u64 compare,
				     u64 swap_add, u64 *orig_val);
enum resp_states rxe_qp_do_atomic_write(struct rxe_qp *qp, struct rxe_mr *mr,
					u64 iova, u64 value);
enum resp_states rxe_odp_flush(struct rxe_qp *qp, struct rxe_mr *mr, u64 iova,
			       u64 length);

/* rxe_odp_prefetch.c */
int rxe_odp_advise_mr(struct ib_pd *ibpd,
		      enum ib_uverbs_advise_mr_advice advice, u32 flags,
		      struct ib_sge *sg_list, u32 num_sge,
		      struct uverbs_attr_bundle *attrs);

/* rxe_odp_fault.c */
int rxe_odp_fault_in(struct mm_struct *mm, unsigned long addr, bool write);
int rxe_odp_fault_meet(struct rxe_odp_mr *odp, unsigned long addr, bool write,
		       bool keep, bool locked);
void rxe_odp_fault_accessed(struct rxe_odp_mr *odp, unsigned long addr,
			    unsigned int length, bool write);
struct page *rxe_odp_fault_take_page(struct rxe_odp_mr *odp,
				     unsigned long addr);

/* rxe_odp_wait.c */
bool rxe_odp_req_waits(struct rxe_qp *qp, struct rxe_send_wqe *wqe, int err);
void rxe_odp_req_ends(struct rxe_qp *qp);
bool rxe_odp_take_retry(struct rxe_qp *qp);
bool rxe_odp_comp_waits(struct rxe_qp *qp, struct rxe_pkt_info *pkt, int err);
enum resp_states rxe_odp_resp_state(struct rxe_qp *qp, int err,
				    enum resp_states state);
u64 rxe_odp_flushed(struct rxe_qp *qp);
bool rxe_odp_has_wqe(struct rxe_qp *qp);
void rxe_odp_reset_qp(struct rxe_qp *qp);
void rxe_odp_destroy_qp(struct rxe_qp *qp);

#endif /* RXE_ODP_H */
