// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "opal_config.h"

#include "opal/mca/btl/ofi/btl_ofi.h"
#include "opal/mca/rcache/base/base.h"
#include "opal/runtime/opal.h"

#include <stdio.h>
#include <stdlib.h>

#include "grdma.h"

static mca_btl_ofi_module_t *module;

static void check(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "%s\n", what);
	exit(1);
}

void grdma_open(struct fid_domain *domain, struct fid_domain *asked)
{
	int count = 0;

	check(opal_init(&count, NULL) == OPAL_SUCCESS, "opal_init");
	check(mca_base_framework_open(&opal_rcache_base_framework, 0) == OPAL_SUCCESS, "rcache");
	mca_btl_ofi_component.super.btl_version.mca_register_component_params();

	module = mca_btl_ofi_module_alloc(MCA_BTL_OFI_MODE_ONE_SIDED);
	check(module != NULL, "mca_btl_ofi_module_alloc");
	module->linux_device_name = "bench";
	module->use_virt_addr = true;
	mca_btl_ofi_rcache_init(module);
	module->domain = asked;
	mca_btl_ofi_rcache_notify(module);
	module->domain = domain;
	check(!module->mr_notify == !mca_btl_ofi_component.mr_notify, "FI_MR_NOTIFY_OPS");
	if (module->mr_notify)
		module->mr_notify->changes(domain, &module->rcache->rcache_changes);
}

void grdma_use(void *base, size_t size)
{
	mca_btl_base_module_t *btl = &module->super;
	struct mca_btl_base_registration_handle_t *handle =
		btl->btl_register_mem(btl, NULL, base, size, MCA_BTL_REG_FLAG_ACCESS_ANY);

	check(handle != NULL, "btl_register_mem");
	btl->btl_deregister_mem(btl, handle);
}
