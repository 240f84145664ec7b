/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The trace events of MR notification: the life of a registration from arming
 * to disarming, in /sys/kernel/tracing/events/ib_mr_notify.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM ib_mr_notify

#if !defined(UMEM_NOTIFY_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define UMEM_NOTIFY_TRACE_H

#include <linux/mmu_notifier.h>
#include <linux/tracepoint.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>

#include "umem_notify.h"

TRACE_DEFINE_ENUM(MMU_NOTIFY_UNMAP);
TRACE_DEFINE_ENUM(MMU_NOTIFY_CLEAR);
TRACE_DEFINE_ENUM(MMU_NOTIFY_RELEASE);
TRACE_DEFINE_ENUM(MMU_NOTIFY_MIGRATE);
TRACE_DEFINE_ENUM(UMEM_NOTIFY_USER);
TRACE_DEFINE_ENUM(UMEM_NOTIFY_ARM);
TRACE_DEFINE_ENUM(UMEM_NOTIFY_WORKER);

#define show_mr_notify_event(event)                                            \
	__print_symbolic(event,                                                \
			 { MMU_NOTIFY_UNMAP, "UNMAP" },                        \
			 { MMU_NOTIFY_CLEAR, "CLEAR" },                        \
			 { MMU_NOTIFY_RELEASE, "RELEASE" },                    \
			 { MMU_NOTIFY_MIGRATE, "MIGRATE" })

/* The kernel's bits of the word, were the MR armed. */
#define show_mr_notify_state(state)                                            \
	__print_symbolic(state, { 0, "VALID" }, { 1, "INVALID" },              \
			 { 2, "SUSPECT" }, { 4, "SUSPENDED" })

/* Each event names the registration first: device, MR, and its range. */
#define MR_NOTIFY_ENTRY(fields...)                                             \
	TP_STRUCT__entry(__string(dev, dev_name(&umem->ibdev->dev))            \
			 __field(u32, mr)                                      \
			 __field(unsigned long, start)                         \
			 __field(unsigned long, end)                           \
			 fields)

#define MR_NOTIFY_ASSIGN(assignments...)                                       \
	TP_fast_assign(__assign_str(dev);                                      \
		       __entry->mr = mr;                                       \
		       __entry->start = umem->address;                         \
		       __entry->end = umem->address + umem->length;            \
		       assignments)

#define MR_NOTIFY_PRINTK(format, args...)                                      \
	TP_printk("dev=%s mr=%u range=0x%lx-0x%lx " format, __get_str(dev),    \
		  __entry->mr, __entry->start, __entry->end, args)

DECLARE_EVENT_CLASS(mr_notify,
		    TP_PROTO(const struct ib_umem *umem, u32 mr, u8 state),
		    TP_ARGS(umem, mr, state),
		    MR_NOTIFY_ENTRY(__field(u8, state)),
		    MR_NOTIFY_ASSIGN(__entry->state = state;),
		    MR_NOTIFY_PRINTK("state=%s",
				     show_mr_notify_state(__entry->state)));

DEFINE_EVENT(mr_notify, mr_notify_arm,
	     TP_PROTO(const struct ib_umem *umem, u32 mr, u8 state),
	     TP_ARGS(umem, mr, state));

/* By a call, or because the registration ends. */
DEFINE_EVENT(mr_notify, mr_notify_disarm,
	     TP_PROTO(const struct ib_umem *umem, u32 mr, u8 state),
	     TP_ARGS(umem, mr, state));

/* Its context was closed or its device removed: the word says INVALID. */
DEFINE_EVENT(mr_notify, mr_notify_gone,
	     TP_PROTO(const struct ib_umem *umem, u32 mr, u8 state),
	     TP_ARGS(umem, mr, state));

/* It was idle, and the VM wanted its pages. */
DEFINE_EVENT(mr_notify, mr_notify_suspend,
	     TP_PROTO(const struct ib_umem *umem, u32 mr, u8 state),
	     TP_ARGS(umem, mr, state));

/* An event of the address space that may have changed the range. */
TRACE_EVENT(mr_notify_mark,
	    TP_PROTO(const struct ib_umem *umem, u32 mr, u8 state, bool armed,
		     const struct mmu_notifier_range *range),
	    TP_ARGS(umem, mr, state, armed, range),
	    MR_NOTIFY_ENTRY(__field(unsigned long, event_start)
			    __field(unsigned long, event_end)
			    __field(u32, event)
			    __field(u8, state)
			    __field(bool, armed)),
	    MR_NOTIFY_ASSIGN(__entry->event_start = range->start;
			     __entry->event_end = range->end;
			     __entry->event = range->event;
			     __entry->state = state;
			     __entry->armed = armed;),
	    MR_NOTIFY_PRINTK("state=%s armed=%d event=%s changes=0x%lx-0x%lx",
			     show_mr_notify_state(__entry->state), __entry->armed,
			     show_mr_notify_event(__entry->event), __entry->event_start,
			     __entry->event_end));

/* A call or a worker looked whether a SUSPECT range still maps the pinned pages. */
TRACE_EVENT(mr_notify_settle,
	    TP_PROTO(const struct ib_umem *umem, u32 mr, u8 state,
		     enum umem_notify_asker asker, int ret),
	    TP_ARGS(umem, mr, state, asker, ret),
	    MR_NOTIFY_ENTRY(__field(u32, asker)
			    __field(int, ret)
			    __field(u8, state)),
	    MR_NOTIFY_ASSIGN(__entry->asker = asker;
			     __entry->ret = ret;
			     __entry->state = state;),
	    MR_NOTIFY_PRINTK("state=%s by=%s ret=%d",
			     show_mr_notify_state(__entry->state),
			     __print_symbolic(__entry->asker,
					      { UMEM_NOTIFY_USER, "call" },
					      { UMEM_NOTIFY_ARM, "call" },
					      { UMEM_NOTIFY_WORKER, "worker" }),
			     __entry->ret));

/* The device lost its access and the pages went back, or the driver failed. */
TRACE_EVENT(mr_notify_revoke,
	    TP_PROTO(const struct ib_umem *umem, u32 mr, size_t pages, int ret),
	    TP_ARGS(umem, mr, pages, ret),
	    MR_NOTIFY_ENTRY(__field(size_t, pages) __field(int, ret)),
	    MR_NOTIFY_ASSIGN(__entry->pages = pages;
			     __entry->ret = ret;),
	    MR_NOTIFY_PRINTK("pages=%zu ret=%d", __entry->pages, __entry->ret));

/* A suspended one was to get the pages that its range maps now. */
TRACE_EVENT(mr_notify_restore,
	    TP_PROTO(const struct ib_umem *umem, u32 mr, int ret),
	    TP_ARGS(umem, mr, ret),
	    MR_NOTIFY_ENTRY(__field(int, ret)),
	    MR_NOTIFY_ASSIGN(__entry->ret = ret;),
	    MR_NOTIFY_PRINTK("ret=%d", __entry->ret));

#endif /* UMEM_NOTIFY_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#define TRACE_INCLUDE_FILE umem_notify_trace

#include <trace/define_trace.h>
