// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Tests the MR notification verbs. A table replaces the kernel. The cases check the requests of the
 * verbs, and the result of a verb for each answer. They also check which calls the verbs refuse
 * without asking the kernel.
 */
#include "../mr_notify.c"
#include "../mr_notify_cmd.c"

#include <stdio.h>

/* The fake kernel's next answers, and the last request. The last answer is repeated. */
static const int *answers;
static unsigned int calls;
static struct ib_uverbs_ioctl_hdr asked;
static struct ib_uverbs_attr attrs[7];
static unsigned int num_attrs;
static int failures;

int execute_ioctl(struct ibv_context *context, struct ibv_command_buffer *cmd)
{
	calls++;
	asked = cmd->hdr;
	num_attrs = cmd->next_attr - cmd->hdr.attrs;
	for (unsigned int i = 0; i < num_attrs && i < 7; i++)
		attrs[i] = cmd->hdr.attrs[i];
	return answers[1] == -1 ? *answers : *answers++;
}

/* This program has no cache. */
int mr_cache_make_plain(struct ibv_mr *mr)
{
	return EOPNOTSUPP;
}

/* The last request to register and arm an MR. */
static struct mr_notify_request request;
static struct ibv_mr *registered;

struct ibv_mr *mr_notify_reg_mr(struct ibv_pd *pd, struct mr_notify_request *r)
{
	request = *r;
	errno = registered ? 0 : EPROTONOSUPPORT;
	return registered;
}

#define CHECK(expr) check(expr, #expr, __LINE__)

static void check(bool ok, const char *text, int line)
{
	if (ok)
		return;
	failures++;
	printf("%s:%d: %s\n", __FILE__, line, text);
}

static uint64_t word;
static struct ibv_context context;
static struct verbs_mr vmr = {
	.ibv_mr = { .context = &context, .handle = 0x1234 },
	.mr_type = IBV_MR_TYPE_MR,
};

static int arm(struct ibv_mr *mr)
{
	return ibv_reg_mr_notify(mr, &word);
}

static const struct {
	int (*verb)(struct ibv_mr *mr);
	int method;
	unsigned int num_attrs;
} verbs[] = {
	{ arm, UVERBS_METHOD_MR_NOTIFY_ARM, 2 },
	{ ibv_unreg_mr_notify, UVERBS_METHOD_MR_NOTIFY_DISARM, 1 },
	{ ibv_settle_mr_notify, UVERBS_METHOD_MR_NOTIFY_SETTLE, 1 },
	{ ibv_suspend_mr_notify, UVERBS_METHOD_MR_NOTIFY_SUSPEND, 1 },
};

static const struct {
	int kernel[4];
	int verb;
	unsigned int calls;
} outcomes[] = {
	{ { 0, -1 }, 0, 1 },
	{ { EINVAL, -1 }, EINVAL, 1 },
	{ { EBUSY, -1 }, EBUSY, 1 },
	{ { ENOMEM, -1 }, ENOMEM, 1 },
	{ { EFAULT, -1 }, EFAULT, 1 },
	{ { EOPNOTSUPP, -1 }, EOPNOTSUPP, 1 },
	/* kernels without the methods */
	{ { EPROTONOSUPPORT, -1 }, EOPNOTSUPP, 1 },
	{ { ENOTTY, -1 }, EOPNOTSUPP, 1 },
	{ { ENOSYS, -1 }, EOPNOTSUPP, 1 },
	/* signals */
	{ { EINTR, 0, -1 }, 0, 2 },
	{ { EINTR, EINTR, EBUSY, -1 }, EBUSY, 3 },
};

static void test_outcomes(void)
{
	for (size_t i = 0; i < sizeof(verbs) / sizeof(*verbs); i++)
		for (size_t j = 0; j < sizeof(outcomes) / sizeof(*outcomes); j++) {
			answers = outcomes[j].kernel;
			calls = 0;
			CHECK(verbs[i].verb(&vmr.ibv_mr) == outcomes[j].verb);
			CHECK(calls == outcomes[j].calls);
			CHECK(asked.object_id == UVERBS_OBJECT_MR);
			CHECK(asked.method_id == verbs[i].method);
			CHECK(num_attrs == verbs[i].num_attrs);
			CHECK(attrs[0].attr_id == 0);
			CHECK(attrs[0].data == vmr.ibv_mr.handle);
		}
}

/* The attribute must have the address of the word as its value. */
static void test_word_address(void)
{
	static const int good[] = { 0, -1 };

	answers = good;
	CHECK(arm(&vmr.ibv_mr) == 0);
	CHECK(attrs[1].attr_id == UVERBS_ATTR_MR_NOTIFY_ARM_WORD);
	CHECK(attrs[1].len == sizeof(uint64_t));
	CHECK(attrs[1].data == (uintptr_t)&word);
}

static uint64_t changes;
static const struct ibv_mr_notify_attr all = {
	.comp_mask = IBV_MR_NOTIFY_ATTR_IN_USE | IBV_MR_NOTIFY_ATTR_CHANGES |
		     IBV_MR_NOTIFY_ATTR_EVENT_FD | IBV_MR_NOTIFY_ATTR_IDLE_MS,
	.word = &word,
	.in_use = 0xff00,
	.changes = &changes,
	.event_fd = 7,
	.idle_ms = 500,
};

/* Each field becomes an attribute, and an MR with in_use is reclaimable. */
static void test_attributes(void)
{
	static const int good[] = { 0, -1 };
	static const struct {
		unsigned int id;
		uint64_t data;
	} expected[] = {
		{ UVERBS_ATTR_MR_NOTIFY_ARM_HANDLE, 0x1234 },
		{ UVERBS_ATTR_MR_NOTIFY_ARM_WORD, 0 },
		{ UVERBS_ATTR_MR_NOTIFY_ARM_IN_USE, 0xff00 },
		{ UVERBS_ATTR_MR_NOTIFY_ARM_FLAGS, IB_UVERBS_MR_NOTIFY_ARM_RECLAIM },
		{ UVERBS_ATTR_MR_NOTIFY_ARM_IDLE_MS, 500 },
		{ UVERBS_ATTR_MR_NOTIFY_ARM_CHANGES, 0 },
		{ UVERBS_ATTR_MR_NOTIFY_ARM_EVENT_FD, 7 },
	};

	answers = good;
	CHECK(ibv_reg_mr_notify_ex(&vmr.ibv_mr, &all) == 0);
	CHECK(num_attrs == 7);
	for (size_t i = 0; i < sizeof(expected) / sizeof(*expected); i++) {
		CHECK(attrs[i].attr_id == expected[i].id);
		CHECK(attrs[i].flags & UVERBS_ATTR_F_MANDATORY);
		if (expected[i].data)
			CHECK(attrs[i].data == expected[i].data);
	}
	CHECK(attrs[1].data == (uintptr_t)&word);
	CHECK(attrs[5].data == (uintptr_t)&changes);
}

static void test_reg_notified(void)
{
	struct ibv_pd pd = { .context = &context };

	registered = &vmr.ibv_mr;
	CHECK(ibv_reg_notified_mr(&pd, &changes, 8, 0x1000,
				  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_CACHED,
				  &all) == &vmr.ibv_mr);
	CHECK(request.start == (uintptr_t)&changes && request.length == 8);
	CHECK(request.iova == 0x1000 && request.access == IBV_ACCESS_LOCAL_WRITE);
	CHECK(request.attr == &all && request.word == &word);
	CHECK(request.in_use == 0xff00 && request.reclaims && request.idle_ms == 500);
	registered = NULL;
	errno = 0;
	CHECK(!ibv_reg_notified_mr(&pd, &changes, 8, 0, 0, &all));
	CHECK(errno == EOPNOTSUPP);
	context.cmd_fd = -1;
	registered = &vmr.ibv_mr;
	errno = 0;
	CHECK(!ibv_reg_notified_mr(&pd, &changes, 8, 0, 0, &all));
	CHECK(errno == EOPNOTSUPP);
	context.cmd_fd = 0;
}

static void test_refused_without_asking(void)
{
	static const int good[] = { 0, -1 };
	static const enum ibv_mr_type types[] = {
		IBV_MR_TYPE_NULL_MR, IBV_MR_TYPE_IMPORTED_MR, IBV_MR_TYPE_DMABUF_MR,
	};

	answers = good;
	calls = 0;
	CHECK(ibv_reg_mr_notify(&vmr.ibv_mr, NULL) == EINVAL);
	for (uintptr_t i = 1; i < sizeof(word); i++)
		CHECK(ibv_reg_mr_notify(&vmr.ibv_mr, (void *)((uintptr_t)&word + i)) == EINVAL);
	for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
		struct verbs_mr other = vmr;

		other.mr_type = types[i];
		for (size_t j = 0; j < sizeof(verbs) / sizeof(*verbs); j++)
			CHECK(verbs[j].verb(&other.ibv_mr) == EOPNOTSUPP);
	}
	/* A device may have no kernel driver, as mlx5 over VFIO. */
	context.cmd_fd = -1;
	for (size_t j = 0; j < sizeof(verbs) / sizeof(*verbs); j++)
		CHECK(verbs[j].verb(&vmr.ibv_mr) == EOPNOTSUPP);
	context.cmd_fd = 0;
	CHECK(calls == 0);
}

int main(void)
{
	test_outcomes();
	test_word_address();
	test_attributes();
	test_reg_notified();
	test_refused_without_asking();
	printf("mr_notify_test: %s\n", failures ? "FAILED" : "passed");
	return failures != 0;
}
