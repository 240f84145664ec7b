// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* The trace events of MR notification: their one definition. */

#define CREATE_TRACE_POINTS

#include "umem_notify_trace.h"
