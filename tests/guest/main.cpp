// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * main() of the guest's Catch2 programs, and the reporter that tests/run reads:
 * one line a test case, "ok NAME", "not ok NAME" or "skip NAME: REASON", after
 * what Catch2 says of its failures.
 */
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>

#include "skip.h"

namespace {

std::string skip_reason;

struct lines : Catch::CompactReporter {
	using CompactReporter::CompactReporter;

	static std::string getDescription() { return "one line a test case, for tests/run"; }

	void testCaseStarting(const Catch::TestCaseInfo &info) override
	{
		skip_reason.clear();
		CompactReporter::testCaseStarting(info);
	}

	void testCaseEnded(const Catch::TestCaseStats &stats) override
	{
		if (!stats.totals.assertions.allOk())
			stream << "not ok " << stats.testInfo.name << '\n';
		else if (!skip_reason.empty())
			stream << "skip " << stats.testInfo.name << ": " << skip_reason << '\n';
		else
			stream << "ok " << stats.testInfo.name << '\n';
		stream.flush();
		CompactReporter::testCaseEnded(stats);
	}
};

CATCH_REGISTER_REPORTER("lines", lines)

} // namespace

void skip_test(const std::string &reason)
{
	skip_reason = reason;
}
