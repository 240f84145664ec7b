// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * MR notification in mlx5. COMPILED AND REVIEWED, NOT RUN: its authors did not
 * have the hardware.
 *
 * A UMR work request marks the mkey free and moves it to the driver's own
 * protection domain; when it has completed, the device does no DMA through the
 * mkey any more. The driver does the same before it changes or frees an MR, so
 * each of the following copes with an mkey that is free already:
 *
 * dereg_mr of a cacheable mkey frees it once more and puts it into the cache,
 * from where it is taken in this very state: the next user sets all of its
 * fields. Of another mkey the context is destroyed. In between the driver does
 * not look at the scatterlist, which is gone: only address and length of the
 * umem count.
 *
 * rereg_user_mr without a new translation is refused by ib_umem_check_rereg(),
 * as the pages are not there any more. With one it frees the mkey first, pins
 * other pages, and replaces the umem: the word of the old one says INVALID when
 * that is released. If it fails after it freed the mkey, the MR is dead though
 * its memory has not changed: ib_umem_lost() tells the word, and the core frees
 * the mkey once more and gives the pages back.
 *
 * Both are never concurrent with revoking (ib_mr_notify_hold()); an mkey that
 * is back in the cache can't be hit by a late revoke.
 *
 * There is no restore_user_mr. The calls that would do it are those of a re-registration
 * with a new translation (mlx5r_umr_update_mr_pas(), then mlx5r_umr_rereg_pd_access()),
 * but they are made for an mkey that is large enough for the new pages as the device
 * wants them, contiguous in pieces of its page size: the later pages of the same range
 * may be in smaller pieces. That is not to be written without the hardware. So an idle MR
 * ends INVALID, not SUSPENDED.
 *
 * A memory window, or an indirect mkey, that refers to the mkey finds it free.
 *
 * On-demand paging, dmabuf (data direct is one) and device memory do not come
 * here: the core leaves the first two out, the last has no umem.
 */

#include <linux/mlx5/driver.h>

#include "mlx5_ib.h"
#include "mr_notify.h"
#include "umr.h"

struct ib_umem *mlx5_ib_mr_umem(struct ib_mr *ibmr)
{
	return to_mmr(ibmr)->umem;
}

/*
 * Then mlx5r_umr_revoke_mr() posts nothing and returns 0. But the state only aborts
 * commands, and is set as soon as a sensor tells of an error; DMA may go on until
 * the function is reset, for which an administrator may have to ask.
 */
static bool is_in_error(struct ib_mr *ibmr)
{
	return READ_ONCE(to_mdev(ibmr->device)->mdev->state) ==
	       MLX5_DEVICE_STATE_INTERNAL_ERROR;
}

/**
 * mlx5_ib_revoke_user_mr - Take the pages of an MR away from the device
 * @ibmr: A user MR with a pinned umem
 *
 * The mkey stays reserved. Access through it fails as through a free one.
 *
 * Context: Process context; waits for the work request.
 *
 * Return: 0 if the device does no DMA to the pages any more; -EBUSY in its error
 * state; else an error, and the MR may or may not be usable.
 */
int mlx5_ib_revoke_user_mr(struct ib_mr *ibmr)
{
	int ret;

	if (is_in_error(ibmr))
		return -EBUSY;
	ret = mlx5r_umr_revoke_mr(to_mmr(ibmr));
	return !ret && is_in_error(ibmr) ? -EBUSY : ret;
}
