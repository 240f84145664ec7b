// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * MR notification in mlx5. COMPILED AND REVIEWED, NOT RUN: its authors did not
 * have the hardware.
 *
 * A UMR work request marks the mkey free and moves it to the driver's own
 * protection domain. When the work request has completed, the device does no
 * more DMA through the mkey. The driver posts the same work request before it
 * changes or frees an MR, so dereg_mr and rereg_user_mr accept a free mkey:
 *
 * dereg_mr frees a cacheable mkey once more and puts it into the cache. Mkeys in
 * the cache are always free: the next user sets all fields. dereg_mr destroys the
 * context of any other mkey. Until then the driver uses only address and length
 * of the umem. It does not read the scatterlist, which is gone.
 *
 * If rereg_user_mr has no new translation, ib_umem_check_rereg() refuses, because
 * the MR has no pages any more. With a new translation rereg_user_mr frees the
 * mkey first, pins other pages, and replaces the umem. Releasing the old umem sets
 * INVALID in its word. If rereg_user_mr fails after it freed the mkey, the MR is
 * unusable although its memory has not changed. Then ib_umem_lost() sets INVALID,
 * and the core frees the mkey once more and unpins the pages.
 *
 * While dereg_mr or rereg_user_mr runs, ib_mr_notify_hold() prevents a revoke.
 * So a late revoke can't hit an mkey that is back in the cache.
 *
 * There is no restore_user_mr. Restoring an MR takes the calls of a re-registration
 * with a new translation: mlx5r_umr_update_mr_pas(), then
 * mlx5r_umr_rereg_pd_access(). These calls need an mkey with room for all entries
 * of the new translation, one entry for each contiguous piece of the mkey's page
 * size. The new pages of the range may be in smaller pieces than the old pages.
 * Such code must be tried on the hardware. Until then an idle MR becomes INVALID
 * instead of SUSPENDED.
 *
 * A memory window or an indirect mkey that refers to the mkey finds it free, too.
 *
 * The core excludes MRs with on-demand paging and dmabuf MRs (including data
 * direct); device memory has no umem.
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
 * In the error state mlx5r_umr_revoke_mr() posts no work request and returns 0.
 * But a sensor can set the error state, and this state only aborts commands. DMA
 * may go on until the PCI function is reset, which may need an administrator.
 */
static bool is_in_error(struct ib_mr *ibmr)
{
	return READ_ONCE(to_mdev(ibmr->device)->mdev->state) ==
	       MLX5_DEVICE_STATE_INTERNAL_ERROR;
}

/**
 * mlx5_ib_revoke_user_mr - End the device's access to the pages of an MR
 * @ibmr: A user MR with a pinned umem
 *
 * The mkey stays reserved. The device refuses accesses as for a free mkey.
 *
 * Context: Process context; waits for the work request.
 *
 * Return: 0 if the device does no more DMA to the pages; -EBUSY in the error
 * state of the device. After any other error it is unknown if the MR is usable.
 */
int mlx5_ib_revoke_user_mr(struct ib_mr *ibmr)
{
	int ret;

	if (is_in_error(ibmr))
		return -EBUSY;
	ret = mlx5r_umr_revoke_mr(to_mmr(ibmr));
	return !ret && is_in_error(ibmr) ? -EBUSY : ret;
}
