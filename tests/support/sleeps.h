/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* Whether another thread of this process waits in the kernel. */
#ifndef SLEEPS_H
#define SLEEPS_H

#include <fstream>
#include <string>

#include <sys/types.h>

/* false if the thread has ended or has not started */
inline bool sleeps(pid_t thread)
{
	std::ifstream of("/proc/self/task/" + std::to_string(thread) + "/stat");
	std::string number;
	std::string name;
	char state = 0;

	of >> number >> name >> state;
	return state == 'S' || state == 'D';
}

#endif
