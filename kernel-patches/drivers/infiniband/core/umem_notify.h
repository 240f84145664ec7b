/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Between the files of MR notification: the tracker of a umem (umem_notify.c
 * and umem_notify_tracker.h), the comparison of mapped and pinned pages
 * (umem_notify_check.c), the word in user memory (umem_notify_word.c), the
 * counters (umem_notify_stats.c), the attributes for netlink
 * (umem_notify_res.c), and the uverbs methods on top
 * (uverbs_std_types_mr_notify.c).
 */
#ifndef UMEM_NOTIFY_H
#define UMEM_NOTIFY_H

#include <rdma/ib_umem_notify.h>

/* The pinned page of a word; the word is eight bytes at an offset in it. */
struct umem_notify_word_page;

/* How an MR is armed */
struct umem_notify_arming {
	u64 word; /* user address, a multiple of eight */
	u64 in_use; /* the bits of the word that count users; 0: nobody counts */
	bool reclaim; /* the VM may have the pages while none of these bits is set */
	u32 idle_ms; /* suspended when unused for so long; 0: not */
	u64 changes; /* user address of a counter of INVALID words; 0: none */
	int event_fd; /* an eventfd for the same; -1: none */
};

struct umem_notify_word_page *umem_notify_word_get(const struct umem_notify_arming *how);
void umem_notify_word_put(struct umem_notify_word_page *page,
			  unsigned int offset);
void umem_notify_word_change(const struct umem_notify_word_page *page, unsigned int offset,
			     u64 set, u64 clear);
void umem_notify_word_tell(const struct umem_notify_word_page *page, unsigned int offset);
void umem_notify_word_signal(const struct umem_notify_word_page *page, unsigned int offset);
bool umem_notify_word_cmpxchg(const struct umem_notify_word_page *page,
			      unsigned int offset, u64 old, u64 value);
u64 umem_notify_word_read(const struct umem_notify_word_page *page,
			  unsigned int offset);

/*
 * How long a caller of umem_notify_verify() waits for events and for locks of files, in jiffies.
 * Without patience, 0, it waits for its own address space; the worker waits for no lock.
 */
#define UMEM_NOTIFY_WORKER (-1)
#define UMEM_NOTIFY_PATIENCE HZ

/*
 * Pages in doubt, of a range of at most 64 << shift pages: those of the chunks
 * whose bit is set that are in [first, end) too. So one event is exact, and two
 * that are far apart do not bring all that is between them in doubt.
 */
struct umem_notify_doubt {
	u64 chunks;
	u32 first;
	u32 end;
};

/* The pages for umem_notify_check() to look at. */
struct umem_notify_question {
	struct umem_notify_doubt doubt;
	bool worker; /* the worker asks: it waits for no lock, and faults no page in */
	unsigned long until; /* a system call waits until then, in jiffies */
	/* A device may keep the CPU off pages that are still there. */
	bool exclusive;
	/* Set when a worker is to stop soon. */
	const bool *hurry;
	u32 at; /* the first page that it has not found intact */
};

/* umem_notify_check(): a page is not the pinned one. */
#define UMEM_NOTIFY_CHANGED 1

int umem_notify_check(struct ib_umem *umem, unsigned long start, unsigned int shift,
		      struct umem_notify_question *what);

int umem_notify_device_get(struct ib_device *device);
void umem_notify_count(struct ib_device *device, enum ib_mr_notify_stat stat,
		       s64 nr);

int umem_notify_arm(struct ib_mr *mr, const struct umem_notify_arming *how);
int umem_notify_disarm(struct ib_mr *mr);
int umem_notify_settle(struct ib_mr *mr);
int umem_notify_suspend_now(struct ib_mr *mr);

#endif /* UMEM_NOTIFY_H */
