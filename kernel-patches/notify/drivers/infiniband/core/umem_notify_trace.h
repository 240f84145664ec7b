/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The trace events of MR notification, from arming an MR to disarming it, in
 * /sys/kernel/tracing/events/ib_mr_notify.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM ib_mr_notify

#if !defined(UMEM_NOTIFY_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define UMEM_NOTIFY_TRACE_H

#include <linux/tracepoint.h>

#include "umem_notify.h"

TRACE_DEFINE_ENUM(MMU_NOTIFY_UNMAP);
TRACE_DEFINE_ENUM(MMU_NOTIFY_CLEAR);
TRACE_DEFINE_ENUM(MMU_NOTIFY_RELEASE);
TRACE_DEFINE_ENUM(MMU_NOTIFY_MIGRATE);

#define show_mr_notify_event(event)                                                       \
	__print_symbolic(event, { MMU_NOTIFY_UNMAP, "UNMAP" }, { MMU_NOTIFY_CLEAR, "CLEAR" }, \
			 { MMU_NOTIFY_RELEASE, "RELEASE" }, { MMU_NOTIFY_MIGRATE, "MIGRATE" })

/* The state of the tracker; the word of an armed MR has the same bits. */
#define show_mr_notify_state(state)                                                       \
	__print_symbolic(state, { 0, "VALID" }, { 1, "INVALID" }, { 2, "SUSPECT" },       \
			 { 4, "SUSPENDED" })

/*
 * Each event first names the registration: device, MR and range. Then come the state after the
 * step, whether a call or the worker did the step, and the result.
 */
#define MR_NOTIFY_ENTRY(fields...)                                             \
	TP_STRUCT__entry(__string(dev, dev_name(&n->umem->ibdev->dev))         \
			 __field(u32, mr)                                      \
			 __field(unsigned long, start)                         \
			 __field(unsigned long, end)                           \
			 __field(u8, state)                                    \
			 __field(bool, armed)                                  \
			 __field(bool, worker) fields)

#define MR_NOTIFY_ASSIGN(assignments...)                                       \
	TP_fast_assign(__assign_str(dev);                                      \
		       __entry->mr = n->mr ? n->mr->res.id : 0;                \
		       __entry->start = n->umem->address;                      \
		       __entry->end = n->umem->address + n->umem->length;      \
		       __entry->state = READ_ONCE(n->state);                   \
		       __entry->armed = n->armed;                              \
		       __entry->worker = current->flags & PF_WQ_WORKER;        \
		       assignments)

#define MR_NOTIFY_PRINTK(format, args...)                                      \
	TP_printk("dev=%s mr=%u range=0x%lx-0x%lx state=%s armed=%d by=%s " format,              \
		  __get_str(dev), __entry->mr, __entry->start, __entry->end,                     \
		  show_mr_notify_state(__entry->state), __entry->armed,                          \
		  __entry->worker ? "worker" : "call", args)

DECLARE_EVENT_CLASS(mr_notify,
		    TP_PROTO(const struct ib_umem_notify *n, int ret),
		    TP_ARGS(n, ret),
		    MR_NOTIFY_ENTRY(__field(u32, pages) __field(int, ret)),
		    MR_NOTIFY_ASSIGN(__entry->pages = umem_notify_pages(n);
				     __entry->ret = ret;),
		    MR_NOTIFY_PRINTK("pages=%u ret=%d", __entry->pages, __entry->ret));

#define MR_NOTIFY_EVENT(name)                                                  \
	DEFINE_EVENT(mr_notify, name,                                          \
		     TP_PROTO(const struct ib_umem_notify *n, int ret),        \
		     TP_ARGS(n, ret))

MR_NOTIFY_EVENT(mr_notify_arm);
/* A call disarmed the MR, or the registration ended. */
MR_NOTIFY_EVENT(mr_notify_disarm);
/* The word says INVALID, for example because the context was closed. */
MR_NOTIFY_EVENT(mr_notify_gone);
/* The MR was idle, and the VM wanted its pages. */
MR_NOTIFY_EVENT(mr_notify_suspend);
/* A call or the worker compared the pages of a SUSPECT range. */
MR_NOTIFY_EVENT(mr_notify_settle);
/* The device lost its access and the pages were unpinned, or the driver failed. */
MR_NOTIFY_EVENT(mr_notify_revoke);
/* A call tried to restore a suspended MR. */
MR_NOTIFY_EVENT(mr_notify_restore);

/* An event of the address space that may have changed the range. */
TRACE_EVENT(mr_notify_mark,
	    TP_PROTO(const struct ib_umem_notify *n, const struct mmu_notifier_range *range),
	    TP_ARGS(n, range),
	    MR_NOTIFY_ENTRY(__field(unsigned long, event_start)
			    __field(unsigned long, event_end)
			    __field(u32, event)),
	    MR_NOTIFY_ASSIGN(__entry->event_start = range->start;
			     __entry->event_end = range->end;
			     __entry->event = range->event;),
	    MR_NOTIFY_PRINTK("event=%s changes=0x%lx-0x%lx",
			     show_mr_notify_event(__entry->event), __entry->event_start,
			     __entry->event_end));

#endif /* UMEM_NOTIFY_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#define TRACE_INCLUDE_FILE umem_notify_trace

#include <trace/define_trace.h>
