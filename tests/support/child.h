/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Runs one of the program's hidden test cases in another process with another environment, because
 * libibverbs reads its environment only once in a process.
 */
#ifndef GUEST_CHILD_H
#define GUEST_CHILD_H

#include <string>
#include <vector>

struct child_result {
	int status = -1;		/* as waitpid() gives it */
	std::vector<std::string> lines; /* the lines that it reported by tell() */
};

/* @environment: "NAME=VALUE" sets a variable, "NAME" unsets it. The child shares our outputs. */
child_result run_child(const std::string &hidden_test, const std::vector<std::string> &environment);

/* Call this in the child: sends one line to its parent. */
void tell(const std::string &line);

#endif
