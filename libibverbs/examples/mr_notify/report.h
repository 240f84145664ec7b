/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* The output of ibv_mr_notify is a table for people, or JSON for programs. */
#ifndef MR_NOTIFY_REPORT_H
#define MR_NOTIFY_REPORT_H

#include <string>
#include <vector>

#include "operation.h"
#include "scenario.h"
#include "trial.h"

namespace mr_notify {

struct row {
	operation what;
	observation seen;
	std::string wrong; /* empty if the row fulfils the contract */
};

/* begin() prints the name of a row before the row is tried, because a row may take long or hang. */
class report {
public:
	virtual ~report() = default;
	virtual void start(const device &on) = 0;
	virtual void scenario(const std::vector<step> &steps) = 0;
	virtual void begin(const operation &what) = 0;
	virtual void add(const row &one) = 0;
	virtual void finish() = 0;
};

/* If @cost is true, also prints how much longer each operation takes with an armed MR. */
std::unique_ptr<report> text_report(bool cost);
std::unique_ptr<report> json_report();

} // namespace mr_notify

#endif
