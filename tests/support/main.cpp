// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * main() of the Catch2 programs, which skips the cases whose requirements are not met, and the
 * reporter that tests/run reads. The reporter prints one line per case after the report of the
 * case's failures: "ok NAME", "not ok NAME" or "skip NAME: REASON". For a case with the tag [pace]
 * it prints "pace NAME" before "not ok".
 */
#define CATCH_CONFIG_RUNNER
#include "catch.h"

#if CATCH_VERSION_MAJOR >= 3
#include <catch2/catch_session.hpp>
#include <catch2/catch_test_case_info.hpp>
#include <catch2/catch_test_spec.hpp>
#include <catch2/internal/catch_test_case_registry_impl.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
#include <catch2/reporters/catch_reporter_streaming_base.hpp>
#endif

#include <algorithm>
#include <exception>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "requirement.h"
#include "skip.h"

namespace {

std::string skip_reason;

/* A case with this tag depends on the kernel's pace; tests/run may repeat it once. */
const std::string pace_tag = "pace";

#if CATCH_VERSION_MAJOR >= 3
using done = void;

std::string text(const Catch::Tag &tag)
{
	return {tag.original.data(), tag.original.size()};
}

const Catch::TestCaseInfo &info_of(const Catch::TestCaseHandle &one)
{
	return one.getTestCaseInfo();
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

const std::string &text(const std::string &tag)
{
	return tag;
}

const Catch::TestCaseInfo &info_of(const Catch::TestCase &one)
{
	return one;
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
		paced = std::any_of(info.tags.begin(), info.tags.end(),
				    [](const auto &tag) { return text(tag) == pace_tag; });
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

/* A tag of Catch2's own: [.] hides a case. */
bool is_known(const std::string &tag)
{
	return tag == pace_tag || tag == "." || tag == "hide" || tag == "!hide";
}

std::map<std::string, requirement> &all_requirements()
{
	static std::map<std::string, requirement> all;

	return all;
}

bool evaluate(const requirement &one)
{
	try {
		return one.is_met();
	} catch (const std::exception &) {
		return true; /* the cases fail, and report why */
	}
}

bool is_met(const std::string &tag)
{
	static std::map<std::string, bool> known;
	const auto found = known.find(tag);

	if (found != known.end())
		return found->second;
	return known[tag] = evaluate(all_requirements().at(tag));
}

/* The reason to skip a case, if there is one. */
std::string lacks(const Catch::TestCaseInfo &info)
{
	for (const auto &tag : info.tags) {
		const std::string name = text(tag);

		if (is_known(name))
			continue;
		if (!all_requirements().count(name))
			throw std::runtime_error("unknown tag [" + name + "]: " + info.name);
		if (!is_met(name))
			return all_requirements().at(name).reason;
	}
	return {};
}

/* A filter for only the case with this name. */
std::string filter_for(const std::string &name)
{
	std::string filter;

	for (const char c : name) {
		if (std::string("[],\"\\*~").find(c) != std::string::npos)
			filter += '\\';
		filter += c;
	}
	return filter;
}

/* Prints the cases that are skipped. Returns false if no case is left to run. */
bool keep_possible(Catch::Session &session)
{
	const Catch::Config &config = session.config();
	Catch::ConfigData data = session.configData();
	std::string kept; /* one argument, because a case must match each argument */
	bool skipped = false;

	for (const auto &one :
	     filterTests(getAllTestCasesSorted(config), config.testSpec(), config)) {
		const Catch::TestCaseInfo &info = info_of(one);
		const std::string reason = lacks(info);

		if (reason.empty()) {
			kept += (kept.empty() ? "" : ",") + filter_for(info.name);
			continue;
		}
		skipped = true;
		std::cout << "skip " << info.name << ": " << reason << std::endl;
	}
	if (!skipped)
		return true;
	data.testsOrTags = {kept};
	session.useConfigData(data);
	return !kept.empty();
}

} // namespace

requirements::requirements(const std::vector<requirement> &more)
{
	for (const requirement &one : more)
		all_requirements().emplace(one.tag, one);
}

void skip_test(const std::string &reason)
{
	skip_reason = reason;
}

int main(int argc, char **argv)
{
	Catch::Session session;
	const int error = session.applyCommandLine(argc, argv);

	if (error)
		return error;
	const Catch::ConfigData &asked = session.configData();
	const bool runs =
		!asked.showHelp && !asked.listTests && !asked.listTags && !asked.listReporters;
	try {
		if (runs && !keep_possible(session))
			return 0;
	} catch (const std::exception &problem) {
		std::cerr << problem.what() << std::endl;
		return 1;
	}
	return session.run();
}
