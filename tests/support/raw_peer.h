/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * A raw peer sends the packets of a queue pair one by one, in any order and as often as the test
 * likes. The peer shows each packet that comes back. The peer is at one end of a veth, soft-RoCE at
 * the other end.
 */
#ifndef GUEST_RAW_PEER_H
#define GUEST_RAW_PEER_H

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device.h"

namespace odp {

constexpr std::size_t mtu = 1024;

/* A veth, with soft-RoCE at one end. */
class cable {
public:
	/* Throws `unsupported` if the kernel lacks veth or soft-RoCE. */
	cable();
	cable(const cable &) = delete;
	cable &operator=(const cable &) = delete;
	~cable();

	const mr_notify::device &on() const { return *on_; }

private:
	std::unique_ptr<mr_notify::device> on_;
};

/* A queue pair, and its peer. */
class raw_peer {
public:
	/* A packet that came back: an acknowledgement, a part of a read, or a request. */
	struct packet {
		uint8_t opcode;
		uint32_t psn;
		uint8_t syndrome; /* this field and the next, if the opcode has them */
		uint32_t msn;
		std::vector<std::byte> data;

		bool is_ack() const { return opcode == 0x11; }
		bool is_rnr() const { return is_ack() && syndrome >> 5 == 1; }
		bool is_error() const { return is_ack() && syndrome & 0x60; }
	};

	static constexpr uint8_t acknowledged = 0x1f, out_of_order = 0x60, refused = 0x62;
	static constexpr uint8_t makes_no_sense = 0x61;
	static constexpr uint8_t ready_soon = 0x21, ready_in_655_ms = 0x20;
	enum class part : uint8_t { first = 0x0d, middle, last, only };

	/*
	 * @most_reads: max_dest_rd_atomic of the queue pair. @srq: its shared receive queue, or
	 * NULL
	 */
	explicit raw_peer(const cable &on, ibv_qp_type type = IBV_QPT_RC, uint8_t most_reads = 4,
			  ibv_srq *srq = nullptr);
	raw_peer(const raw_peer &) = delete;
	raw_peer &operator=(const raw_peer &) = delete;
	~raw_peer();

	void read(uint32_t psn, const void *from, uint32_t rkey, std::size_t length) const;
	void fetch_and_add(uint32_t psn, const void *at, uint32_t rkey, uint64_t value) const;
	/* Writes at most an MTU. */
	void write(uint32_t psn, const void *to, uint32_t rkey,
		   const std::vector<std::byte> &data) const;
	/* A write with data whose header says that its length is 0. */
	void write_length_0(uint32_t psn, const std::vector<std::byte> &data) const;
	/* A packet of a write of @length bytes. */
	void write_part(part which, uint32_t psn, const void *to, uint32_t rkey, std::size_t length,
			const std::vector<std::byte> &data) const;
	void message(uint32_t psn, const std::vector<std::byte> &data) const;
	/* The first packet, of one MTU, of a longer message. */
	void begin_message(uint32_t psn) const;
	void continue_message(uint32_t psn, const std::vector<std::byte> &data) const;
	void end_message(uint32_t psn, const std::vector<std::byte> &data) const;
	/* A FLUSH of the whole MR. */
	void flush(uint32_t psn, uint32_t rkey) const;
	/* Answers of the peer; call allow_requests() first. */
	void acknowledge(uint32_t psn, uint8_t syndrome = acknowledged) const;
	void atomic_answer(uint32_t psn, uint64_t value) const;
	void read_answer(part which, uint32_t psn, const std::vector<std::byte> &data) const;
	/* The next packet from the queue pair, if a packet comes within this time. */
	std::optional<packet> next(std::chrono::milliseconds patience) const;
	/* Returns at least @expected packets, and all packets until the queue pair is silent. */
	std::vector<packet> all(std::size_t expected = 0) const;

	ibv_qp *qp() const { return qp_.get(); }
	/* The completion of a request or a receive of the queue pair, if it comes in time. */
	std::optional<ibv_wc> completed(std::chrono::milliseconds patience) const;
	/*
	 * Enters a state that needs no attributes. Returns false if the queue pair can't enter it
	 * (yet).
	 */
	bool become(ibv_qp_state state) const;
	/* Returns whether all requests that were started before IBV_QPS_SQD are complete. */
	bool drained() const;
	/* Resets the queue pair, and lets it receive again. */
	void reset() const;
	/*
	 * From now on the queue pair may send requests, too. It repeats a request @retries times
	 * (7: without limit) after a NAK or a timeout. The timeout is 4.096 us << @timeout; 0 means
	 * no timeout. After an RNR NAK the queue pair repeats the request without limit.
	 * @most_answers: the limit of reads and atomics at a time
	 */
	void allow_requests(uint8_t retries = 0, uint8_t timeout = 0,
			    uint8_t most_answers = 1) const;

private:
	void send(uint8_t opcode, uint32_t psn, const std::vector<std::byte> &body) const;

	int socket_;
	bool reliable_;
	uint8_t most_reads_;
	mr_notify::owned<ibv_cq> cq_;
	mr_notify::owned<ibv_qp> qp_;
};

} // namespace odp

#endif
