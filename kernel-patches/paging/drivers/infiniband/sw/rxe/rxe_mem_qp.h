/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The fault for which a side of a queue pair waits, see rxe_mem_qp.c.
 */
#ifndef RXE_MEM_QP_H
#define RXE_MEM_QP_H

#include "rxe_mem_fault.h"

int rxe_mem_qp_wait(struct rxe_qp *qp, enum rxe_mem_side side, u32 psn);
void rxe_mem_qp_end(struct rxe_qp *qp, enum rxe_mem_side side);
void rxe_mem_qp_leave(struct rxe_qp *qp, enum rxe_mem_side side);

#endif /* RXE_MEM_QP_H */
