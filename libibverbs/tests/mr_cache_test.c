// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Tests how the registration cache affects other verbs. The device is fake. Its provider is a few
 * functions, and its kernel is the ioctl() below. So the cases can cause special faults, for
 * example a command that lacks memory only once. The program also replaces some verbs, as a
 * preloaded library does.
 */
#define _GNU_SOURCE
#include <config.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/cmd_ioctl.h>
#include <infiniband/driver.h>
#include <infiniband/mr_cache.h>
#include <infiniband/mr_notify.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_mr_notify.h>
#include <rdma/ib_user_verbs.h>

#define PAGE 4096
#define IDLE 100
#define QUEUE 4		/* requests that fit into a queue */
#define CACHED (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_CACHED)
#define CHECK(expr) check(expr, #expr, __LINE__)

/* The fake device and kernel of one case. All fields are 0 when the case begins. */
struct fake {
	struct ibv_pd pd;
	uint64_t posted[64];
	unsigned int num_posted;
	unsigned int lacks_memory;	/* how many commands will fail from now on */
	unsigned int interrupted;	/* how many registrations will fail from now on */
	uint64_t refused_command;	/* the first call fails with `refusal` as errno */
	int refusal;
	unsigned int commands_called;	/* calls of refused_command */
	int access_seen;		/* the access that the provider saw last */
	volatile char *tracked;		/* memory of the provider; writing causes SIGSEGV */
	int has_signals;		/* the signals that a registration does not block */
	unsigned int methods_called;
	unsigned int registered;
	unsigned int wrapped;		/* calls of the replaced verbs */
	int max_mr;			/* max_mr of the device */
	uint32_t watched;		/* the handle of the MR whose word is its_word */
	uint64_t its_word;
	sem_t arrived;
	sem_t may_go_on;
	enum { NEVER, IN_PROVIDER, WITH_LOCK } exits;	/* where a handler calls exit() */
	unsigned int *ended;		/* registrations that the kernel ended, also in children */
	bool is_half_done;		/* true inside malloc(), where the heap can't be used */
	unsigned int pinned;		/* VmPin in KiB, if not 0 */
	unsigned int acquired, released;	/* sanitizer calls for the MR @told */
	void *told;
	void *released_last;
};

/* Before the first case, malloc() and pthread_mutex_unlock() below use no_case. */
static struct fake no_case, *fake = &no_case;
static __thread enum { NOWHERE, AT_YIELD, AT_DISARM } waits;	/* where to wait once */
static __thread bool is_cancelled;	/* in malloc() */
static int failures;

static void check(bool ok, const char *text, int line)
{
	if (ok)
		return;
	failures++;
	printf("%s:%d: %s\n", __FILE__, line, text);
}

static int fail(int error)
{
	errno = error;
	return -1;
}

/* Behaves like rdmavt. When the queue becomes full, the requests before that point stay posted. */
static int post_send(const struct ib_uverbs_attr *attrs)
{
	const struct ib_uverbs_post_send *request = (void *)(uintptr_t)attrs[1].data;
	const struct ib_uverbs_send_wr *wr = (const void *)(request + 1);
	struct ib_uverbs_post_send_resp *answer = (void *)(uintptr_t)attrs[2].data;

	for (uint32_t i = 0; i < request->wr_count; i++) {
		if (i == QUEUE) {
			answer->bad_wr = i + 1;
			return fail(ENOMEM);
		}
		fake->posted[fake->num_posted++] = wr[i].wr_id;
	}
	return 0;
}

static void pass(int place)
{
	if (waits != place)
		return;
	waits = NOWHERE;
	sem_post(&fake->arrived);
	sem_wait(&fake->may_go_on);
}

/* Serves the kernel's methods. A registration has at most one word. */
static int notify(const struct ib_uverbs_ioctl_hdr *hdr)
{
	if (hdr->method_id == UVERBS_METHOD_MR_NOTIFY_DISARM)
		pass(AT_DISARM);
	fake->methods_called++;
	if (fake->lacks_memory && fake->lacks_memory--)
		return fail(ENOMEM);
	if (!fake->watched || hdr->attrs[0].data != fake->watched)
		return 0;
	if (hdr->method_id == UVERBS_METHOD_MR_NOTIFY_ARM) {
		if (fake->its_word)
			return fail(EBUSY);
		fake->its_word = hdr->attrs[1].data;
	}
	if (hdr->method_id == UVERBS_METHOD_MR_NOTIFY_DISARM) {
		if (!fake->its_word)
			return fail(EINVAL);
		fake->its_word = 0;
	}
	return 0;
}

/* Replaces libc's function, which the cache calls while it waits for other users. */
int sched_yield(void)
{
	pass(AT_YIELD);
	return syscall(SYS_sched_yield);
}

static void pass_exit(int place)
{
	if (fake->exits != place)
		return;
	fake->exits = NEVER;
	exit(0);
}

int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
	static int (*next)(pthread_mutex_t *);

	if (!next)
		next = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
	pass_exit(WITH_LOCK);
	return next(mutex);
}

void *__libc_malloc(size_t size);

/* Replaces libc's function. A malloc() that writes a log is a cancellation point. */
void *malloc(size_t size)
{
	if (is_cancelled)
		pthread_testcancel();
	if (fake->is_half_done)
		abort();
	return __libc_malloc(size);
}

int ioctl(int fd, unsigned long request, ...)
{
	const struct ib_uverbs_ioctl_hdr *hdr;
	va_list args;

	va_start(args, request);
	hdr = va_arg(args, const void *);
	va_end(args);
	if (hdr->object_id == UVERBS_OBJECT_MR && hdr->method_id == UVERBS_METHOD_MR_DESTROY)
		return (*fake->ended)++, 0;
	if (hdr->object_id == UVERBS_OBJECT_MR)
		return notify(hdr);
	if (hdr->object_id == UVERBS_OBJECT_PD)
		return fake->registered ? fail(EBUSY) : 0;
	if (hdr->object_id & UVERBS_ID_DRIVER_NS)
		return fake->commands_called++ ? 0 : fail(fake->refusal);
	/* The kernel returns this error for a command without a request. */
	if (hdr->num_attrs == 1)
		return fail(ENOSPC);
	if (fake->refused_command && hdr->attrs[0].data == fake->refused_command)
		return fake->commands_called++ ? 0 : fail(fake->refusal);
	return hdr->attrs[0].data == IB_USER_VERBS_CMD_POST_SEND ?
		       post_send(hdr->attrs) :
		       0;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	int (*verb)(struct ibv_mr *) = dlvsym(RTLD_NEXT, "ibv_dereg_mr", "IBVERBS_1.1");

	fake->wrapped++;
	return verb(mr);
}

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
		 int access)
{
	int (*verb)(struct ibv_mr *, int, struct ibv_pd *, void *, size_t, int) =
		dlvsym(RTLD_NEXT, "ibv_rereg_mr", "IBVERBS_1.1");

	fake->wrapped++;
	return verb(mr, flags, pd, addr, length, access);
}

/* Handles SIGSEGV, like a heap that tracks writes. */
static void may_write(int number)
{
	mprotect((void *)fake->tracked, PAGE, PROT_READ | PROT_WRITE);
}

static void write_tracked(void)
{
	sigset_t blocked;

	if (!fake->tracked)
		return;
	fake->has_signals = 0;
	pthread_sigmask(SIG_BLOCK, NULL, &blocked);
	for (int number = 1; number < 32; number++)
		fake->has_signals |= !sigismember(&blocked, number) << number;
	*fake->tracked = 1;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length,
			     uint64_t iova, int access)
{
	static uint32_t handles;
	struct verbs_mr *vmr;

	if (fake->interrupted) {
		fake->interrupted--;
		errno = EINTR;
		return NULL;
	}
	fake->access_seen = access;
	write_tracked();
	pass_exit(IN_PROVIDER);
	vmr = calloc(1, sizeof(*vmr));
	vmr->ibv_mr.handle = ++handles;
	vmr->mr_type = IBV_MR_TYPE_MR;
	fake->registered++;
	return &vmr->ibv_mr;
}

static int dereg_mr(struct verbs_mr *vmr)
{
	free(vmr);
	fake->registered--;
	return 0;
}

static int rereg_mr(struct verbs_mr *vmr, int flags, struct ibv_pd *pd,
		    void *addr, size_t length, int access)
{
	fake->access_seen = access;
	return 0;
}

static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset,
				    size_t length, uint64_t iova, int fd,
				    int access)
{
	return reg_mr(pd, NULL, length, iova, access);
}

static int query_device_ex(struct ibv_context *context,
			   const struct ibv_query_device_ex_input *input,
			   struct ibv_device_attr_ex *attr, size_t size)
{
	memset(attr, 0, size);
	attr->orig_attr.device_cap_flags = IBV_DEVICE_MR_NOTIFY;
	attr->orig_attr.max_mr = fake->max_mr;
	return 0;
}

static struct ibv_pd *import_pd(struct ibv_context *context, uint32_t handle)
{
	static struct ibv_pd pd;

	pd = (struct ibv_pd){ .context = context, .handle = handle };
	return &pd;
}

/* Frees the struct of an import, as mlx5 does. */
static void unimport_mr(struct ibv_mr *mr)
{
	free(verbs_get_mr(mr));
}

static struct verbs_device device = {
	.core_support = IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS,
};
static struct verbs_device second_device = {
	.core_support = IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS,
};

static struct ibv_context *open_this(struct verbs_device *of)
{
	static const struct verbs_context_ops ops = {
		.dealloc_pd = ibv_cmd_dealloc_pd,
		.dereg_mr = dereg_mr,
		.import_pd = import_pd,
		.query_device_ex = query_device_ex,
		.reg_mr = reg_mr,
		.unimport_mr = unimport_mr,
	};
	struct context {
		struct verbs_context verbs;
	} *context = verbs_init_and_alloc_context(&of->device,
						  open("/dev/null", O_RDWR),
						  context, verbs, 0);

	verbs_set_ops(&context->verbs, &ops);
	return &context->verbs.context;
}

static struct ibv_context *open_device(void)
{
	return open_this(&device);
}

static struct ibv_context *open_device_that_reregisters(void)
{
	static const struct verbs_context_ops ops = {
		.reg_dmabuf_mr = reg_dmabuf_mr,
		.rereg_mr = rereg_mr,
	};
	struct ibv_context *context = open_device();

	verbs_set_ops(verbs_get_ctx(context), &ops);
	return context;
}

static struct ibv_mr *reg_page(struct ibv_pd *pd, unsigned int nth, unsigned int access)
{
	static char *memory;

	if (!memory)
		memory = mmap(NULL, 2 * IDLE * PAGE, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return ibv_reg_mr(pd, memory + 2 * nth * PAGE, PAGE, access);
}

static void fill_cache(struct ibv_pd *pd)
{
	for (unsigned int i = 0; i < IDLE; i++)
		ibv_dereg_mr(reg_page(pd, i, CACHED));
}

static struct ibv_mr_cache_stats stats(struct ibv_context *context)
{
	struct ibv_mr_cache_stats now = {};

	CHECK(ibv_query_mr_cache(context, &now) == 0);
	return now;
}

/* The library sends an unknown command to each new context. This must not evict entries. */
static void test_another_context(struct ibv_pd *pd)
{
	fill_cache(pd);
	open_device();
	CHECK(stats(pd->context).entries == IDLE);
	CHECK(stats(pd->context).evictions == 0);
}

static void test_full_queue(struct ibv_pd *pd)
{
	struct ibv_qp qp = { .context = pd->context, .qp_type = IBV_QPT_RC };
	struct ibv_send_wr wr[QUEUE + 2] = {};
	struct ibv_send_wr *bad = NULL;

	fill_cache(pd);
	for (unsigned int i = 0; i < QUEUE + 2; i++) {
		wr[i].wr_id = i;
		wr[i].opcode = IBV_WR_SEND;
		wr[i].next = i + 1 < QUEUE + 2 ? &wr[i + 1] : NULL;
	}
	CHECK(ibv_cmd_post_send(&qp, wr, &bad) == ENOMEM);
	CHECK(bad == &wr[QUEUE]);
	CHECK(fake->num_posted == QUEUE);
	for (unsigned int i = 0; i < QUEUE; i++)
		CHECK(fake->posted[i] == i);
	CHECK(stats(pd->context).entries == IDLE);
}

/* If arming a word of the program lacks memory, the library evicts idle registrations. */
static void test_room_for_a_word(struct ibv_pd *pd)
{
	int (*const verbs[])(struct ibv_mr *) = { ibv_settle_mr_notify,
						  ibv_unreg_mr_notify };
	struct ibv_mr *mr = reg_page(pd, 0, IBV_ACCESS_LOCAL_WRITE |
						    IBV_ACCESS_REMOTE_WRITE);
	uint64_t word = 0;

	fill_cache(pd);
	fake->lacks_memory = 1;
	CHECK(ibv_reg_mr_notify(mr, &word) == 0);
	CHECK(stats(pd->context).entries < IDLE);
	for (unsigned int i = 0; i < 2; i++) {
		fill_cache(pd);
		fake->lacks_memory = 1;
		CHECK(verbs[i](mr) == 0);
		CHECK(stats(pd->context).entries < IDLE);
	}
	/* After some attempts the library gives up. */
	fill_cache(pd);
	fake->lacks_memory = UINT32_MAX;
	fake->methods_called = 0;
	CHECK(ibv_reg_mr_notify(mr, &word) == ENOMEM);
	CHECK(stats(pd->context).entries == 0);
	CHECK(fake->methods_called < 40);
	fake->lacks_memory = 0;
	ibv_dereg_mr(mr);
}

/* An MR with a rounded range can't get more rights. An MR with a new translation is not rounded. */
static void test_rounded_no_more(struct ibv_pd *pd)
{
	static char from[3 * PAGE];
	struct ibv_mr *mr = ibv_reg_mr(pd, from + 8, 100, IBV_ACCESS_LOCAL_WRITE);
	const int more = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, more) ==
	      IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, from + PAGE + 8,
			   100, 0) == 0);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, more) == 0);
	ibv_dereg_mr(mr);
}

/* A signal interrupts the first arming of an address space. */
static void test_interrupted(struct ibv_pd *pd)
{
	void *buffer = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr;

	fake->interrupted = 2;
	mr = ibv_reg_mr(pd, buffer, PAGE, CACHED);
	CHECK(mr != NULL && fake->interrupted == 0);
	CHECK(ibv_is_reg(pd, buffer, PAGE, CACHED) == 1);
	CHECK(ibv_dereg_mr(mr) == 0);
	munmap(buffer, PAGE);
}

/* A repeated registration runs the provider and the program's hooks with signals blocked. */
static void test_interrupted_with_faults(struct ibv_pd *pd)
{
	const int own = 1 << SIGSEGV | 1 << SIGBUS | 1 << SIGFPE | 1 << SIGILL | 1 << SIGTRAP |
			1 << SIGSYS;
	struct sigaction action = { .sa_handler = may_write };
	struct sigaction before;
	void *buffer = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr;

	fake->tracked = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	sigaction(SIGSEGV, &action, &before);
	fake->interrupted = 1;
	mr = ibv_reg_mr(pd, buffer, PAGE, CACHED);
	CHECK(mr != NULL && *fake->tracked == 1);
	/* SIGKILL and SIGSTOP can't be blocked. */
	CHECK(fake->has_signals == (own | 1 << SIGKILL | 1 << SIGSTOP));
	CHECK(ibv_dereg_mr(mr) == 0);
	sigaction(SIGSEGV, &before, NULL);
	munmap((void *)fake->tracked, PAGE);
	munmap(buffer, PAGE);
}

/* The cache registers and deregisters without the verbs that the program replaces. */
static void test_wrapped_verbs(struct ibv_pd *pd)
{
	struct ibv_mr_cache_limits few = { .max_bytes = UINT64_MAX, .max_entries = 4 };
	struct ibv_pd other = { .context = open_device() };
	struct ibv_mr_cache_limits usual;
	static char from[2 * PAGE];
	struct ibv_mr *mr;

	fill_cache(pd);
	fake->wrapped = 0;
	CHECK(ibv_reg_mr_limits(pd->context, &few, &usual) == 0);
	CHECK(stats(pd->context).entries == few.max_entries);
	CHECK(fake->wrapped == 0);
	fill_cache(pd);
	CHECK(stats(pd->context).entries == few.max_entries);
	CHECK(fake->wrapped == IDLE);
	CHECK(ibv_reg_mr_limits(pd->context, &usual, NULL) == 0);

	/* Arming the new MR fails. */
	fake->lacks_memory = UINT32_MAX;
	mr = reg_page(pd, 0, CACHED);
	CHECK(fake->lacks_memory < UINT32_MAX && fake->wrapped == IDLE);
	fake->lacks_memory = 0;
	ibv_dereg_mr(mr);

	fake->wrapped = 0;
	mr = ibv_reg_mr(pd, from + 8, 100, IBV_ACCESS_LOCAL_WRITE);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == 0);
	CHECK(fake->wrapped == 1);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, from + PAGE, 100, 0) == 0);
	CHECK(fake->wrapped == 2);
	ibv_dereg_mr(mr);

	/* This provider has no rereg_mr. */
	mr = reg_page(&other, 0, IBV_ACCESS_LOCAL_WRITE);
	fake->wrapped = 0;
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) ==
	      IBV_REREG_MR_ERR_CMD);
	CHECK(errno == EOPNOTSUPP);
	CHECK(fake->wrapped == 1);
	ibv_dereg_mr(mr);
	CHECK(ibv_reg_mr_clean(other.context, 0) == 0);
}

struct arming {
	struct ibv_mr *mr;
	uint64_t word;
	int waits;
	int ret;
	pthread_t thread;
};

static void *arm(void *arg)
{
	struct arming *mine = arg;

	waits = mine->waits;
	mine->ret = ibv_reg_mr_notify(mine->mr, &mine->word);
	return NULL;
}

/* Another thread begins to arm @mr, and stops at @until. */
static void begin_to_arm(struct arming *other, struct ibv_mr *mr, int until)
{
	fake->watched = mr->handle;
	fake->its_word = 1;
	*other = (struct arming){ .mr = mr, .waits = until };
	pthread_create(&other->thread, NULL, arm, other);
	sem_wait(&fake->arrived);
}

/* Returns the result of the other thread, or -1 if the thread hangs. */
static int end_of_arming(struct arming *other)
{
	struct timespec limit;

	sem_post(&fake->may_go_on);
	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += 180;
	return pthread_timedjoin_np(other->thread, NULL, &limit) ? -1 : other->ret;
}

/* If two threads arm an MR that was cached, one thread succeeds, as with any other MR. */
static void test_two_arm(struct ibv_pd *pd)
{
	struct ibv_mr *mr = reg_page(pd, 0, IBV_ACCESS_LOCAL_WRITE);
	/* These are static, because a hanging thread may still use them after the test. */
	static struct arming other;
	static uint64_t word;
	int ret;

	/* The other thread has taken the MR, and disarms the cache's word. */
	begin_to_arm(&other, mr, AT_DISARM);
	ret = ibv_reg_mr_notify(mr, &word);
	CHECK(ret == EBUSY);
	if (ret == EBUSY) {
		CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) ==
		      IBV_REREG_MR_ERR_INPUT);
		CHECK(ibv_unreg_mr_notify(mr) == EINVAL);
		CHECK(ibv_settle_mr_notify(mr) == EINVAL);
		CHECK(ibv_dereg_mr(mr) == EINVAL);
		CHECK(ibv_forget_mr(mr) == EINVAL);
	}
	ret = end_of_arming(&other);
	CHECK(ret == 0);
	CHECK(fake->its_word == (uintptr_t)&other.word);
	if (ret < 0)
		return;
	CHECK(ibv_reg_mr_notify(mr, &word) == EBUSY);
	CHECK(ibv_dereg_mr(mr) == 0);

	/* The other thread waits for a second user, and meanwhile this thread takes the MR. */
	mr = reg_page(pd, 0, IBV_ACCESS_LOCAL_WRITE);
	CHECK(reg_page(pd, 0, IBV_ACCESS_LOCAL_WRITE) == mr);
	begin_to_arm(&other, mr, AT_YIELD);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_reg_mr_notify(mr, &word) == 0);
	ret = end_of_arming(&other);
	CHECK(ret == EBUSY);
	CHECK(fake->its_word == (uintptr_t)&word);
	if (ret < 0)
		return;
	CHECK(ibv_dereg_mr(mr) == 0);

	/* If disarming an MR fails, the MR stays cached, and the program may try again. */
	mr = reg_page(pd, 0, IBV_ACCESS_LOCAL_WRITE);
	fake->watched = mr->handle;
	fake->its_word = 0;
	CHECK(ibv_reg_mr_notify(mr, &word) == EINVAL);
	CHECK(ibv_settle_mr_notify(mr) == EINVAL);
	fake->its_word = 1;
	CHECK(ibv_reg_mr_notify(mr, &word) == 0);
	CHECK(fake->its_word == (uintptr_t)&word);
	CHECK(ibv_dereg_mr(mr) == 0);
}

/*
 * A child fills the cache of @by, or of its own context if @by is NULL. If @where is set, the child
 * exits there while it registers a buffer. Returns how many registrations end with the child.
 */
static unsigned int child_ends(struct ibv_pd *by, int where, int by_exit)
{
	struct ibv_pd *pd = by, own;
	int status = -1;
	pid_t child;

	*fake->ended = 0;
	fflush(stdout);
	child = fork();
	if (!child) {
		alarm(180);
		if (!by) {
			own.context = open_device();
			pd = &own;
		}
		fill_cache(pd);
		reg_page(pd, 0, CACHED);
		fake->exits = where;
		if (where)
			ibv_reg_mr(pd, &status, sizeof(status), CACHED);
		if (by_exit)
			exit(0);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return *fake->ended;
}

/*
 * exit() must not call a provider that is inside a call, or whose destructor has run. If the thread
 * that exits holds the lock, the lock stays locked.
 */
static void test_child_ends(struct ibv_pd *pd)
{
	const unsigned int before = stats(pd->context).entries;

	CHECK(child_ends(pd, NEVER, 1) == IDLE - 1);
	CHECK(child_ends(pd, NEVER, 0) == 0);
	CHECK(child_ends(pd, IN_PROVIDER, 1) == IDLE - 1);
	CHECK(child_ends(pd, WITH_LOCK, 1) == 0);
	/* If the child opened the device, as a daemon does, the kernel ends its registrations. */
	CHECK(child_ends(NULL, NEVER, 1) == 0);
	fflush(stdout);
	if (!fork())
		exit(0);
	wait(NULL);
	CHECK(*fake->ended == 0);
	CHECK(stats(pd->context).entries == before);
}

/* If a PD is in use, freeing it fails, and idle registrations of other contexts stay. */
static void test_busy_pd(struct ibv_pd *pd)
{
	struct ibv_pd other = { .context = open_device() };

	fill_cache(&other);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(stats(other.context).entries == IDLE);
	CHECK(ibv_reg_mr_clean(other.context, 0) == 0);
}

/* ibv_import_pd() makes a second struct ibv_pd for the PD. */
static void test_pd_with_two_names(struct ibv_pd *pd)
{
	struct ibv_pd *imported = ibv_import_pd(pd->context, pd->handle);
	struct ibv_pd other = { .context = open_this(&second_device) };
	struct ibv_mr *mr;

	fill_cache(imported);
	CHECK(ibv_dealloc_pd(pd) == 0);
	CHECK(fake->registered == 0);
	mr = reg_page(imported, 0, CACHED);
	fill_cache(&other);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(fake->registered == IDLE + 1);
	ibv_dereg_mr(mr);
	/* Registrations of another device can't use the PD. */
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(stats(other.context).entries == IDLE);
	CHECK(ibv_reg_mr_clean(other.context, 0) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
}

/* A user of a shared MR may end it by ibv_unimport_mr(), even without an import. */
static void test_unimport(struct ibv_pd *pd)
{
	struct ibv_mr *mr;

	mr = reg_page(pd, 0, CACHED);
	ibv_unimport_mr(mr);
	CHECK(fake->registered == 1);
	CHECK(reg_page(pd, 0, CACHED) == mr);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_reg_mr_clean(pd->context, 0) == 0);
	CHECK(fake->registered == 0);
}

/* Numbers are decimal, or hexadecimal with 0x. Other text is ignored. Each new context reads the
 * numbers. */
static void test_numbers(struct ibv_pd *pd)
{
	static const struct {
		const char *text;
		uint64_t entries;
	} numbers[] = {
		{ "10", 10 },	{ "010", 10 },	   { "09", 9 },
		{ "0x10", 16 }, { "0X1f", 0x1f },  { "0", 0 },
		{ "10k", 10240 }, { "512M", 512 << 20 }, { "0x1G", 1 << 30 },
		{ "1T", 1ULL << 40 }, { "0K", 0 },
		{ "", 65536 },	{ "0x", 65536 },   { "10kB", 65536 },
		{ "-1", 65536 }, { "18446744073709551616", 65536 },
		{ "16777216T", 65536 }, { "many", 65536 }, { "1.5G", 65536 },
	};

	fprintf(stderr, "mr_cache_test: a typo is told here, as it must be:\n");
	for (unsigned int i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
		struct ibv_mr_cache_limits limits = {};

		setenv("RDMAV_MR_CACHE_MAX_ENTRIES", numbers[i].text, 1);
		CHECK(ibv_reg_mr_limits(open_device(), NULL, &limits) == 0);
		CHECK(limits.max_entries == numbers[i].entries);
		if (limits.max_entries != numbers[i].entries)
			printf("\"%s\"\n", numbers[i].text);
	}
	unsetenv("RDMAV_MR_CACHE_MAX_ENTRIES");
}

/* Calls the verbs like programs that were built with smaller or larger structs. */
static void test_other_structs(struct ibv_pd *pd)
{
	int (*query)(struct ibv_context *, void *) =
		dlvsym(RTLD_DEFAULT, "ibv_query_mr_cache", "MRNOTIFY_1.0");
	int (*limit)(struct ibv_context *, void *, void *) =
		dlvsym(RTLD_DEFAULT, "ibv_reg_mr_limits", "MRNOTIFY_1.0");
	struct {
		struct {
			uint64_t hits, misses, suspects, invalidations,
				evictions, bytes, entries;
		} stats;
		uint64_t canary;
	} old = { .canary = 1 };
	struct {
		uint64_t max_bytes, max_entries, canary;
	} bounds = { .canary = 2 };
	struct {
		struct ibv_mr_cache_stats stats;
		uint64_t later, canary;
	} newer = { .later = 3, .canary = 4 };
	struct {
		struct ibv_mr_cache_limits limits;
		uint64_t later, canary;
	} wide = { .later = 5, .canary = 6 };
	struct ibv_mr_cache_stats now;

	fill_cache(pd);
	now = stats(pd->context);
	CHECK(now.entries == IDLE);
	CHECK(query(pd->context, &old.stats) == 0);
	CHECK(old.stats.hits == now.hits && old.stats.entries == IDLE);
	CHECK(old.canary == 1);
	CHECK(query(pd->context, NULL) == EINVAL);
	CHECK(limit(pd->context, NULL, &bounds) == 0);
	CHECK(bounds.max_bytes && bounds.max_entries && bounds.canary == 2);
	CHECK(limit(pd->context, &bounds, NULL) == 0);

	CHECK(_ibv_query_mr_cache(pd->context, &newer.stats,
				  offsetof(typeof(newer), canary)) == 0);
	CHECK(newer.stats.restorations == now.restorations &&
	      newer.stats.entries == IDLE);
	CHECK(newer.later == 0 && newer.canary == 4);
	CHECK(_ibv_reg_mr_limits(pd->context, NULL, &wide.limits,
				 offsetof(typeof(wide), canary)) == 0);
	CHECK(wide.limits.max_entries == bounds.max_entries);
	CHECK(wide.later == 0 && wide.canary == 6);
	CHECK(_ibv_reg_mr_limits(pd->context, &wide.limits, NULL,
				 offsetof(typeof(wide), canary)) == 0);
	/* The program sets a limit that this library does not know. */
	wide.later = 1;
	CHECK(_ibv_reg_mr_limits(pd->context, &wide.limits, NULL,
				 offsetof(typeof(wide), canary)) == EINVAL);
	CHECK(_ibv_reg_mr_limits(pd->context, NULL, &wide.limits, 8) == EINVAL);
}

static int execute(struct ibv_context *context, uint64_t command)
{
	struct {
		uint64_t request, answer;
	} none = {};
	DECLARE_COMMAND_BUFFER(cmd, UVERBS_OBJECT_DEVICE,
			       UVERBS_METHOD_INVOKE_WRITE, 2);

	fill_attr_const_in(cmd, UVERBS_ATTR_WRITE_CMD, command);
	fill_attr_in(cmd, UVERBS_ATTR_CORE_IN, &none, sizeof(none));
	fake->refused_command = command;
	fake->commands_called = 0;
	return execute_ioctl(context, cmd);
}

/* Runs @what in a child with its standard error in a file. Returns the child's status. */
static int in_child(int (*what)(void), char *said, size_t size)
{
	const int file = memfd_create("stderr", 0);
	int status = -1;
	ssize_t length;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (!child) {
		dup2(file, STDERR_FILENO);
		failures = 0;
		status = what();
		fflush(stdout);
		_exit(failures ? -1 : status);
	}
	CHECK(waitpid(child, &status, 0) == child);
	length = pread(file, said, size - 1, 0);
	said[length > 0 ? length : 0] = '\0';
	close(file);
	return status;
}

int open(const char *path, int flags, ...)
{
	mode_t mode = 0;
	va_list args;
	int file;

	if (fake->pinned && !strcmp(path, "/proc/self/status")) {
		file = memfd_create("status", 0);
		dprintf(file, "VmPin: %u kB\n", fake->pinned);
		lseek(file, 0, SEEK_SET);
		return file;
	}
	if (flags & O_CREAT) {
		va_start(args, flags);
		mode = va_arg(args, mode_t);
		va_end(args);
	}
	return openat(AT_FDCWD, path, flags, mode);
}

static int execute_registration(struct ibv_context *context, uint64_t length)
{
	struct ib_uverbs_reg_mr reg = { .length = length };
	DECLARE_COMMAND_BUFFER(cmd, UVERBS_OBJECT_DEVICE,
			       UVERBS_METHOD_INVOKE_WRITE, 2);

	fill_attr_const_in(cmd, UVERBS_ATTR_WRITE_CMD, IB_USER_VERBS_CMD_REG_MR);
	fill_attr_in(cmd, UVERBS_ATTR_CORE_IN, &reg, sizeof(reg));
	fake->refused_command = IB_USER_VERBS_CMD_REG_MR;
	fake->refusal = ENOMEM;
	fake->commands_called = 0;
	return execute_ioctl(context, cmd);
}

static int register_too_much(void)
{
	const struct rlimit limit = { 8 << 20, 8 << 20 };
	struct ibv_pd pd = { .context = open_device() };

	if (!getuid()) {
		/* Asks for more memory than the machine has. */
		fill_cache(&pd);
		CHECK(execute_registration(pd.context, 1ULL << 60) == ENOMEM);
		CHECK(fake->commands_called == 1);
		CHECK(stats(pd.context).entries == IDLE);
	}
	if (setrlimit(RLIMIT_MEMLOCK, &limit) || (!getuid() && setuid(65534)))
		return -1;
	fill_cache(&pd);
	CHECK(execute_registration(pd.context, 64 << 20) == ENOMEM);
	CHECK(fake->commands_called == 1);
	CHECK(stats(pd.context).entries == IDLE);
	/* Memory that is pinned, but not idle, leaves no room. */
	fake->pinned = 6 << 10;
	CHECK(execute_registration(pd.context, 4 << 20) == ENOMEM);
	CHECK(fake->commands_called == 1);
	CHECK(stats(pd.context).entries == IDLE);
	fake->pinned = 4 << 10;
	CHECK(execute_registration(pd.context, 4 << 20) == 0);
	CHECK(fake->commands_called == 2);
	CHECK(stats(pd.context).entries < IDLE);
	return 0;
}

/* If a registration can never fit, the cache does not evict idle registrations for it. */
static void test_hopeless(struct ibv_pd *pd)
{
	char said[1000];

	CHECK(in_child(register_too_much, said, sizeof(said)) == 0);
}

/* EAGAIN is a shortage only for commands that make an object. */
static void test_no_shortage(struct ibv_pd *pd)
{
	DECLARE_COMMAND_BUFFER(cmd, UVERBS_ID_DRIVER_NS,
			       UVERBS_ID_DRIVER_NS, 1);

	fake->refusal = EAGAIN;
	fill_cache(pd);
	CHECK(execute(pd->context, IB_USER_VERBS_CMD_OPEN_XRCD) == EAGAIN);
	CHECK(fake->commands_called == 1);
	CHECK(stats(pd->context).entries == IDLE);
	fake->commands_called = 0;
	fill_attr_in_uint64(cmd, UVERBS_ID_DRIVER_NS, 1);
	CHECK(execute_ioctl(pd->context, cmd) == EAGAIN);
	CHECK(fake->commands_called == 1);
	CHECK(stats(pd->context).entries == IDLE);

	CHECK(execute(pd->context, IB_USER_VERBS_CMD_CREATE_CQ) == 0);
	CHECK(fake->commands_called == 2);
	CHECK(stats(pd->context).entries < IDLE);
	fill_cache(pd);
	CHECK(execute(pd->context, IB_USER_VERBS_CMD_FLAG_EXTENDED |
					   IB_USER_VERBS_EX_CMD_CREATE_WQ) == 0);
	CHECK(fake->commands_called == 2);
}

/* Other verbs and on-demand paging are not cached. The provider does not get IBV_ACCESS_CACHED. */
static void test_flag_of_others(struct ibv_pd *pd)
{
	struct ibv_mr *mr = reg_page(pd, 0, IBV_ACCESS_LOCAL_WRITE |
						    IBV_ACCESS_REMOTE_WRITE);

	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
			   CACHED) == 0);
	CHECK(fake->access_seen == IBV_ACCESS_LOCAL_WRITE);
	ibv_dereg_mr(mr);
	fake->access_seen = 0;
	mr = ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, 0, CACHED);
	CHECK(fake->access_seen == IBV_ACCESS_LOCAL_WRITE);
	ibv_dereg_mr(mr);
	mr = reg_page(pd, 0, CACHED | IBV_ACCESS_ON_DEMAND);
	CHECK(fake->access_seen == (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND));
	ibv_dereg_mr(mr);
}

static int open_with_typos(void)
{
	setenv("RDMAV_MR_CACHE_MAX_BYTES", "lots", 1);
	setenv("RDMAV_MR_CACHE_MAX_ENTRIES", "1G", 1);
	setenv("RDMAV_MR_CACHE_RECLAIM", "no", 1);
	setenv("RDMAV_MR_CACHE_STATS", "", 1);
	for (int i = 0; i < 3; i++)
		if (ibv_reg_mr_limits(open_device(), NULL, NULL))
			return 1;
	return 0;
}

/* Each typo is reported once. */
static void test_typos(struct ibv_pd *pd)
{
	char said[1000];

	CHECK(in_child(open_with_typos, said, sizeof(said)) == 0);
	CHECK(!strcmp(said,
		      "libibverbs: RDMAV_MR_CACHE_MAX_BYTES=lots is not understood and ignored: it may be a number, with K, M, G or T behind it\n"
		      "libibverbs: RDMAV_MR_CACHE_RECLAIM=no is not understood and ignored: it may be 0 or 1\n"));
}

static int exit_with_a_report(void)
{
	struct ibv_pd pd;

	setenv("RDMAV_MR_CACHE_STATS", "1", 1);
	pd.context = open_device();
	ibv_dereg_mr(reg_page(&pd, 0, CACHED));
	fake->is_half_done = true;
	exit(0);
}

/* exit() may run in a signal handler inside malloc(). */
static void test_report_allocates_nothing(struct ibv_pd *pd)
{
	char said[1000];

	CHECK(in_child(exit_with_a_report, said, sizeof(said)) == 0);
	CHECK(strstr(said, ": 0 hits, 1 misses, "));
}

/* Counts entries as an ordinary user. If RLIMIT_MEMLOCK is below 1 MiB, the cache is off. */
static int count_entries(rlim_t lockable)
{
	const struct rlimit limit = { lockable, lockable };
	struct ibv_pd pd = { .context = open_device() };
	struct ibv_mr_cache_stats now = {};

	if (setrlimit(RLIMIT_MEMLOCK, &limit) || (!getuid() && setuid(65534)))
		return -1;
	ibv_dereg_mr(reg_page(&pd, 0, CACHED));
	return ibv_query_mr_cache(pd.context, &now) ? EOPNOTSUPP :
						      (int)now.entries;
}

static int count_with_little(void)
{
	return count_entries((1 << 20) - 1);
}

static int count_with_enough(void)
{
	return count_entries(1 << 20);
}

static void test_little_to_lock(struct ibv_pd *pd)
{
	char said[1000];
	int status;

	status = in_child(count_with_little, said, sizeof(said));
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == EOPNOTSUPP);
	status = in_child(count_with_enough, said, sizeof(said));
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
}

static uint64_t first_entries(int of_device)
{
	struct ibv_mr_cache_limits limits = {};

	fake->max_mr = of_device;
	CHECK(ibv_reg_mr_limits(open_device(), NULL, &limits) == 0);
	return limits.max_entries;
}

/* If a device has few MRs, the cache leaves most of them to other users. */
static void test_few_mrs(struct ibv_pd *pd)
{
	CHECK(first_entries(1 << 20) == 65536);
	CHECK(first_entries(INT_MAX) == 65536);
	CHECK(first_entries(-1) == 65536);
	CHECK(first_entries(16000) == 1000);
	CHECK(first_entries(1) == 1);
	setenv("RDMAV_MR_CACHE_MAX_ENTRIES", "65536", 1);
	CHECK(first_entries(16000) == 65536);
	setenv("RDMAV_MR_CACHE_MAX_ENTRIES", "0xffffffffffffffff", 1);
	CHECK(first_entries(16000) == UINT64_MAX);
	setenv("RDMAV_MR_CACHE_MAX_ENTRIES", "0", 1);
	CHECK(first_entries(16000) == 0);
	setenv("RDMAV_MR_CACHE_MAX_ENTRIES", "many", 1);
	CHECK(first_entries(16000) == 1000);
	unsetenv("RDMAV_MR_CACHE_MAX_ENTRIES");
}

/* A program may look at errno after a later call that succeeds. */
static void test_errno_stays(struct ibv_pd *pd)
{
	const unsigned int ways[] = { CACHED, CACHED, IBV_ACCESS_REMOTE_READ,
				      IBV_ACCESS_CACHED };
	struct ibv_mr_cache_limits limits, none = {};

	for (unsigned int i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
		struct ibv_mr *mr;

		errno = ESTALE;
		mr = reg_page(pd, 0, ways[i]);
		CHECK(mr && errno == ESTALE);
		CHECK(ibv_dereg_mr(mr) == 0 && errno == ESTALE);
	}
	/* With limits of 0 the cache refuses the request, and a plain registration succeeds. */
	CHECK(ibv_reg_mr_limits(pd->context, NULL, &limits) == 0);
	CHECK(ibv_reg_mr_limits(pd->context, &none, NULL) == 0);
	errno = ESTALE;
	CHECK(ibv_dereg_mr(reg_page(pd, 0, CACHED)) == 0 && errno == ESTALE);
	CHECK(ibv_reg_mr_limits(pd->context, &limits, NULL) == 0);
}

#ifdef SANITIZED
/* ThreadSanitizer's functions, which libibverbs looks up in the program. */
void __tsan_acquire(void *of);
void __tsan_release(void *of);

void __tsan_acquire(void *of)
{
	fake->acquired += of == fake->told;
}

void __tsan_release(void *of)
{
	fake->released += of == fake->told;
	fake->released_last = of;
}

/* The cache reports to the sanitizer that each use is between the registration and the free(). */
static void test_thread_sanitizer(struct ibv_pd *pd)
{
	fake->told = reg_page(pd, 0, CACHED);
	CHECK(fake->released_last == fake->told);
	fake->acquired = 0;
	for (unsigned int times = 1; times < 4; times++) {
		CHECK(reg_page(pd, 0, CACHED) == fake->told);
		CHECK(fake->acquired == times);
	}
	for (unsigned int times = 1; times < 5; times++) {
		CHECK(ibv_dereg_mr(fake->told) == 0);
		CHECK(fake->acquired == 3 && fake->released == times);
	}
	CHECK(ibv_reg_mr_clean(pd->context, 0) == 0);
	CHECK(fake->acquired == 4);
}
#else
static void test_thread_sanitizer(struct ibv_pd *pd)
{
}
#endif

static void *register_cancelled(void *arg)
{
	struct ibv_mr *whole = arg;
	struct ibv_mr *part;

	pthread_cancel(pthread_self());
	is_cancelled = true;
	part = ibv_reg_mr(whole->pd, whole->addr, PAGE / 2, CACHED);
	is_cancelled = false;
	CHECK(ibv_dereg_mr(part) == 0);
	pthread_testcancel();
	return NULL;
}

/* If a thread is cancelled in ibv_reg_mr(), the thread gets the MR or leaves no reference. */
static void test_cancelled(struct ibv_pd *pd)
{
	struct ibv_mr *mr;
	pthread_t thread;
	void *result;

	mr = reg_page(pd, 0, CACHED);
	CHECK(pthread_create(&thread, NULL, register_cancelled, mr) == 0);
	CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_reg_mr_clean(pd->context, 0) == 0);
	CHECK(stats(pd->context).entries == 0);
}

static void run_case(void (*test)(struct ibv_pd *pd))
{
	fake = calloc(1, sizeof(*fake)); /* not freed, because a hanging thread may use it */
	fake->ended = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	sem_init(&fake->arrived, 0, 0);
	sem_init(&fake->may_go_on, 0, 0);
	fake->pd.context = open_device_that_reregisters();
	test(&fake->pd);
	CHECK(ibv_reg_mr_clean(fake->pd.context, 0) == 0);
	CHECK(fake->registered == 0);
}

int main(void)
{
	static void (*const cases[])(struct ibv_pd *pd) = {
		test_numbers,
		test_few_mrs,
		test_report_allocates_nothing,
		test_typos,
		test_little_to_lock,
		test_another_context,
		test_full_queue,
		test_room_for_a_word,
		test_rounded_no_more,
		test_interrupted,
		test_interrupted_with_faults,
		test_other_structs,
		test_no_shortage,
		test_flag_of_others,
		test_wrapped_verbs,
		test_errno_stays,
		test_cancelled,
		test_thread_sanitizer,
		test_busy_pd,
		test_pd_with_two_names,
		test_unimport,
		test_hopeless,
		test_child_ends,
		test_two_arm,
	};

	setenv("RDMAV_MR_CACHE", "1", 1);
	for (unsigned int i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		run_case(cases[i]);
	printf("mr_cache_test: %s\n", failures ? "FAILED" : "passed");
	return failures != 0;
}
