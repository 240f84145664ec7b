// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The data of each device: its workqueue and its counters. They are created with the
 * first tracker of the device, and freed by ib_device_release().
 *
 * Each CPU has its own counters. Counting is one addition, so a callback of an MMU
 * notifier may count. Reading adds up the counters of all CPUs. A gauge may go up on one
 * CPU and down on another: only the sum is meaningful.
 */

#include <linux/percpu.h>

#include "umem_notify.h"

/* Protects creating the data of any device */
static DEFINE_MUTEX(stats_lock);

/**
 * umem_notify_device_get - Make sure that a device has its workqueue and counters
 * @device: The device
 *
 * Context: Process context, may sleep.
 *
 * Return: 0 or -ENOMEM.
 */
int umem_notify_device_get(struct ib_device *device)
{
	guard(mutex)(&stats_lock);
	if (!device->mr_notify_wq)
		device->mr_notify_wq = alloc_workqueue("ib_mr_notify-%s",
						       WQ_UNBOUND | WQ_MEM_RECLAIM, 0,
						       dev_name(&device->dev));
	if (!device->mr_notify_stats)
		WRITE_ONCE(device->mr_notify_stats,
			   __alloc_percpu(IB_MR_NOTIFY_STATS * sizeof(u64), sizeof(u64)));
	return device->mr_notify_wq && device->mr_notify_stats ? 0 : -ENOMEM;
}

/**
 * umem_notify_count - Add to a counter of a device
 * @n: A tracker of the device
 * @stat: The counter
 * @nr: The number to add; negative for a gauge that goes down
 */
void umem_notify_count(const struct ib_umem_notify *n, enum ib_mr_notify_stat stat, s64 nr)
{
	this_cpu_add(n->queue->device->mr_notify_stats[stat], nr);
}

/**
 * ib_mr_notify_read_stats - The counters of a device, for its get_hw_stats()
 * @device: The device
 * @values: The array to fill, with an element for each enum ib_mr_notify_stat
 */
void ib_mr_notify_read_stats(struct ib_device *device, u64 *values)
{
	u64 __percpu *stats = READ_ONCE(device->mr_notify_stats);
	unsigned int i;
	int cpu;

	memset(values, 0, sizeof(*values) * IB_MR_NOTIFY_STATS);
	if (!stats)
		return;
	for_each_possible_cpu(cpu)
		for (i = 0; i < IB_MR_NOTIFY_STATS; i++)
			values[i] += READ_ONCE(per_cpu_ptr(stats, cpu)[i]);
}
EXPORT_SYMBOL(ib_mr_notify_read_stats);
