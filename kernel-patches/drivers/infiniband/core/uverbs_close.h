/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Closing a uverbs file; see uverbs_close.c. Without
 * CONFIG_INFINIBAND_MR_NOTIFY nothing of it waits for other processes.
 */
#ifndef UVERBS_CLOSE_H
#define UVERBS_CLOSE_H

#include <linux/fs.h>

struct ib_uverbs_file;

#ifdef CONFIG_INFINIBAND_MR_NOTIFY

void ib_uverbs_close_file(struct file *filp,
			  void (*close)(struct ib_uverbs_file *file));
int ib_uverbs_close_init(void);
void ib_uverbs_close_exit(void);

#else

static inline void
ib_uverbs_close_file(struct file *filp,
		     void (*close)(struct ib_uverbs_file *file))
{
	close(filp->private_data);
}

#endif

#endif /* UVERBS_CLOSE_H */
