// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "owner.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include "system.h"

namespace mr_notify {

std::ostream &operator<<(std::ostream &out, const address &one)
{
	out << one.lid << ' ' << unsigned{one.link_layer} << ' ' << one.mtu << ' ' << one.qp << ' '
	    << one.psn;
	for (const uint8_t byte : one.gid.raw)
		out << ' ' << unsigned{byte};
	return out;
}

std::istream &operator>>(std::istream &in, address &one)
{
	unsigned int number = 0;

	in >> one.lid >> number;
	one.link_layer = static_cast<uint8_t>(number);
	in >> number >> one.qp >> one.psn;
	one.mtu = static_cast<ibv_mtu>(number);
	for (uint8_t &byte : one.gid.raw)
		if (in >> number)
			byte = static_cast<uint8_t>(number);
	return in;
}

} // namespace mr_notify

namespace nodes {

using namespace mr_notify;
using namespace std::chrono_literals;

namespace {

constexpr int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
		       IBV_ACCESS_REMOTE_ATOMIC;
constexpr uint64_t in_use = 0xff00;
constexpr char watched = 0x5a;

template <class T> T next(std::istream &words)
{
	T value{};

	if (!(words >> value))
		throw std::runtime_error("a word is missing");
	return value;
}

} // namespace

owner::owner() : cq_(ibv_create_cq(on_.context(), 64, nullptr, nullptr, 0))
{
	if (!cq_)
		fail("ibv_create_cq");
}

owner::~owner() = default;

/* Arguments: the kind of memory, its length, and how the registration learns of changes. */
void owner::map(std::istream &words, std::ostream &answer)
{
	const auto kind = next<std::string>(words);
	const auto length = next<std::size_t>(words);
	const auto arm = next<std::string>(words);

	disturber_ = {};
	listeners_.clear();
	qps_.clear();
	mr_.reset();
	*word_.address() = 0;
	memory_ = kind == "file" ? shared_file(length) : anonymous(length);
	whole_ = memory_.registered();
	pinned_before_ = pinned_bytes();
	if (arm == "all") {
		mr_.reset(ibv_register_mr_all(on_.pd(), rights));
		if (!mr_)
			fail("ibv_register_mr_all");
	} else {
		mr_ = on_.register_memory(whole_, rights);
		check_verb(arm == "reclaim"
				   ? ibv_reg_mr_notify_reclaim(mr_.get(), word_.address(), in_use)
				   : ibv_reg_mr_notify(mr_.get(), word_.address()),
			   "ibv_reg_mr_notify");
	}
	answer << reinterpret_cast<uintptr_t>(whole_.addr) << ' ' << mr_->rkey << ' ' << getpid()
	       << ' ' << memory_.fd();
}

/* A peer sends its address, and gets ours. */
void owner::connect(std::istream &words, std::ostream &answer)
{
	const auto other = next<address>(words);
	qps_.push_back(make_reliable(on_, cq_.get()));
	address own = address_of(qps_.back().get());

	own.mtu = other.mtu;
	own.psn = other.psn;
	connect_reliable(qps_.back().get(), own, other);
	answer << own;
}

/*
 * Over iWARP, answers with the address to which the peer connects. The command "take" accepts the
 * connection.
 */
void owner::listen(std::ostream &answer)
{
	listeners_.push_back(std::make_unique<iwarp_listener>(on_));
	qps_.push_back(make_reliable(on_, cq_.get()));
	const sockaddr_in where = listeners_.back()->where();
	answer << where.sin_addr.s_addr << ' ' << where.sin_port;
}

/*
 * Answers with the bytes that are still pinned, and the value of the word immediately and after
 * settling.
 */
void owner::lose(const std::string &how, std::ostream &answer)
{
	if (how == "unmap") {
		memory_.forget(whole_);
		if (munmap(whole_.addr, whole_.length))
			fail("munmap");
	} else if (ftruncate(memory_.fd(), 0)) {
		fail("ftruncate");
	}
	const uint64_t at_once = word_.value();
	check_verb(ibv_settle_mr_notify(mr_.get()), "ibv_settle_mr_notify");
	answer << pinned_bytes() - pinned_before_ << ' ' << at_once << ' ' << word_.value();
}

void owner::suspend(std::ostream &answer)
{
	const bool suspended = happens([&] {
		write_system_file("/proc/sys/vm/drop_caches", "2");
		return word_.value() == IBV_MR_NOTIFY_SUSPENDED;
	});

	if (!suspended)
		throw std::runtime_error("it was not suspended");
	happens([&] { return pinned_bytes() <= pinned_before_ + page_size(); });
	answer << pinned_bytes() - pinned_before_ << ' ' << word_.value();
}

/* Drops pages, so that their bytes become 0. Arguments: the first byte and the number of bytes. */
void owner::drop(std::istream &words)
{
	const auto first = next<std::size_t>(words);
	const auto bytes = next<std::size_t>(words);

	if (madvise(whole_.addr + first, bytes, memory_.fd() < 0 ? MADV_DONTNEED : MADV_REMOVE))
		fail("madvise");
}

/* Starts events that change no byte, but remove or replace pages in the page tables. */
void owner::disturb()
{
	disturber_ = std::jthread([this](const std::stop_token &over) {
		const std::size_t pages = whole_.length / page_size();

		for (std::size_t i = 0; !over.stop_requested(); i++) {
			const std::size_t first = i * 7 % pages;
			const std::size_t length = std::min<std::size_t>(1 + i % 9, pages - first);
			const range r{whole_.addr + first * page_size(), length * page_size()};

			madvise(r.addr, r.length, i % 2 ? MADV_PAGEOUT : MADV_COLD);
			if (memory_.fd() >= 0)
				madvise(r.addr, r.length, MADV_DONTNEED); /* stays in the file */
			mprotect(r.addr, r.length, PROT_READ | PROT_WRITE | PROT_EXEC);
			mprotect(r.addr, r.length, PROT_READ | PROT_WRITE);
			if (i % 16 == 0) {
				const pid_t child = fork();

				if (child == 0)
					_exit(0);
				if (child > 0)
					waitpid(child, nullptr, 0);
			}
			std::this_thread::sleep_for(2ms);
		}
	});
}

void owner::obey(std::istream &words, std::ostream &answer)
{
	const auto command = next<std::string>(words);

	if (command == "pid")
		answer << getpid();
	else if (command == "map")
		map(words, answer);
	else if (command == "connect")
		connect(words, answer);
	else if (command == "listen")
		listen(answer);
	else if (command == "take")
		listeners_.back()->take(qps_.back().get());
	else if (command == "unmap" || command == "truncate")
		lose(command, answer);
	else if (command == "suspend")
		suspend(answer);
	else if (command == "settle")
		answer << ibv_settle_mr_notify(mr_.get()) << ' ' << word_.value();
	else if (command == "drop")
		drop(words);
	else if (command == "disturb")
		disturb();
	else
		throw std::runtime_error("no command");
}

/*
 * The command "watch" opens a file of a process. "take" fills the file with known bytes. "foreign"
 * answers how many bytes have changed since then.
 */
void watcher::obey(std::istream &words, std::ostream &answer)
{
	const auto command = next<std::string>(words);

	if (command == "pid") {
		answer << getpid();
	} else if (command == "watch") {
		close(fd_);
		const auto pid = next<std::string>(words);
		const auto fd = next<std::string>(words);

		length_ = next<std::size_t>(words);
		fd_ = open(("/proc/" + pid + "/fd/" + fd).c_str(), O_RDWR | O_CLOEXEC);
		if (fd_ < 0)
			fail("open");
	} else if (command == "take") {
		const std::string bytes(length_, watched);

		if (pwrite(fd_, bytes.data(), length_, 0) != static_cast<ssize_t>(length_))
			fail("pwrite");
	} else if (command == "foreign") {
		std::string bytes(length_, 0);

		if (pread(fd_, bytes.data(), length_, 0) != static_cast<ssize_t>(length_))
			fail("pread");
		answer << std::count_if(bytes.begin(), bytes.end(),
					[](char one) { return one != watched; });
	} else {
		throw std::runtime_error("no command");
	}
}

} // namespace nodes
