/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* The output of ibv_mr_notify: as a table for people, as JSON for programs. */
#ifndef MR_NOTIFY_REPORT_H
#define MR_NOTIFY_REPORT_H

#include <string>
#include <vector>

#include "operations.h"
#include "scenario.h"
#include "trial.h"

namespace mr_notify {

struct row {
	operation what;
	observation seen;
	std::string wrong; /* empty: as the contract says */
};

/* Prints as it goes: the row that is tried has its name there, if it takes long or hangs. */
class report {
public:
	virtual ~report() = default;
	virtual void start(const device &on) = 0;
	virtual void scenario(const std::vector<step> &steps) = 0;
	virtual void begin(const operation &what) = 0;
	virtual void add(const row &one) = 0;
	virtual void finish() = 0;
};

/* "cost": with each operation's extra time beside a registration. */
std::unique_ptr<report> text_report(bool cost);
std::unique_ptr<report> json_report();

} // namespace mr_notify

#endif
