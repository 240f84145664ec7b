/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The processes on the other node. The owner has memory that peers on this node reach. The watcher
 * watches this memory after the owner has given it back.
 */
#ifndef GUEST_NODES_OWNER_H
#define GUEST_NODES_OWNER_H

#include <istream>
#include <memory>
#include <ostream>
#include <thread>
#include <vector>

#include "iwarp.h"
#include "reliable.h"

/*
 * Write the structs to a line and read them again. The operators must be in the namespace of the
 * structs.
 */
namespace mr_notify {
std::ostream &operator<<(std::ostream &out, const address &one);
std::istream &operator>>(std::istream &in, address &one);
} // namespace mr_notify

namespace nodes {

/* Obeys lines with a command and its arguments; obey() has the list. */
class owner {
public:
	owner();
	~owner();
	void obey(std::istream &words, std::ostream &answer);

private:
	void map(std::istream &words, std::ostream &answer);
	void connect(std::istream &words, std::ostream &answer);
	void listen(std::ostream &answer);
	void lose(const std::string &how, std::ostream &answer);
	void suspend(std::ostream &answer);
	void drop(std::istream &words);
	void disturb();

	mr_notify::device on_;
	mr_notify::owned<ibv_cq> cq_;
	mr_notify::memory memory_;
	mr_notify::range whole_;
	std::size_t pinned_before_ = 0;
	mr_notify::word word_;
	mr_notify::owned<ibv_mr> mr_;
	std::vector<mr_notify::owned<ibv_qp>> qps_;
	std::vector<std::unique_ptr<mr_notify::iwarp_listener>> listeners_; /* over iWARP */
	std::jthread disturber_;
};

class watcher {
public:
	void obey(std::istream &words, std::ostream &answer);

private:
	int fd_ = -1;
	std::size_t length_ = 0;
};

} // namespace nodes

#endif
