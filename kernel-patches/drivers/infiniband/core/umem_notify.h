/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Between the files of MR notification: the tracker of a umem
 * (umem_notify.c), the comparison of mapped and pinned pages
 * (umem_notify_check.c), the word in user memory (umem_notify_word.c), the
 * counters (umem_notify_stats.c), what netlink tells (umem_notify_res.c), and
 * the uverbs methods on top (uverbs_std_types_mr_notify.c).
 */
#ifndef UMEM_NOTIFY_H
#define UMEM_NOTIFY_H

#include <rdma/ib_umem_notify.h>

/* The pinned page of a word; the word is eight bytes at an offset in it. */
struct umem_notify_word_page;

struct umem_notify_word_page *umem_notify_word_get(unsigned long addr);
void umem_notify_word_put(struct umem_notify_word_page *page);
void umem_notify_word_set(const struct umem_notify_word_page *page,
			  unsigned int offset, u64 bits);
void umem_notify_word_clear(const struct umem_notify_word_page *page,
			    unsigned int offset, u64 bits);

/* Who asks umem_notify_check(), and so how long it may block. */
enum umem_notify_asker {
	/* A system call: may sleep on anything that a fatal signal ends. */
	UMEM_NOTIFY_USER,
	/* The worker, which deregistration waits for: takes no inode lock. */
	UMEM_NOTIFY_WORKER,
};

enum umem_notify_verdict {
	UMEM_NOTIFY_INTACT,
	UMEM_NOTIFY_CHANGED,
	/* The worker met a lock; it may ask again later. */
	UMEM_NOTIFY_BUSY,
	/* Only a system call can tell. */
	UMEM_NOTIFY_UNKNOWN,
	UMEM_NOTIFY_INTERRUPTED,
	/* A page fault failed for want of memory, which says nothing. */
	UMEM_NOTIFY_NO_MEMORY,
};

enum umem_notify_verdict umem_notify_check(struct ib_umem *umem,
					   u32 first, u32 end,
					   enum umem_notify_asker asker);

int umem_notify_stats_get(struct ib_device *device);
void umem_notify_count(struct ib_device *device, enum ib_mr_notify_stat stat,
		       s64 nr);

/* How it stands with a watched umem, at one moment. */
struct umem_notify_status {
	bool armed;
	bool revoked;
	u8 state;
};

bool umem_notify_status(struct ib_umem *umem,
			struct umem_notify_status *status);

struct ib_umem *umem_notify_umem(struct ib_mr *mr);

int umem_notify_arm(struct ib_umem *umem, struct ib_mr *mr, unsigned long addr);
int umem_notify_disarm(struct ib_umem *umem);
int umem_notify_settle(struct ib_umem *umem);
void umem_notify_suspend(struct ib_umem *umem, bool gone);
void umem_notify_resume(struct ib_umem *umem, struct ib_mr *mr);

#endif /* UMEM_NOTIFY_H */
