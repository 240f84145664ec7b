// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "raw_peer.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "frame.h"
#include "qp_setup.h"
#include "system.h"

namespace odp {

using namespace mr_notify;
using namespace std::chrono_literals;
using namespace frame;

namespace {

constexpr uint32_t peer_number = 0x123456;
constexpr uint8_t flush_opcode = 0x1c;

const char *const make_cable =
	"exec 2>/dev/null; modprobe veth;"
	"ip link add odp0 address 02:00:00:00:09:01 type veth"
	" peer name odp1 address 02:00:00:00:09:02 && "
	"ip address add 10.0.9.1/24 dev odp0 && ip link set odp0 up && ip link set odp1 up && "
	"ip neighbour add 10.0.9.2 lladdr 02:00:00:00:09:02 dev odp0 && "
	"ip neighbour add 10.0.9.3 lladdr 02:00:00:00:09:02 dev odp0 && "
	"rdma link add rxe_odp type rxe netdev odp0";

void remove_cable()
{
	if (std::system("rdma link delete rxe_odp 2>/dev/null; ip link delete odp0 2>/dev/null"))
		return; /* there was none */
}

/* The RETH of a request: address, rkey and length. */
bytes place(const void *at, uint32_t rkey, std::size_t length)
{
	bytes header;

	number(header, reinterpret_cast<uintptr_t>(at), 8);
	number(header, rkey, 4);
	number(header, length, 4);
	return header;
}

void listen_to_peer(ibv_qp *qp, uint8_t most_reads)
{
	const address own = address_of(qp);
	ibv_gid peer = own.gid;

	peer.raw[15] = 2;
	ibv_qp_attr attr = attributes_to(own, peer, peer_number);
	attr.max_dest_rd_atomic = most_reads;
	check_verb(enter(qp, IBV_QPS_INIT, attr), "ibv_modify_qp to INIT");
	check_verb(enter(qp, IBV_QPS_RTR, attr), "ibv_modify_qp to RTR");
}

} // namespace

cable::cable()
{
	try {
		if (std::system(make_cable))
			throw unsupported("no soft-RoCE on a veth");
		on_ = std::make_unique<device>("rxe_odp");
	} catch (...) {
		remove_cable();
		throw;
	}
}

cable::~cable()
{
	on_.reset();
	remove_cable();
}

raw_peer::raw_peer(const cable &on, ibv_qp_type type, uint8_t most_reads, ibv_srq *srq)
    : socket_(open_end()), reliable_(type == IBV_QPT_RC), most_reads_(most_reads),
      cq_(ibv_create_cq(on.on().context(), 16, nullptr, nullptr, 0))
{
	ibv_qp_init_attr_ex init{};

	init.send_cq = init.recv_cq = cq_.get();
	init.cap = {2, 1, 1, 1, 0};
	init.qp_type = type;
	init.srq = srq;
	init.pd = on.on().pd();
	init.comp_mask = IBV_QP_INIT_ATTR_PD;
	if (reliable_) {
		init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		init.send_ops_flags = IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE;
	}
	qp_.reset(ibv_create_qp_ex(on.on().context(), &init));
	if (!qp_)
		fail("ibv_create_qp_ex");
	listen_to_peer(qp_.get(), most_reads);
}

raw_peer::~raw_peer()
{
	close(socket_);
}

void raw_peer::send(uint8_t opcode, uint32_t psn, const bytes &body) const
{
	const std::size_t transport = bth + body.size() + icrc;
	bytes whole;
	bytes frame;

	number(whole, 0x4500, 2);
	number(whole, ip + udp + transport, 2);
	number(whole, 0x4000, 4); /* not in fragments */
	number(whole, 64 << 8 | 17, 2);
	number(whole, 0, 2);
	number(whole, 0x0a000902, 4);
	number(whole, 0x0a000901, 4);
	const uint16_t sum = ip_sum(whole);
	whole[10] = static_cast<std::byte>(sum >> 8);
	whole[11] = static_cast<std::byte>(sum);
	number(whole, 0xc000, 2);
	number(whole, roce_port, 2);
	number(whole, udp + transport, 2);
	number(whole, 0, 2);
	number(whole, opcode | (reliable_ ? 0 : 0x20), 1);
	number(whole, 0, 1);
	number(whole, 0xffff, 2);
	number(whole, qp_->qp_num, 4);
	number(whole, (reliable_ ? 1U << 31 : 0) | psn, 4);
	whole.insert(whole.end(), body.begin(), body.end());
	bytes covered = whole;
	/* soft-RoCE also treats the headers of a FLUSH as payload. */
	if (opcode == flush_opcode)
		covered.insert(covered.end(), whole.begin() + ip + udp, whole.end());
	number(whole, htonl(invariant_crc(covered)), icrc);

	number(frame, 0x020000000901, 6);
	number(frame, 0x020000000902, 6);
	number(frame, ETH_P_IP, 2);
	frame.insert(frame.end(), whole.begin(), whole.end());
	if (::send(socket_, frame.data(), frame.size(), 0) != static_cast<ssize_t>(frame.size()))
		fail("send");
}

void raw_peer::read(uint32_t psn, const void *from, uint32_t rkey, std::size_t length) const
{
	send(0x0c, psn, place(from, rkey, length));
}

void raw_peer::fetch_and_add(uint32_t psn, const void *at, uint32_t rkey, uint64_t value) const
{
	bytes body = place(at, rkey, 0);

	body.resize(body.size() - 4); /* an atomic has no length */
	number(body, value, 8);
	number(body, 0, 8);
	send(0x14, psn, body);
}

void raw_peer::write(uint32_t psn, const void *to, uint32_t rkey, const bytes &data) const
{
	bytes body = place(to, rkey, data.size());

	body.insert(body.end(), data.begin(), data.end());
	send(0x0a, psn, body);
}

void raw_peer::write_length_0(uint32_t psn, const bytes &data) const
{
	bytes body = place(nullptr, 0, 0);

	body.insert(body.end(), data.begin(), data.end());
	send(0x0a, psn, body);
}

void raw_peer::write_part(part which, uint32_t psn, const void *to, uint32_t rkey,
			  std::size_t length, const bytes &data) const
{
	constexpr uint8_t of_read = 0x0d, of_write = 0x06;
	bytes body = which == part::first ? place(to, rkey, length) : bytes();

	body.insert(body.end(), data.begin(), data.end());
	send(static_cast<uint8_t>(static_cast<uint8_t>(which) - of_read + of_write), psn, body);
}

void raw_peer::message(uint32_t psn, const bytes &data) const
{
	send(0x04, psn, data);
}

void raw_peer::begin_message(uint32_t psn) const
{
	send(0x00, psn, bytes(mtu));
}

void raw_peer::continue_message(uint32_t psn, const bytes &data) const
{
	send(0x01, psn, data);
}

void raw_peer::end_message(uint32_t psn, const bytes &data) const
{
	send(0x02, psn, data);
}

void raw_peer::flush(uint32_t psn, uint32_t rkey) const
{
	const bytes where = place(nullptr, rkey, 0);
	bytes body;

	number(body, 1 << 4, 4);
	body.insert(body.end(), where.begin(), where.end());
	send(flush_opcode, psn, body);
}

void raw_peer::acknowledge(uint32_t psn, uint8_t syndrome) const
{
	bytes header;

	number(header, syndrome, 1);
	number(header, 0, 3);
	send(0x11, psn, header);
}

void raw_peer::atomic_answer(uint32_t psn, uint64_t value) const
{
	bytes body;

	number(body, acknowledged, 1);
	number(body, 0, 3);
	number(body, value, 8);
	send(0x12, psn, body);
}

void raw_peer::read_answer(part which, uint32_t psn, const bytes &data) const
{
	bytes body;

	if (which != part::middle) {
		number(body, acknowledged, 1);
		number(body, 0, 3);
	}
	body.insert(body.end(), data.begin(), data.end());
	send(static_cast<uint8_t>(which), psn, body);
}

std::optional<ibv_wc> raw_peer::completed(std::chrono::milliseconds patience) const
{
	const auto end = std::chrono::steady_clock::now() + patience;
	ibv_wc wc{};

	do {
		if (ibv_poll_cq(cq_.get(), 1, &wc) == 1)
			return wc;
		usleep(1000);
	} while (std::chrono::steady_clock::now() < end);
	return std::nullopt;
}

bool raw_peer::become(ibv_qp_state state) const
{
	ibv_qp_attr attr{};

	attr.qp_state = state;
	return ibv_modify_qp(qp_.get(), &attr, IBV_QP_STATE) == 0;
}

bool raw_peer::drained() const
{
	ibv_qp_attr attr{};
	ibv_qp_init_attr init{};

	check_verb(ibv_query_qp(qp_.get(), &attr, IBV_QP_STATE, &init), "ibv_query_qp");
	return !attr.sq_draining;
}

void raw_peer::reset() const
{
	if (!become(IBV_QPS_RESET))
		fail("ibv_modify_qp to RESET");
	listen_to_peer(qp_.get(), most_reads_);
}

void raw_peer::allow_requests(uint8_t retries, uint8_t timeout, uint8_t most_answers) const
{
	ibv_qp_attr attr{};

	attr.max_rd_atomic = most_answers;
	attr.retry_cnt = retries;
	attr.rnr_retry = 7;
	attr.timeout = timeout;
	check_verb(enter(qp_.get(), IBV_QPS_RTS, attr), "ibv_modify_qp to RTS");
}

std::optional<raw_peer::packet> raw_peer::next(std::chrono::milliseconds patience) const
{
	constexpr std::size_t head = ethernet + ip + udp;
	pollfd ready{socket_, POLLIN, 0};
	bytes frame(2048);

	while (poll(&ready, 1, static_cast<int>(patience.count())) == 1) {
		const ssize_t got = recv(socket_, frame.data(), frame.size(), 0);

		if (got < static_cast<ssize_t>(head + bth + icrc))
			continue;
		frame.resize(static_cast<std::size_t>(got));
		if (number_at(frame, ethernet + ip + 2, 2) == roce_port &&
		    number_at(frame, head + 5, 3) == peer_number) {
			packet found{static_cast<uint8_t>(frame[head]),
				     number_at(frame, head + 9, 3),
				     0,
				     0,
				     {}};
			std::size_t at = head + bth;

			if (found.opcode != 0x0e) { /* in the middle of a read */
				found.syndrome = static_cast<uint8_t>(frame[at]);
				found.msn = number_at(frame, at + 1, 3);
				at += aeth;
			}
			found.data.assign(frame.begin() + static_cast<ssize_t>(at),
					  frame.end() - icrc);
			return found;
		}
		frame.resize(2048);
	}
	return std::nullopt;
}

std::vector<raw_peer::packet> raw_peer::all(std::size_t expected) const
{
	std::vector<packet> found;

	while (auto one = next(found.size() < expected ? time_limit : 300ms))
		found.push_back(std::move(*one));
	return found;
}

} // namespace odp
