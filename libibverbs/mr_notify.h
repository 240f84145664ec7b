/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Notification of invalid memory registrations. If a system call takes registered
 * memory away, the kernel sets a bit in a word of the application before the call
 * returns. This needs no signal, thread or event queue.
 *
 * <infiniband/verbs.h> includes this file. A program that keeps registrations after a
 * transfer (a registration cache) checks the word before it uses a registration again. A
 * program that deregisters before it frees memory needs no notification.
 */
#ifndef INFINIBAND_MR_NOTIFY_H
#define INFINIBAND_MR_NOTIFY_H

/*
 * If <infiniband/verbs.h> defines this macro, a program can use the functions below.
 * IBV_DEVICE_MR_NOTIFY in device_cap_flags of ibv_query_device() tells whether the kernel
 * and the device support them.
 */
#define IBV_HAVE_MR_NOTIFY 1
/* If this macro is defined, the header has struct ibv_mr_notify_attr and its functions. */
#define IBV_HAVE_REG_NOTIFIED_MR 1

#include <stdint.h>

#include <infiniband/mr_all.h>
#include <infiniband/mr_cache.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ibv_context;
struct ibv_mr;
struct ibv_pd;

/*
 * Bits 0-7 of the word belong to the kernel, which atomically sets only INVALID, SUSPECT
 * and SUSPENDED. The kernel clears SUSPECT when it has found the registration intact, and
 * SUSPENDED when the registration has pages again. Bits 0-7 must be 0 when the word is
 * registered. The kernel does not check this, and settling does not clear bits that were
 * set at that time. Before a word goes to another MR, call ibv_unreg_mr_notify() or
 * ibv_dereg_mr(), and then clear these bits. Bits 8-63 belong to the application, which
 * must change the word with atomic operations only. The kernel never changes these bits.
 */
enum ibv_mr_notify_bits {
	/*
	 * The address range, or a part of it, no longer maps the registered pages. This
	 * is final. Register the memory again.
	 */
	IBV_MR_NOTIFY_INVALID		= 1 << 0,
	/*
	 * The address range may have changed. Call ibv_settle_mr_notify() before the next
	 * use of the registration.
	 */
	IBV_MR_NOTIFY_SUSPECT		= 1 << 1,
	/*
	 * The registration was idle, and the kernel has unpinned its pages. The
	 * device has no access until ibv_settle_mr_notify() restores the
	 * registration. Only words with in_use get this bit
	 * (ibv_reg_mr_notify_reclaim()).
	 */
	IBV_MR_NOTIFY_SUSPENDED		= 1 << 2,
	IBV_MR_NOTIFY_KERNEL_MASK	= 0xff
};

/*
 * This bit of device_cap_flags_ex comes in addition to IBV_DEVICE_MR_NOTIFY. If the bit is
 * set, the device loses its access to the pages after INVALID, and the kernel unpins the
 * pages. Without this bit the pages stay pinned until ibv_dereg_mr().
 */
#define IBV_DEVICE_MR_REVOKE (1ULL << 60)

/*
 * If this bit of device_cap_flags_ex is set, the kernel suspends idle registrations, and
 * restores them under the same keys. If a device has only IBV_DEVICE_MR_REVOKE, idle
 * registrations become INVALID instead.
 */
#define IBV_DEVICE_MR_RECLAIM (1ULL << 61)

/**
 * ibv_reg_mr_notify - Have the kernel tell when a registration becomes invalid
 * @mr: A registration of this process's memory, by ibv_reg_mr() or a variant
 * @word: 8-byte aligned memory of the caller; its value is kept
 *
 * On success the kernel writes to *word from now on, until ibv_unreg_mr_notify() or
 * ibv_dereg_mr() returns. Until then the word must stay mapped at its address, and must
 * not be the word of another MR. The word must not be in the registered memory. No event
 * is lost. If an event before or during this call invalidates the registration, the call
 * succeeds and the word says INVALID.
 *
 * Returns 0. On failure changes nothing and returns an errno value:
 *   EOPNOTSUPP  the kernel, the driver or this kind of MR (on-demand paging, dmabuf,
 *               device memory, null, imported, cached) does not support notification
 *   EINVAL      word is NULL or not aligned, or another process registered mr
 *   EBUSY       mr has a word already, another MR has this word, mr has other
 *               users (RDMAV_MR_CACHE), or another thread re-registers mr
 *   EIO         the device was removed
 *   ENOMEM      out of memory, or over RLIMIT_MEMLOCK
 *   EFAULT      word is not in writable memory that can be pinned
 *
 * Thread safe. All calls except ibv_dereg_mr() may run at the same time for the same mr.
 */
int ibv_reg_mr_notify(struct ibv_mr *mr, uint64_t *word);

/**
 * ibv_reg_mr_notify_reclaim - Arm a registration and let the kernel suspend it while idle
 * @mr: As for ibv_reg_mr_notify()
 * @word: As for ibv_reg_mr_notify(); also counts the users of mr
 * @in_use: The bits of the word that count users: not 0, and bits 8-63 only
 *
 * While *word & in_use is 0, the registration is idle. Then the kernel may unpin its pages
 * when memory is short, before a fork copies the pages, or when a memory block goes
 * offline. If memory is short, the kernel starts with the least recently used
 * registrations. If bits 8-63 of a word have changed since the last scan, the kernel skips
 * the registration once. The kernel sets SUSPENDED by a compare-and-swap. So a thread can
 * take a reference by an atomic addition. If the kernel's bits were 0, the registration is
 * not suspended until the thread drops the reference. Keys and handle stay the same. A
 * program that has sent a key to a peer must keep a bit of in_use set.
 *
 * The kernel sets INVALID as for ibv_reg_mr_notify(). But while the word is in use, the
 * device keeps the pages that were registered, and the unchanged part of the range stays
 * usable. The atomic instruction that drops the last reference returns INVALID, and its
 * thread deregisters.
 *
 * Returns 0. On failure changes nothing and returns an error of ibv_reg_mr_notify(), or:
 *   EINVAL      in_use is 0 or has bits of the kernel
 *   EOPNOTSUPP  the device can't be revoked (IBV_DEVICE_MR_REVOKE)
 *
 * Thread safe as ibv_reg_mr_notify().
 */
int ibv_reg_mr_notify_reclaim(struct ibv_mr *mr, uint64_t *word, uint64_t in_use);

/**
 * ibv_unreg_mr_notify - Stop notification for a registration
 * @mr: A registration with a word
 *
 * When the call has returned 0, the kernel does not access the word any more. The word
 * keeps its last value, and may be registered again. If the registration is suspended,
 * the call first restores it like ibv_settle_mr_notify().
 *
 * Returns 0. On failure changes nothing and returns an errno value:
 *   EINVAL      mr has no word, or another process (for example the parent) registered mr
 *   ENOMEM      if mr is SUSPENDED: as for ibv_settle_mr_notify()
 *   EAGAIN      if mr is SUSPENDED: as for ibv_settle_mr_notify()
 *   EBUSY       another thread re-registers mr
 *   EIO         as for ibv_reg_mr_notify()
 *   EOPNOTSUPP  as for ibv_reg_mr_notify()
 *
 * Thread safe as ibv_reg_mr_notify().
 */
int ibv_unreg_mr_notify(struct ibv_mr *mr);

/**
 * ibv_settle_mr_notify - Make a suspect or suspended registration usable, if possible
 * @mr: A registration with a word
 *
 * When the call has returned 0, the kernel's bits of the word are INVALID or 0. This answer
 * covers all events before the call. An event during the call may make the word SUSPECT
 * again, and shared huge pages may leave the word SUSPECT (ibv_settle_mr_notify(3)). The
 * call costs one system call, even if the word is not SUSPECT.
 *
 * A SUSPENDED registration gets the pages that its range maps now, under the same keys.
 * If these pages can't be pinned with its rights, the registration becomes INVALID. If
 * the caller has no reference (in_use), the kernel may suspend the registration again
 * before the call returns.
 *
 * Returns 0. On failure leaves the word SUSPECT or SUSPENDED, and returns an errno value:
 *   EINVAL      mr has no word, or another process registered mr
 *   EAGAIN      a file of this memory was locked for a second, the memory changed for a second
 *               without a pause, or the memory can't be pinned at the moment
 *   ENOMEM      out of memory, or over RLIMIT_MEMLOCK
 *   EBUSY       another thread re-registers mr
 *   EIO         as for ibv_reg_mr_notify()
 *   EOPNOTSUPP  as for ibv_reg_mr_notify()
 *
 * Thread safe as ibv_reg_mr_notify().
 */
int ibv_settle_mr_notify(struct ibv_mr *mr);

/* The valid fields of struct ibv_mr_notify_attr. */
enum ibv_mr_notify_attr_mask {
	IBV_MR_NOTIFY_ATTR_IN_USE	= 1 << 0,
	IBV_MR_NOTIFY_ATTR_CHANGES	= 1 << 1,
	IBV_MR_NOTIFY_ATTR_EVENT_FD	= 1 << 2,
	IBV_MR_NOTIFY_ATTR_IDLE_MS	= 1 << 3
};

/*
 * The word of a registration and its options. The library reads the struct only during
 * the call.
 *
 * A counter (*changes) and an eventfd (event_fd) report that a word has become INVALID. A cache
 * loads the counter, and checks its words only when the counter has changed. A server sleeps in
 * poll() on the eventfd. Each word counts once when it becomes INVALID, for any reason. If a word
 * is already INVALID when the registering call returns, the word counts, too. When a system call
 * takes the memory away, the kernel first sets INVALID, then adds 1 to the counter, and only then
 * returns. The kernel adds 1 to the eventfd soon after it has set INVALID.
 */
struct ibv_mr_notify_attr {
	uint64_t  comp_mask;	/* enum ibv_mr_notify_attr_mask: which fields below are valid */
	uint64_t *word;		/* as for ibv_reg_mr_notify(); always valid */
	uint64_t  in_use;	/* as for ibv_reg_mr_notify_reclaim() */
	/*
	 * The address of the counter, which has the alignment of a word (8 bytes), but is
	 * not a word. Several MRs, even of several processes, may share a counter. The
	 * counter must stay mapped while an armed MR uses it.
	 */
	uint64_t *changes;
	int	  event_fd;	/* an eventfd(2), which the caller may close after the call */
	/*
	 * The idle time in ms. A value above 0 needs in_use. The kernel suspends the registration
	 * between idle_ms and 2 * idle_ms after its last use. If the field is 0 or not valid, there
	 * is no idle time. Values below 20 and above 1,000,000 are rounded to these limits.
	 */
	uint32_t  idle_ms;
};

/**
 * ibv_reg_notified_mr - Register memory and have the kernel tell when it changes, in one call
 * @pd: As for ibv_reg_mr_iova()
 * @addr: As for ibv_reg_mr_iova()
 * @length: As for ibv_reg_mr_iova()
 * @iova: As for ibv_reg_mr_iova(): the address of the first byte for the device
 * @access: As for ibv_reg_mr_iova(); the registration is never cached
 * @attr: The word and its options
 *
 * Does the same as ibv_reg_mr_iova() and then ibv_reg_mr_notify_ex(), but the kernel visits
 * each page only once. After ibv_dereg_mr() another MR may have the word.
 *
 * Returns the MR. On failure returns NULL and registers nothing. errno is as for
 * ibv_reg_mr_iova() or ibv_reg_mr_notify_ex(). The word is then unchanged, or INVALID if
 * the kernel had armed the MR before the failure. Thread safe.
 */
struct ibv_mr *ibv_reg_notified_mr(struct ibv_pd *pd, void *addr, size_t length,
				   uint64_t iova, unsigned int access,
				   const struct ibv_mr_notify_attr *attr);

/**
 * ibv_reg_mr_notify_ex - Have the kernel tell when a registration becomes invalid
 * @mr: As for ibv_reg_mr_notify()
 * @attr: The word and its options
 *
 * Works like ibv_reg_mr_notify(). If in_use is valid, works like ibv_reg_mr_notify_reclaim().
 *
 * Returns 0. On failure changes nothing and returns an error of these verbs, or:
 *   EINVAL      attr is NULL, a bit of comp_mask is unknown, attr->changes is NULL, unaligned
 *               or equal to word, in_use is 0 or has bits of the kernel, idle_ms is not 0
 *               although in_use is not valid, or event_fd is not an eventfd
 *   EBUSY       attr->changes is the word of an MR, or attr->word is the counter of an MR
 *   EBADF       event_fd is not open
 *   EFAULT      attr->changes is not in writable memory that can be pinned
 *   EOPNOTSUPP  the kernel lacks a feature of comp_mask
 *
 * Thread safe as ibv_reg_mr_notify().
 */
int ibv_reg_mr_notify_ex(struct ibv_mr *mr, const struct ibv_mr_notify_attr *attr);

/**
 * ibv_suspend_mr_notify - Immediately unpin the pages of a registration that is not in use
 * @mr: A registration with a word and in_use
 *
 * Sets SUSPENDED in the word. Handle and keys stay. ibv_settle_mr_notify() restores mr.
 *
 * Returns 0, also if mr is already SUSPENDED or INVALID. On failure changes nothing and
 * returns an errno value:
 *   EBUSY       the word is in use, or another thread re-registers mr
 *   EINVAL      mr has no word or a word without in_use, or another process registered mr
 *   EOPNOTSUPP  the kernel lacks this call, or the device can't restore a registration
 *               (IBV_DEVICE_MR_RECLAIM), or as for ibv_reg_mr_notify()
 *   EIO         the device was removed
 *
 * Thread safe as ibv_reg_mr_notify().
 */
int ibv_suspend_mr_notify(struct ibv_mr *mr);

/**
 * ibv_alloc_notify_word - Get a word, or a counter of changes
 * @context: Any open device
 *
 * Words share pages. The kernel pins each page that has an armed word, and charges the page
 * to RLIMIT_MEMLOCK. In a child of fork() all words are 0 and stay allocated, and the child
 * may allocate words and free them. The words belong to the process, so closing the device
 * does not free them.
 *
 * Returns the word, which is 0. On failure returns NULL, and errno is ENOMEM, or EINVAL if
 * context is NULL. Thread safe, and safe in a signal handler.
 */
uint64_t *ibv_alloc_notify_word(struct ibv_context *context);

/**
 * ibv_free_notify_word - Give a word back
 * @word: From ibv_alloc_notify_word(), or NULL. First call ibv_dereg_mr() or
 *	  ibv_unreg_mr_notify() for each MR that uses the word or counter.
 *
 * Returns nothing. Thread safe, and safe in a signal handler.
 */
void ibv_free_notify_word(uint64_t *word);

#ifdef __cplusplus
}
#endif

#endif /* INFINIBAND_MR_NOTIFY_H */
