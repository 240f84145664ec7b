/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The wire between two queue pairs of the device at the cable (raw_peer.h) loses, doubles and swaps
 * packets, and sends altered copies of packets. The wire counts all these events.
 *
 *   a, 10.0.9.1 -> 10.0.9.2          the wire          10.0.9.3 -> 10.0.9.1, to b
 *   b, 10.0.9.1 -> 10.0.9.3                            10.0.9.2 -> 10.0.9.1, to a
 */
#ifndef GUEST_LOSSY_WIRE_H
#define GUEST_LOSSY_WIRE_H

#include <atomic>
#include <cstdint>
#include <optional>
#include <random>
#include <thread>

#include "frame.h"
#include "raw_peer.h"
#include "reliable.h"

namespace odp {

class lossy_wire {
public:
	/* In percent of the packets. */
	struct odds {
		unsigned int lost = 3;
		unsigned int doubled = 2;
		unsigned int swapped = 2;
		unsigned int altered = 0;
	};
	struct counts {
		std::atomic<uint64_t> packets = 0;
		std::atomic<uint64_t> lost = 0;
		std::atomic<uint64_t> doubled = 0;
		std::atomic<uint64_t> swapped = 0; /* sent after the next packet */
		std::atomic<uint64_t> altered = 0; /* with a right ICRC; sent before the packet */
	};

	lossy_wire(unsigned int seed, const odds &chances);
	lossy_wire(const lossy_wire &) = delete;
	lossy_wire &operator=(const lossy_wire &) = delete;
	~lossy_wire();

	/* Connects the queue pairs to each other; the first packet of each has this PSN. */
	static void connect(ibv_qp *a, ibv_qp *b, uint32_t first_psn,
			    const mr_notify::patience &waits);
	const counts &count() const { return count_; }

private:
	void carry_on(const std::stop_token &stop);
	void carry(frame::bytes packet);
	std::optional<frame::bytes> next(int milliseconds);
	void send(const frame::bytes &packet);
	void alter(frame::bytes &packet);
	bool happens(unsigned int of_hundred) { return random_() % 100 < of_hundred; }

	const odds chances_;
	std::mt19937 random_;
	int socket_;
	frame::bytes held_; /* sent after the next packet */
	counts count_;
	std::jthread thread_;
};

} // namespace odp

#endif
