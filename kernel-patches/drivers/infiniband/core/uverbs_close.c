// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Closing a uverbs file where others wait behind it.
 *
 * To close the file is to end its trackers, and that waits for the invalidations
 * of their address spaces (mmu_interval_notifier_remove()): for as long as
 * processes that still have them like. Whoever closes its own file waits for
 * itself. But the last reference may go
 *
 * - in a kernel thread, because the file was in flight to itself (unix_gc), or in
 *   an interrupt: then it is put by the one work of the machine that does so for
 *   all files (delayed_fput());
 * - in another user's process that was sent the file, and need not even take it:
 *   a daemon that reads from a socket.
 *
 *   a process of a user                     that work, or that daemon
 *   arms, sends the file away
 *                                           closes it: waits
 *   goes on with madvise()
 *                                           [does nothing else any more]
 *
 * So these leave it to a work. One user's files are closed one after the other,
 * so that none waits behind another user's.
 */

#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>

#include "uverbs_close.h"

static struct workqueue_struct *uverbs_close_wq;

/* The file of each user that is being closed */
static LIST_HEAD(uverbs_closing);
static DEFINE_SPINLOCK(uverbs_closing_lock);

struct uverbs_close {
	struct work_struct work;
	struct list_head list;
	struct list_head behind; /* that user's others, in turn */
	kuid_t uid;
	struct ib_uverbs_file *file;
	void (*close)(struct ib_uverbs_file *file);
};

static void uverbs_begin_close(struct uverbs_close *later)
{
	list_add(&later->list, &uverbs_closing);
	queue_work(uverbs_close_wq, &later->work);
}

static void uverbs_do_close(struct work_struct *work)
{
	struct uverbs_close *later =
		container_of(work, struct uverbs_close, work);
	struct uverbs_close *next;

	later->close(later->file);

	spin_lock(&uverbs_closing_lock);
	list_del(&later->list);
	next = list_first_entry_or_null(&later->behind, typeof(*next), list);
	if (next) {
		list_del(&next->list);
		list_splice(&later->behind, &next->behind);
		uverbs_begin_close(next);
	}
	spin_unlock(&uverbs_closing_lock);
	kfree(later);
	/* Whoever unloads the module waits for the end of this work. */
	module_put(THIS_MODULE);
}

static struct uverbs_close *uverbs_find_closing(kuid_t uid)
{
	struct uverbs_close *first;

	list_for_each_entry(first, &uverbs_closing, list)
		if (uid_eq(first->uid, uid))
			return first;
	return NULL;
}

static void uverbs_close_later(struct uverbs_close *later)
{
	struct uverbs_close *first;

	/* The file, which has one, gives it back when this returns. */
	__module_get(THIS_MODULE);
	spin_lock(&uverbs_closing_lock);
	first = uverbs_find_closing(later->uid);
	if (first)
		list_add_tail(&later->list, &first->behind);
	else
		uverbs_begin_close(later);
	spin_unlock(&uverbs_closing_lock);
}

/**
 * ib_uverbs_close_file - Close a uverbs file, now or soon
 * @filp: The file, which nobody can use any more
 * @close: What closes it
 *
 * Context: Process context. Calls @close, which may wait for long, unless the
 * caller is a kernel thread or not the user that opened the file.
 */
void ib_uverbs_close_file(struct file *filp,
			  void (*close)(struct ib_uverbs_file *file))
{
	kuid_t uid = filp->f_cred->euid;
	struct uverbs_close *later = NULL;

	if (current->flags & PF_KTHREAD || !uid_eq(uid, current_euid()))
		later = kmalloc(sizeof(*later), GFP_KERNEL);
	if (!later) {
		close(filp->private_data);
		return;
	}
	INIT_WORK(&later->work, uverbs_do_close);
	INIT_LIST_HEAD(&later->behind);
	later->uid = uid;
	later->file = filp->private_data;
	later->close = close;
	uverbs_close_later(later);
}

int ib_uverbs_close_init(void)
{
	uverbs_close_wq = alloc_workqueue("ib_uverbs_close", WQ_UNBOUND,
					  WQ_UNBOUND_MAX_ACTIVE);
	return uverbs_close_wq ? 0 : -ENOMEM;
}

void ib_uverbs_close_exit(void)
{
	destroy_workqueue(uverbs_close_wq);
}
