/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The threads of a process that has MRs with on-demand paging, see
 * rxe_mem_pool.c.
 */
#ifndef RXE_MEM_POOL_H
#define RXE_MEM_POOL_H

struct rxe_mem_fault;
struct rxe_mem_thread;

struct rxe_mem_pool *rxe_mem_pool_join(void);
void rxe_mem_pool_leave(struct rxe_mem_pool *pool);
void rxe_mem_pool_add(struct rxe_mem_fault *fault);
void rxe_mem_pool_interrupt(struct rxe_mem_thread *thread);

#endif /* RXE_MEM_POOL_H */
