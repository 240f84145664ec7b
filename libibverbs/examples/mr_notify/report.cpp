// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "report.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cstdio>

namespace mr_notify {
namespace {

std::string word_text(uint64_t word)
{
	switch (word) {
	case 0:
		return "0";
	case IBV_MR_NOTIFY_INVALID:
		return "INVALID";
	case IBV_MR_NOTIFY_SUSPECT:
		return "SUSPECT";
	case IBV_MR_NOTIFY_INVALID | IBV_MR_NOTIFY_SUSPECT:
		return "INV+SUSP";
	default:
		return fmt::format("{:#x}", word);
	}
}

const char *expected_text(effect e)
{
	return e == effect::invalidates ? "INVALID" : "0";
}

/* Says whether the device reached the same bytes as the CPU, or had no access. */
const char *device_text(const observation &seen)
{
	if (seen.reached)
		return *seen.reached ? "same" : "OTHER";
	if (seen.refused)
		return *seen.refused ? "refused" : "REACHES";
	return "-";
}

double microseconds(std::chrono::nanoseconds t)
{
	return static_cast<double>(t.count()) / 1000;
}

std::string cost_text(const row &one)
{
	if (!is_timed(one.what))
		return fmt::format(" {:>9}", "-");
	return fmt::format(" {:>+9.1f}", microseconds(one.seen.armed - one.seen.plain));
}

class text : public report {
public:
	explicit text(bool cost) : cost_(cost) {}

	void start(const device &on) override
	{
		fmt::print("device {}: notification {}, revoke {}\n\n", on.name(),
			   on.can_notify() ? "yes" : "no", on.can_revoke() ? "yes" : "no");
	}

	void scenario(const std::vector<step> &steps) override
	{
		for (const step &s : steps) {
			fmt::print("{:5} {} ({})\n", s.ok ? "ok" : "WRONG", s.what, s.seen);
			wrong_ += !s.ok;
		}
		fmt::print("\n{:42} {:8} {:8} {:8} {:>9} device{}\n", "operation", "expected",
			   "after", "settled", "pinned", cost_ ? "  cost [us]" : "");
		std::fflush(stdout);
	}

	void begin(const operation &what) override
	{
		fmt::print("{:42} {:8} ", what.name, expected_text(what.expected));
		std::fflush(stdout);
	}

	void add(const row &one) override
	{
		if (one.seen.skipped) {
			skipped_++;
			fmt::print("-- {}\n", *one.seen.skipped);
		} else {
			right_ += one.wrong.empty();
			wrong_ += !one.wrong.empty();
			const std::string more = (cost_ ? cost_text(one) : "") +
						 (one.wrong.empty() ? "" : "  WRONG: ") + one.wrong;
			fmt::print("{:8} {:8} {:>9} {:{}}{}\n", word_text(one.seen.word_after),
				   word_text(one.seen.word_settled),
				   fmt::format("{}/{}", one.seen.pages_pinned, one.seen.pages),
				   device_text(one.seen), more.empty() ? 0 : 7, more);
		}
		std::fflush(stdout);
	}

	void finish() override
	{
		fmt::print("\n{} operations right, {} not possible here, {} wrong\n"
			   "device: RDMA moves the bytes that the CPU sees (same), or is refused\n",
			   right_, skipped_, wrong_);
		if (cost_)
			fmt::print("cost: the additional time of the operation if the registration "
				   "is armed (best of 3)\n");
	}

private:
	const bool cost_;
	int right_ = 0;
	int wrong_ = 0;
	int skipped_ = 0;
};

class json : public report {
public:
	void start(const device &on) override
	{
		out_["device"] = on.name();
		out_["notify"] = on.can_notify();
		out_["revoke"] = on.can_revoke();
		out_["operations"] = nlohmann::json::array();
	}

	void scenario(const std::vector<step> &steps) override
	{
		for (const step &s : steps)
			out_["scenario"].push_back(
				{{"step", s.what}, {"ok", s.ok}, {"seen", s.seen}});
	}

	void begin(const operation &) override {}

	void add(const row &one) override
	{
		nlohmann::json row{{"operation", one.what.name},
				   {"expected", expected_text(one.what.expected)}};

		if (one.seen.skipped) {
			row["skipped"] = *one.seen.skipped;
		} else {
			row["word_after"] = one.seen.word_after;
			row["word_settled"] = one.seen.word_settled;
			row["pages"] = one.seen.pages;
			row["pages_pinned"] = one.seen.pages_pinned;
			row["device"] = device_text(one.seen);
			if (is_timed(one.what)) {
				row["plain_us"] = microseconds(one.seen.plain);
				row["armed_us"] = microseconds(one.seen.armed);
			}
			row["ok"] = one.wrong.empty();
			if (!one.wrong.empty())
				row["wrong"] = one.wrong;
		}
		out_["operations"].push_back(row);
	}

	void finish() override { fmt::print("{}\n", out_.dump(2)); }

private:
	nlohmann::json out_;
};

} // namespace

std::unique_ptr<report> text_report(bool cost)
{
	return std::make_unique<text>(cost);
}

std::unique_ptr<report> json_report()
{
	return std::make_unique<json>();
}

} // namespace mr_notify
