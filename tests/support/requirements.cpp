// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* What several guest programs require of the machine and the device. */
#include "requirement.h"

#include <unistd.h>

#include "capability.h"
#include "device.h"
#include "probe.h"
#include "raw_peer.h"
#include "slow_memory.h"

using namespace mr_notify;
using namespace odp;

namespace {

template <class F> bool is_supported(F make)
{
	try {
		make();
		return true;
	} catch (const unsupported &) {
		return false;
	}
}

const requirements all({
	{"roce", "the device is iWARP", [] { return !device().is_iwarp(); }},
	{"iwarp", "the device is not iWARP", [] { return device().is_iwarp(); }},
	{"revoke", "the driver can't revoke", [] { return device().can_revoke(); }},
	{"suspend", "the device can't restore", [] { return can_reclaim(device()); }},
	{"odp", "no on-demand paging", [] { return offers_all(device()); }},
	{"mw", "the device has no memory windows",
	 [] {
		 const device on;

		 return owned<ibv_mw>(ibv_alloc_mw(on.pd(), IBV_MW_TYPE_1)) != nullptr;
	 }},
	{"veth", "no soft-RoCE on a veth", [] { return is_supported([] { cable(); }); }},
	{"veth odp", "no on-demand paging on a veth",
	 [] { return is_supported([] { cable(); }) && offers_all(cable().on()); }},
	{"userfaultfd", "no userfaultfd",
	 [] { return is_supported([] { slow_memory::make(page_size()); }); }},
	{"kprobes", "this kernel has no kprobes", [] { return !access(probe::file, W_OK); }},
	{"two cpus", "one CPU: nothing runs at the same time as a call",
	 [] { return sysconf(_SC_NPROCESSORS_ONLN) >= 2; }},
});

} // namespace
