// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Tests how soft-RoCE's provider writes a work request and locks a completion queue. The
 * queues are memory of this program, so no device is opened.
 */
#include "../rxe.c"

#include <stdbool.h>
#include <stdio.h>

#define MOST_INLINE 8
#define CHECK(expr) check(expr, #expr, __LINE__)

static int failures;

static void check(bool ok, const char *text, int line)
{
	if (ok)
		return;
	failures++;
	printf("%s:%d: %s\n", __FILE__, line, text);
}

/* Four elements of 512 bytes. */
static struct {
	struct rxe_queue_buf head;
	uint8_t elements[4][512];
} memory;

static struct rxe_queue_buf *empty_queue(void)
{
	memset(&memory, 0, sizeof(memory));
	memory.head.log2_elem_size = 9;
	memory.head.index_mask = 3;
	return &memory.head;
}

/* Returns a QP that has begun a work request. */
static struct rxe_qp begun(void)
{
	/* The provider logs refused requests to this device. */
	static struct ibv_device device;
	static struct verbs_context context = {
		.context = { .abi_compat = __VERBS_ABI_IS_EXTENDED, .device = &device },
	};
	struct rxe_qp qp = {
		.sq = { .queue = empty_queue(), .max_sge = 4, .max_inline = MOST_INLINE },
		.cur_index = 1,
		.vqp.qp.context = &context.context,
	};

	pthread_spin_init(&qp.sq.lock, PTHREAD_PROCESS_PRIVATE);
	return qp;
}

static struct rxe_send_wqe *first(struct rxe_qp *qp)
{
	return addr_from_index(qp->sq.queue, 0);
}

static void test_elements(void)
{
	const struct ibv_sge elements[] = { { .length = 10 }, { .length = 200 }, { .length = 3 } };
	struct rxe_qp qp = begun();

	wr_set_sge_list(&qp.vqp.qp_ex, 3, elements);
	CHECK(!qp.err);
	CHECK(first(&qp)->dma.num_sge == 3);
	CHECK(first(&qp)->dma.length == 213 && first(&qp)->dma.resid == 213);
	CHECK(first(&qp)->dma.sge[1].length == 200);
}

static void test_inline_data(void)
{
	const struct ibv_data_buf buffers[] = {
		{ .addr = (void *)"abc", .length = 3 },
		{ .addr = (void *)"defg", .length = 4 },
		{ .addr = (void *)"hi", .length = 2 },
	};
	struct rxe_qp qp = begun();

	wr_set_inline_data_list(&qp.vqp.qp_ex, 2, buffers);
	CHECK(!qp.err);
	CHECK(first(&qp)->dma.length == 7 && first(&qp)->dma.resid == 7);
	CHECK(!memcmp(first(&qp)->dma.inline_data, "abcdefg", 7));
	wr_set_inline_data_list(&qp.vqp.qp_ex, 3, buffers);
	CHECK(qp.err == ENOSPC);
	CHECK(!first(&qp)->dma.inline_data[MOST_INLINE]);
}

static bool is_inline(struct rxe_qp *qp)
{
	return first(qp)->wr.send_flags & IBV_SEND_INLINE;
}

/* wr_flags lacks IBV_SEND_INLINE, so the setters of inline data must set the flag. */
static void test_inline_flag(void)
{
	const struct ibv_data_buf buffer = { .addr = (void *)"abc", .length = 3 };
	const struct ibv_sge element = { .length = 10 };
	struct rxe_qp qp = begun();

	wr_set_inline_data(&qp.vqp.qp_ex, (void *)"abc", 3);
	CHECK(is_inline(&qp));
	wr_set_sge(&qp.vqp.qp_ex, 7, 0, 10);
	CHECK(!is_inline(&qp));
	wr_set_inline_data_list(&qp.vqp.qp_ex, 1, &buffer);
	CHECK(is_inline(&qp));
	wr_set_sge_list(&qp.vqp.qp_ex, 1, &element);
	CHECK(!is_inline(&qp));
}

static void test_long_inline_data(void)
{
	struct ibv_sge elements[] = {
		{ .addr = (uintptr_t)"a", .length = 1 },
		{ .addr = (uintptr_t)"b", .length = UINT32_MAX },
		{ .addr = (uintptr_t)"c", .length = 1 },
	};
	struct ibv_send_wr wr = {
		.sg_list = elements, .num_sge = 3,
		.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE,
	};
	struct rxe_qp qp = begun();

	CHECK(post_one_send(&qp, &qp.sq, &wr) == EINVAL);
	wr.num_sge = 1;
	CHECK(post_one_send(&qp, &qp.sq, &wr) == 0);
	CHECK(first(&qp)->dma.length == 1);
}

static bool is_locked(pthread_spinlock_t *lock)
{
	if (pthread_spin_trylock(lock))
		return true;
	pthread_spin_unlock(lock);
	return false;
}

static void test_polling(void)
{
	struct ibv_poll_cq_attr attr = {};
	struct rxe_cq cq = { .queue = empty_queue() };

	pthread_spin_init(&cq.lock, PTHREAD_PROCESS_PRIVATE);
	CHECK(cq_start_poll(&cq.vcq.cq_ex, &attr) == ENOENT);
	CHECK(!is_locked(&cq.lock));
	memory.head.producer_index = 1;
	CHECK(cq_start_poll(&cq.vcq.cq_ex, &attr) == 0);
	CHECK(cq_next_poll(&cq.vcq.cq_ex) == ENOENT);
	CHECK(is_locked(&cq.lock));
	cq_end_poll(&cq.vcq.cq_ex);
	CHECK(!is_locked(&cq.lock));
	CHECK(memory.head.consumer_index == 1);
}

int main(void)
{
	test_elements();
	test_inline_data();
	test_inline_flag();
	test_polling();
	test_long_inline_data();
	printf("rxe_wr_test: %s\n", failures ? "FAILED" : "passed");
	return failures != 0;
}
