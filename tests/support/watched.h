/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* A registration whose word is armed. Most tests of notification begin with such a registration. */
#ifndef GUEST_WATCHED_H
#define GUEST_WATCHED_H

#include "catch.h"

#include <utility>

#include "device.h"
#include "rows.h"

struct watched {
	/* A registration of memory that this object owns. */
	watched(const mr_notify::device &on, mr_notify::memory mapped,
		int access = mr_notify::device::all_rights)
	    : m(std::move(mapped)), mr(on.register_memory(m.registered(), access))
	{
		REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
	}
	/* A registration of the caller's memory. */
	watched(const mr_notify::device &on, mr_notify::range part,
		int access = mr_notify::device::all_rights)
	    : mr(on.register_memory(part, access))
	{
		REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
	}

	/* Unmaps the object's memory; afterwards the MR is revoked if the driver can revoke. */
	void invalidate()
	{
		unmap_all(m);
		REQUIRE(w.value() == IBV_MR_NOTIFY_INVALID);
		REQUIRE(ibv_settle_mr_notify(mr.get()) == 0);
	}

	mr_notify::memory m; /* empty if the caller owns the memory */
	mr_notify::owned<ibv_mr> mr;
	mr_notify::word w;
};

#endif
