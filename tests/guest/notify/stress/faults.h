/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The kernel's fault injection, for this thread alone: allocations of slab and
 * of pages, and copies from and to user space.
 */
#ifndef STRESS_FAULTS_H
#define STRESS_FAULTS_H

#include <functional>

namespace stress {

class faults {
public:
	/* Sets up the faults. Takes them back in the end. */
	faults();
	~faults();
	faults(const faults &) = delete;
	faults &operator=(const faults &) = delete;

	bool possible() const { return possible_; }

	/* Lets the n-th thing fail that can fail in it. False if there are fewer. */
	bool inject(unsigned int n, const std::function<void()> &in) const;

	/* Lets one in ten fail. */
	void sometimes(const std::function<void()> &in) const;

private:
	bool possible_ = false;
};

} // namespace stress

#endif
