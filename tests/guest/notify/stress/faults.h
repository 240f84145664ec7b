/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The kernel's fault injection, only for this thread: slab and page allocations, and copies from
 * and to user space.
 */
#ifndef STRESS_FAULTS_H
#define STRESS_FAULTS_H

#include <functional>
#include <string>

namespace stress {

class faults {
public:
	/* Sets up the faults; the destructor removes them. */
	faults();
	~faults();
	faults(const faults &) = delete;
	faults &operator=(const faults &) = delete;

	bool possible() const { return possible_; }

	/*
	 * Counts the calls in `in` that can fail. The n-th such call returns an error. Returns
	 * false if `in` makes fewer such calls.
	 */
	bool inject(unsigned int n, const std::function<void()> &in) const;

	/* Makes one call in ten fail. */
	void sometimes(const std::function<void()> &in) const;

	/*
	 * Makes one allocation fail in the process's threads that have this name, after these
	 * threads have allocated `later` pages, or `later` bytes of slabs. Returns whether an
	 * allocation failed.
	 */
	bool in_threads(const std::string &name, unsigned int later,
			const std::function<void()> &in) const;

private:
	bool possible_ = false;
};

constexpr unsigned int most_places = 2000;

/*
 * Calls `once` with a failure at the first point, then at the second point, and so on, until no
 * point is left. Returns the number of points.
 */
template <class Do> unsigned int at_each_place(Do once)
{
	unsigned int n = 1;

	while (n < most_places && once(n))
		n++;
	return n - 1;
}

} // namespace stress

#endif
