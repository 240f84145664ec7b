/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Notification of invalid memory registrations: the kernel sets a bit in a
 * word of the application before the system call that takes the registered
 * memory away returns. No signal, no thread, no event queue.
 *
 * Included by <infiniband/verbs.h>. For a program that keeps registrations after a
 * transfer (a registration cache): look at the word before using one again.
 * Not needed by a program that deregisters before it frees.
 */
#ifndef INFINIBAND_MR_NOTIFY_H
#define INFINIBAND_MR_NOTIFY_H

/*
 * For #ifdef after <infiniband/verbs.h>: this header and the functions below are
 * there to compile and link with. Whether the kernel and the device can do it is
 * IBV_DEVICE_MR_NOTIFY in device_cap_flags of ibv_query_device().
 */
#define IBV_HAVE_MR_NOTIFY 1
/* The same for struct ibv_mr_notify_attr and the functions behind it, which came later. */
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
 * Bits 0-7 of the word belong to the kernel, which only ORs INVALID, SUSPECT and
 * SUSPENDED in, and clears SUSPECT when the registration was found intact and
 * SUSPENDED when it has pages again. They must be 0 when the word is registered: the
 * kernel does not look, and settling does not clear earlier bits. So a word goes
 * to another MR after ibv_unreg_mr_notify() or ibv_dereg_mr() only, with these bits cleared.
 * Bits 8-63 belong to the application, which must change the word with atomic
 * operations only; the kernel never changes them.
 */
enum ibv_mr_notify_bits {
	/*
	 * The address range, or a part of it, no longer maps the registered
	 * pages. Final: only a new registration helps.
	 */
	IBV_MR_NOTIFY_INVALID		= 1 << 0,
	/*
	 * Something happened that may have changed it: do not use the
	 * registration without asking ibv_settle_mr_notify().
	 */
	IBV_MR_NOTIFY_SUSPECT		= 1 << 1,
	/*
	 * It was idle, and the kernel has taken its pages back: the device has
	 * no access until ibv_settle_mr_notify() has given it others. Only after
	 * ibv_reg_mr_notify_reclaim().
	 */
	IBV_MR_NOTIFY_SUSPENDED		= 1 << 2,
	IBV_MR_NOTIFY_KERNEL_MASK	= 0xff
};

/*
 * In device_cap_flags_ex, beside IBV_DEVICE_MR_NOTIFY: after INVALID the device
 * can no longer reach the pages, and they are given back. Without it they stay
 * pinned until ibv_dereg_mr().
 */
#define IBV_DEVICE_MR_REVOKE (1ULL << 60)

/*
 * In device_cap_flags_ex: idle registrations are suspended and restored under the
 * same keys. A device with IBV_DEVICE_MR_REVOKE alone makes them INVALID instead.
 */
#define IBV_DEVICE_MR_RECLAIM (1ULL << 61)

/**
 * ibv_reg_mr_notify - Have the kernel tell when a registration becomes invalid
 * @mr: A registration of this process's memory, by ibv_reg_mr() or a variant
 * @word: 8-byte aligned memory of the caller's; its value is kept
 *
 * On success the kernel writes to *word from now on, until ibv_unreg_mr_notify()
 * or ibv_dereg_mr() returns: until then the word must stay mapped where it is,
 * outside of the registration itself, and may be no other MR's. There is no
 * window: an event that invalidated the registration before or during this call is
 * seen too, and the call succeeds with a word that says INVALID.
 *
 * Returns 0, or an errno value and changes nothing:
 *   EOPNOTSUPP  the kernel, the driver or this kind of MR (on-demand paging,
 *               dmabuf, device memory, null, imported, cached) has no support
 *   EINVAL      word is NULL or not aligned, or mr is of another process
 *   EBUSY       mr has a word already, another MR has this word, others have
 *               this MR too (RDMAV_MR_CACHE), or another thread re-registers it
 *   EIO         the device was removed
 *   ENOMEM      out of memory, or over RLIMIT_MEMLOCK
 *   EFAULT      word is not in writable memory that can be pinned
 *
 * Thread safe, also against other calls for the same mr but ibv_dereg_mr().
 */
int ibv_reg_mr_notify(struct ibv_mr *mr, uint64_t *word);

/**
 * ibv_reg_mr_notify_reclaim - The same, and lend the pages while they are not used
 * @mr: As for ibv_reg_mr_notify()
 * @word: As for ibv_reg_mr_notify(); counts its users
 * @in_use: The bits of the word that do: not 0, and bits 8-63 only
 *
 * While *word & in_use is 0 the registration is idle, and the kernel may take its
 * pages when memory is short or a memory block goes offline, least recently used
 * first; one whose bits 8-63 have changed since it was last looked at is passed
 * over once. The kernel says so by setting SUSPENDED with a compare-and-swap: a thread
 * that takes a reference by an atomic addition, and sees that the word was 0 but for the
 * application's bits, keeps the registration. Keys and handle stay as they are. A program
 * that has told a peer a key keeps a bit of in_use set.
 *
 * INVALID is told as ever, but while the word is in use the device keeps the pages
 * that were registered: the rest of the range goes on working for its users. The thread
 * that gives the last reference back sees INVALID in the same instruction, and deregisters.
 *
 * Returns 0, or an errno value and changes nothing: as ibv_reg_mr_notify(), and
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
 * When it returns 0 the kernel does not touch the word any more; the word keeps
 * its last value. Registering a word again is allowed. A suspended registration gets
 * its pages first, as by ibv_settle_mr_notify().
 *
 * Returns 0, or an errno value and changes nothing: EINVAL when mr has no word, or is of
 * another process (a parent's, in its child); EOPNOTSUPP as above; ENOMEM and EAGAIN as
 * for ibv_settle_mr_notify() when it is SUSPENDED; EBUSY when another thread re-registers
 * mr; EIO as above. Thread safe as above.
 */
int ibv_unreg_mr_notify(struct ibv_mr *mr);

/**
 * ibv_settle_mr_notify - Make a suspect or suspended registration usable, if it can be
 * @mr: A registration with a word
 *
 * On 0 the kernel's bits of the word say INVALID or nothing, for all that
 * happened before the call; something that happens during it may make the word
 * SUSPECT again, and shared huge pages may leave it so (ibv_settle_mr_notify(3)).
 * Costs one system call, for a word that is not SUSPECT too.
 *
 * A SUSPENDED one gets the pages that its range maps now, under the same keys; if
 * they can't be pinned with its rights it is INVALID. A caller without a reference
 * (in_use) may find it SUSPENDED anew when the call returns.
 *
 * Returns 0, or an errno value, and the word is as SUSPECT or SUSPENDED as before:
 * EINVAL when mr has no word, or is of another process; EAGAIN when a file of this
 * memory was kept locked for a second, changes of it followed one another for so long,
 * or it cannot be pinned just now; ENOMEM, also over RLIMIT_MEMLOCK; EBUSY when another thread
 * re-registers mr; EIO and EOPNOTSUPP as above. Thread safe as above.
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
 * How a registration is notified. The library reads it during the call only.
 *
 * changes and event_fd tell that some word has become INVALID. A cache looks at one counter
 * (one load), and at its words only when the counter has moved; a server sleeps in poll().
 * Each word counts once, for whatever reason it becomes INVALID, also if it is INVALID when
 * the call returns. The kernel sets the word first, then adds to changes, both before the
 * system call that took the memory away returns. A worker of the kernel adds to the eventfd
 * soon afterwards.
 */
struct ibv_mr_notify_attr {
	uint64_t  comp_mask;	/* enum ibv_mr_notify_attr_mask: which fields below are valid */
	uint64_t *word;		/* as for ibv_reg_mr_notify(); always valid */
	uint64_t  in_use;	/* as for ibv_reg_mr_notify_reclaim() */
	/*
	 * 8-byte aligned memory like that of a word, and no word. MRs, also of several
	 * processes, may share it. It must stay mapped while one of them is notified.
	 */
	uint64_t *changes;
	int	  event_fd;	/* an eventfd(2), which may be closed after the call */
	/*
	 * In ms, with in_use: the kernel suspends the registration when it was unused for so
	 * long, up to twice as long. 0, or not valid: by this time never. From 20 to 1,000,000;
	 * other values are rounded to these.
	 */
	uint32_t  idle_ms;
};

/**
 * ibv_reg_notified_mr - Register memory and have the kernel tell when it changes, in one call
 * @pd: As for ibv_reg_mr_iova()
 * @addr: As for ibv_reg_mr_iova()
 * @length: As for ibv_reg_mr_iova()
 * @iova: As for ibv_reg_mr_iova(): the address of the first byte for the device
 * @access: As for ibv_reg_mr_iova(); the registration is never a cached one
 * @attr: The word and what goes with it
 *
 * As ibv_reg_mr_iova() and ibv_reg_mr_notify_ex(), but the kernel looks at the pages once.
 * Deregister the MR by ibv_dereg_mr(), then the word is free.
 *
 * Returns the MR, or NULL, and nothing is registered. errno is that of ibv_reg_mr_iova() or of
 * ibv_reg_mr_notify_ex(). Thread safe.
 */
struct ibv_mr *ibv_reg_notified_mr(struct ibv_pd *pd, void *addr, size_t length,
				   uint64_t iova, unsigned int access,
				   const struct ibv_mr_notify_attr *attr);

/**
 * ibv_reg_mr_notify_ex - Have the kernel tell when a registration becomes invalid
 * @mr: As for ibv_reg_mr_notify()
 * @attr: The word and what goes with it
 *
 * As ibv_reg_mr_notify(), or with in_use as ibv_reg_mr_notify_reclaim().
 *
 * Returns 0, or an errno value and changes nothing: as these verbs, and
 *   EINVAL      attr is NULL or has a bit of comp_mask that is not known, changes is NULL, not
 *               aligned or the word, in_use is 0 or has bits of the kernel, idle_ms is not 0
 *               without in_use, or event_fd is no eventfd
 *   EBUSY       changes is the word of an MR, or the word is such a counter
 *   EBADF       event_fd is not open
 *   EFAULT      changes is not in writable memory that can be pinned
 *   EOPNOTSUPP  the kernel lacks what comp_mask asks for
 *
 * Thread safe as ibv_reg_mr_notify().
 */
int ibv_reg_mr_notify_ex(struct ibv_mr *mr, const struct ibv_mr_notify_attr *attr);

/**
 * ibv_suspend_mr_notify - Unpin the pages of a registration that is not in use, now
 * @mr: A registration with a word and in_use
 *
 * The word says SUSPENDED. Handle and keys stay; ibv_settle_mr_notify() brings pages back.
 *
 * Returns 0, also if it is SUSPENDED or INVALID already; or an errno value, and nothing has
 * changed:
 *   EBUSY       the word says that it is in use, or another thread re-registers mr
 *   EINVAL      mr has no word, has one without in_use, or is of another process
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
 * Words share pages: the kernel pins, and charges to RLIMIT_MEMLOCK, each page that has an
 * armed word. In a child of fork() all words are 0 and stay allocated, and the child may
 * allocate and free words of its own. The words are the process's: closing the device does
 * not free them.
 *
 * Returns the word, which is 0; or NULL: errno is ENOMEM, or EINVAL if context is NULL.
 * Thread safe, also in a signal handler.
 */
uint64_t *ibv_alloc_notify_word(struct ibv_context *context);

/**
 * ibv_free_notify_word - Give a word back
 * @word: Of ibv_alloc_notify_word(), or NULL. No MR has it: its MR was deregistered, or
 *	  disarmed by ibv_unreg_mr_notify(). The same for all MRs of a counter.
 *
 * Returns nothing. Thread safe, also in a signal handler.
 */
void ibv_free_notify_word(uint64_t *word);

#ifdef __cplusplus
}
#endif

#endif /* INFINIBAND_MR_NOTIFY_H */
