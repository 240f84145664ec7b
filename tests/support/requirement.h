/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * A requirement is a tag of test cases. If the machine or the device does not meet the requirement,
 * main() skips the cases with this tag. main() refuses a tag that is no requirement.
 */
#ifndef SUPPORT_REQUIREMENT_H
#define SUPPORT_REQUIREMENT_H

#include <string>
#include <vector>

struct requirement {
	std::string tag;
	std::string reason; /* printed for each case that is skipped */
	/* Called at most once, and only if a case with the tag is about to run. */
	bool (*is_met)();
};

/* Define the object at namespace scope. Its constructor adds it to the program's requirements. */
struct requirements {
	explicit requirements(const std::vector<requirement> &more);
};

#endif
