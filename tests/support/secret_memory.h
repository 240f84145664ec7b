/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* Memory that the process may access, but not a device: memfd_secret(2). */
#ifndef GUEST_SECRET_MEMORY_H
#define GUEST_SECRET_MEMORY_H

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memory.h"

/* Maps secret memory at the range. Without support it returns false and changes nothing. */
inline bool make_secret(mr_notify::range r)
{
	const int fd = static_cast<int>(syscall(447 /* memfd_secret */, 0));
	const bool made = fd >= 0 && ftruncate(fd, static_cast<off_t>(r.length)) == 0 &&
			  mmap(r.addr, r.length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
			       0) == r.addr;

	if (fd >= 0)
		close(fd);
	return made;
}

#endif
