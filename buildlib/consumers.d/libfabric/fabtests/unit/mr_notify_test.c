/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Tests FI_MR_NOTIFY_OPS of a domain. The test changes memory by system calls
 * that no hook in the process can intercept.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <getopt.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>

#include "unit_common.h"
#include "shared.h"

#define LENGTH	(4 * 65536UL)

static char err_buf[512];
static struct fi_ops_mr_notify *ops;

struct region {
	void		*memory;
	struct fid_mr	*mr;
	const uint64_t	*word;
	uint64_t	mask;
};

static bool said(const struct region *region)
{
	return *(volatile const uint64_t *) region->word & region->mask;
}

/* If at is NULL, the kernel chooses the address. If file is -1, the memory is
 * anonymous. */
static int map_and_register(struct region *region, void *at, int file)
{
	int ret;

	region->mr = NULL;
	region->memory = (void *) syscall(SYS_mmap, at, LENGTH,
			PROT_READ | PROT_WRITE,
			(at ? MAP_FIXED : 0) |
			(file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED),
			file, 0);
	if (region->memory == MAP_FAILED)
		return -errno;

	memset(region->memory, 1, LENGTH);
	ret = fi_mr_reg(domain, region->memory, LENGTH, ft_info_to_mr_access(fi),
			0, FT_MR_KEY, 0, &region->mr, NULL);
	if (!ret)
		ret = ops->watch(region->mr, &region->word, &region->mask);
	if (ret)
		FT_UNIT_STRERR(err_buf, "registering or watching failed", ret);
	return ret;
}

static void end_region(struct region *region)
{
	if (region->mr)
		FT_CLOSE_FID(region->mr);
	syscall(SYS_munmap, region->memory, LENGTH);
}

static int mr_notify_unmap(void)
{
	struct region first, second = { .memory = NULL };
	int testret = FAIL;
	int ret;

	ret = map_and_register(&first, NULL, -1);
	if (ret)
		goto out;
	if (said(&first)) {
		sprintf(err_buf, "a mark before any change");
		goto out;
	}

	syscall(SYS_munmap, (char *) first.memory + LENGTH / 2, LENGTH / 4);
	if (!said(&first)) {
		sprintf(err_buf, "no mark after munmap");
		goto out;
	}
	if (ops->settle(first.mr) != -FI_EADDRNOTAVAIL) {
		sprintf(err_buf, "settle calls unmapped memory valid");
		goto out;
	}

	/* Map other memory at the same place while the first region is open */
	ret = map_and_register(&second, first.memory, -1);
	if (ret)
		goto out;
	if (said(&second) || !said(&first)) {
		sprintf(err_buf, "the new region has a mark, or the old one has none");
		goto out;
	}
	testret = PASS;
out:
	if (second.memory)
		end_region(&second);
	end_region(&first);
	return TEST_RET_VAL(ret, testret);
}

static int mr_notify_settle(void)
{
	int file = memfd_create("mr_notify", 0);
	struct region region;
	int testret = FAIL;
	int ret = -errno;

	if (file < 0 || ftruncate(file, LENGTH))
		return TEST_RET_VAL(ret, testret);

	ret = map_and_register(&region, NULL, file);
	if (ret)
		goto out;

	/* MADV_DONTNEED unmaps the pages, but the file keeps them. */
	syscall(SYS_madvise, region.memory, LENGTH, MADV_DONTNEED);
	if (!said(&region)) {
		sprintf(err_buf, "no mark after MADV_DONTNEED");
		goto out;
	}
	ret = ops->settle(region.mr);
	if (ret || said(&region)) {
		sprintf(err_buf, "settle failed although the pages are the same");
		goto out;
	}

	syscall(SYS_fallocate, file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		0UL, LENGTH);
	if (!said(&region) || ops->settle(region.mr) != -FI_EADDRNOTAVAIL) {
		sprintf(err_buf, "a punched hole did not invalidate the region");
		goto out;
	}
	testret = PASS;
out:
	end_region(&region);
	close(file);
	return TEST_RET_VAL(ret, testret);
}

static int mr_notify_changes(void)
{
	const uint64_t *changes;
	struct region region;
	int testret = FAIL;
	uint64_t before;
	int ret;

	ret = ops->changes(domain, &changes);
	if (ret)
		return TEST_RET_VAL(ret, testret);
	before = *(volatile const uint64_t *) changes;

	ret = map_and_register(&region, NULL, -1);
	if (ret)
		goto out;
	if (*(volatile const uint64_t *) changes != before) {
		sprintf(err_buf, "the counter moved before any change");
		goto out;
	}

	syscall(SYS_munmap, region.memory, LENGTH / 2);
	syscall(SYS_munmap, (char *) region.memory + LENGTH / 2, LENGTH / 2);
	if (*(volatile const uint64_t *) changes != before + 1) {
		sprintf(err_buf, "the counter did not count the region once");
		goto out;
	}
	testret = PASS;
out:
	end_region(&region);
	return TEST_RET_VAL(ret, testret);
}

/* The domain keeps no region that its user has closed. */
static int mr_notify_no_cache(void)
{
	const uint64_t *changes;
	struct region region;
	int testret = FAIL;
	uint64_t before;
	int ret;

	ret = ops->changes(domain, &changes);
	if (!ret)
		ret = map_and_register(&region, NULL, -1);
	if (ret)
		return TEST_RET_VAL(ret, testret);
	before = *(volatile const uint64_t *) changes;
	FT_CLOSE_FID(region.mr);

	syscall(SYS_munmap, (char *) region.memory + LENGTH / 2, LENGTH / 2);
	if (*(volatile const uint64_t *) changes != before) {
		sprintf(err_buf, "a closed region is still registered");
		goto out;
	}
	testret = PASS;
out:
	end_region(&region);
	return TEST_RET_VAL(ret, testret);
}

struct test_entry test_array[] = {
	TEST_ENTRY(mr_notify_unmap, "Test the word of memory that is unmapped"),
	TEST_ENTRY(mr_notify_settle, "Test settling a word"),
	TEST_ENTRY(mr_notify_changes, "Test the counter of changed regions"),
	TEST_ENTRY(mr_notify_no_cache, "Test that closed regions are not kept"),
	{ NULL, "" }
};

static void usage(char *name)
{
	ft_unit_usage(name, "Unit test for FI_MR_NOTIFY_OPS");
}

int main(int argc, char **argv)
{
	int op, ret;
	int failed = 0;

	hints = fi_allocinfo();
	if (!hints)
		return EXIT_FAILURE;

	while ((op = getopt(argc, argv, FAB_OPTS "h")) != -1) {
		switch (op) {
		default:
			ft_parseinfo(op, optarg, hints, &opts);
			break;
		case '?':
		case 'h':
			usage(argv[0]);
			return EXIT_FAILURE;
		}
	}

	ret = ft_init();
	if (ret)
		goto out;

	hints->mode = ~0;
	hints->domain_attr->mode = ~0;
	hints->domain_attr->mr_mode = ~OFI_MR_DEPRECATED;
	hints->caps |= FI_MSG | FI_RMA;
	ret = fi_getinfo(FT_FIVERSION, NULL, 0, 0, hints, &fi);
	if (ret)
		goto out;

	ret = ft_open_fabric_res();
	if (ret)
		goto out;

	ret = fi_open_ops(&domain->fid, FI_MR_NOTIFY_OPS, 0, (void **) &ops, NULL);
	if (ret)
		goto out;

	failed = run_tests(test_array, err_buf);
	printf("Summary: %d tests failed\n", failed);
out:
	ft_free_res();
	return ret ? ft_exit_code(ret) : failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
