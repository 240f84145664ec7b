// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * main() of the guest's Catch2 programs, and the reporter that tests/run reads: one line
 * a test case, "ok NAME", "not ok NAME" or "skip NAME: REASON", after the report of its
 * failures; "pace NAME" before the "not ok" of a case with the tag [pace].
 */
#define CATCH_CONFIG_RUNNER
#include "catch.h"

#if CATCH_VERSION_MAJOR >= 3
#include <catch2/catch_session.hpp>
#include <catch2/catch_test_case_info.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
#include <catch2/reporters/catch_reporter_streaming_base.hpp>
#endif

#include <algorithm>
#include <string>
#include <utility>

#include "skip.h"

namespace {

std::string skip_reason;

/* A case with this tag works at the kernel's own pace; tests/run may repeat it once. */
const std::string pace_tag = "pace";

#if CATCH_VERSION_MAJOR >= 3
using done = void;

bool is_pace(const Catch::Tag &tag)
{
	return std::string(tag.original.data(), tag.original.size()) == pace_tag;
}

struct reporter : Catch::StreamingReporterBase {
	explicit reporter(Catch::ReporterConfig config)
	    : StreamingReporterBase(std::move(config)), stream(m_stream)
	{
	}

	std::ostream &stream;
};
#else
using done = bool;

bool is_pace(const std::string &tag)
{
	return tag == pace_tag;
}

struct reporter : Catch::StreamingReporterBase<reporter> {
	using StreamingReporterBase::StreamingReporterBase;
};
#endif

struct lines : reporter {
	using reporter::reporter;

	static std::string getDescription() { return "one line a test case, for tests/run"; }

	void testCaseStarting(const Catch::TestCaseInfo &info) override
	{
		skip_reason.clear();
		name = info.name;
		paced = std::any_of(info.tags.begin(), info.tags.end(), is_pace);
		reporter::testCaseStarting(info);
	}

	void assertionStarting(const Catch::AssertionInfo &) override {}

	done assertionEnded(const Catch::AssertionStats &stats) override
	{
		const auto &result = stats.assertionResult;
		const bool warning = result.getResultType() == Catch::ResultWas::Warning;

		if (!result.isOk() || warning) {
			stream << result.getSourceInfo() << (warning ? ": warning:" : ": failed:");
			if (result.hasExpression())
				stream << ' ' << result.getExpressionInMacro();
			if (result.hasExpandedExpression())
				stream << " for: " << result.getExpandedExpression();
			for (const auto &message : stats.infoMessages)
				stream << "\n  " << message.message;
			for (std::size_t i = 1; i < m_sectionStack.size(); i++) /* 0 is the case */
				stream << "\n  in section: " << m_sectionStack[i].name;
			stream << std::endl;
		}
		return done(true);
	}

	void testCaseEnded(const Catch::TestCaseStats &stats) override
	{
		if (!stats.totals.assertions.allOk())
			stream << (paced ? "pace " + name + '\n' : "") << "not ok " << name << '\n';
		else if (!skip_reason.empty())
			stream << "skip " << name << ": " << skip_reason << '\n';
		else
			stream << "ok " << name << '\n';
		stream.flush();
		reporter::testCaseEnded(stats);
	}

	std::string name;
	bool paced = false;
};

CATCH_REGISTER_REPORTER("lines", lines)

} // namespace

void skip_test(const std::string &reason)
{
	skip_reason = reason;
}

int main(int argc, char **argv)
{
	return Catch::Session().run(argc, argv);
}
