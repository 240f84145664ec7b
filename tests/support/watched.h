/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* A registration whose word is armed: most tests of notification begin with one. */
#ifndef GUEST_WATCHED_H
#define GUEST_WATCHED_H

#include "catch.h"

#include <utility>

#include "device.h"
#include "rows.h"

struct watched {
	/* Of memory that it owns. */
	watched(const mr_notify::device &on, mr_notify::memory mapped,
		int access = mr_notify::device::all_rights)
	    : m(std::move(mapped)), mr(on.register_memory(m.registered(), access))
	{
		REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
	}
	/* Of the caller's. */
	watched(const mr_notify::device &on, mr_notify::range part,
		int access = mr_notify::device::all_rights)
	    : mr(on.register_memory(part, access))
	{
		REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
	}

	/* Its own memory is unmapped, and revoked if the driver can. */
	void invalidate()
	{
		unmap_all(m);
		REQUIRE(w.value() == IBV_MR_NOTIFY_INVALID);
		REQUIRE(ibv_settle_mr_notify(mr.get()) == 0);
	}

	mr_notify::memory m; /* none if it is the caller's */
	mr_notify::owned<ibv_mr> mr;
	mr_notify::word w;
};

#endif
