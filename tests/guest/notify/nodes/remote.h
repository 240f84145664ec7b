/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * A process on the other node of tests/lab/run --nodes 2. The process runs a hidden test case of
 * this program. The test case obeys commands line by line, and answers each command with a line.
 */
#ifndef GUEST_NODES_REMOTE_H
#define GUEST_NODES_REMOTE_H

#include <sys/types.h>

#include <cstdio>
#include <istream>
#include <sstream>
#include <string>
#include <vector>

namespace nodes {

/* Runs a program of this node, and throws if it fails: lab-on, lab-node. */
void run(const std::vector<std::string> &command);
bool has_another_node();

class remote {
public:
	explicit remote(const std::string &hidden_test);
	remote(const remote &) = delete;
	remote &operator=(const remote &) = delete;
	~remote();

	/*
	 * Returns the answer, to be read with >>. Throws if the command fails, or if the process
	 * ends.
	 */
	template <class... T> std::istringstream ask(const T &...words)
	{
		std::ostringstream line;

		((line << words << ' '), ...);
		return answer_to(line.str());
	}

	/* Sends SIGKILL; returns when the process is gone. */
	void kill();
	/* Call this after the node was killed. */
	void forget();

private:
	std::istringstream answer_to(const std::string &line);
	void end();

	pid_t there_ = -1;
	pid_t lab_on_ = -1;
	int tell_ = -1;
	std::FILE *told_ = nullptr;
};

/* In the hidden test case: obeys until there are no more lines. */
template <class F> void obey(std::istream &in, std::ostream &out, F &&function)
{
	for (std::string line; std::getline(in, line);) {
		std::istringstream words(line);
		std::ostringstream answer;

		try {
			function(words, answer);
			out << "= " << answer.str() << std::endl;
		} catch (const std::exception &problem) {
			out << "! " << problem.what() << std::endl;
		}
	}
}

} // namespace nodes

#endif
