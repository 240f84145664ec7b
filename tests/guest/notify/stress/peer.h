/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* A peer that reads and writes the memory of others through the device. */
#ifndef STRESS_PEER_H
#define STRESS_PEER_H

#include <optional>

#include "loopback.h"

namespace stress {

class peer {
public:
	explicit peer(const mr_notify::device &on);

	enum class answer {
		done,
		refused, /* the key does not work */
		none,	 /* lost, because the machine is busy */
	};

	/* Writes this peer's byte to a part of a range, or reads the part. */
	answer write(mr_notify::range part, uint32_t rkey);
	answer read(mr_notify::range part, uint32_t rkey);

	static constexpr unsigned char byte = 0x77;
	static constexpr std::size_t most = 4096;

private:
	answer judge(ibv_wc_status status);
	mr_notify::loopback &link();

	const mr_notify::device &on_;
	mr_notify::memory memory_;
	mr_notify::owned<ibv_mr> mr_;
	std::optional<mr_notify::loopback> link_;
};

} // namespace stress

#endif
