// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* The only file that defines the trace events of MR notification. */

#define CREATE_TRACE_POINTS

#include "umem_notify_trace.h"
