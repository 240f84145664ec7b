// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "lossy_wire.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace odp {

using namespace mr_notify;
using namespace frame;

namespace {

/* The last bytes of the IP addresses, in which the addresses differ. */
constexpr std::size_t source = ethernet + 15, destination = ethernet + 19;
constexpr std::byte device_end{1}, a_peer{2}, b_peer{3};

void put(bytes &into, std::size_t at, const bytes &what)
{
	std::copy(what.begin(), what.end(), into.begin() + static_cast<ssize_t>(at));
}

/* Redirects a packet to the other queue pair, with new checksums. */
void turn_back(bytes &packet)
{
	const std::byte from = packet[destination] == a_peer ? b_peer : a_peer;
	bytes sums, head;

	std::swap_ranges(packet.begin(), packet.begin() + 6, packet.begin() + 6);
	packet[source] = from;
	packet[destination] = device_end;
	put(packet, ethernet + 10, bytes(2));
	put(packet, ethernet + ip + 6, bytes(2)); /* UDP needs no checksum */
	head.assign(packet.begin() + ethernet, packet.begin() + ethernet + ip);
	number(sums, ip_sum(head), 2);
	put(packet, ethernet + 10, sums);
	const uint32_t crc = invariant_crc(bytes(packet.begin() + ethernet, packet.end() - icrc));
	sums.clear();
	number(sums, htonl(crc), icrc);
	put(packet, packet.size() - icrc, sums);
}

} // namespace

lossy_wire::lossy_wire(unsigned int seed, const odds &chances)
    : chances_(chances), random_(seed), socket_(open_end()),
      thread_([this](const std::stop_token &stop) { carry_on(stop); })
{
}

lossy_wire::~lossy_wire()
{
	thread_.request_stop();
	thread_.join();
	close(socket_);
}

void lossy_wire::connect(ibv_qp *a, ibv_qp *b, uint32_t first_psn, const patience &waits)
{
	const auto one_way = [&](ibv_qp *from, const ibv_qp *to, std::byte peer) {
		address own = address_of(from), other = address_of(to);

		own.mtu = IBV_MTU_1024;
		own.psn = other.psn = first_psn;
		other.gid.raw[15] = static_cast<uint8_t>(peer);
		connect_reliable(from, own, other, waits);
	};

	one_way(a, b, a_peer);
	one_way(b, a, b_peer);
}

void lossy_wire::carry_on(const std::stop_token &stop)
{
	while (!stop.stop_requested()) {
		if (auto packet = next(5))
			carry(std::move(*packet));
		else if (!held_.empty()) /* no later packet comes */
			send(std::exchange(held_, {}));
	}
}

/* A frame with a packet of soft-RoCE, without padding. */
std::optional<bytes> lossy_wire::next(int milliseconds)
{
	pollfd ready{socket_, POLLIN, 0};
	bytes packet(2048);

	while (poll(&ready, 1, milliseconds) == 1) {
		const ssize_t got = recv(socket_, packet.data(), packet.size(), 0);

		if (got < static_cast<ssize_t>(ethernet + ip + udp + bth + icrc) ||
		    number_at(packet, ethernet + ip + 2, 2) != roce_port)
			continue;
		packet.resize(ethernet + number_at(packet, ethernet + 2, 2));
		return packet;
	}
	return std::nullopt;
}

void lossy_wire::carry(bytes packet)
{
	count_.packets++;
	if (happens(chances_.lost)) {
		count_.lost++;
		return;
	}
	if (happens(chances_.altered)) {
		bytes copy = packet;

		count_.altered++;
		alter(copy);
		turn_back(copy);
		send(copy);
	}
	turn_back(packet);
	if (held_.empty() && happens(chances_.swapped)) {
		count_.swapped++;
		held_ = std::move(packet);
		return;
	}
	send(packet);
	if (happens(chances_.doubled)) {
		count_.doubled++;
		send(packet);
	}
	if (!held_.empty())
		send(std::exchange(held_, {}));
}

/* Alters one byte of the InfiniBand headers, or of the data after them. */
void lossy_wire::alter(bytes &packet)
{
	constexpr std::size_t begin = ethernet + ip + udp, most = 44;
	const std::size_t length = std::min(most, packet.size() - begin - icrc);

	packet[begin + random_() % length] ^=
		static_cast<std::byte>(random_() % 2 ? 1U << random_() % 8 : 1 + random_() % 255);
}

void lossy_wire::send(const bytes &packet)
{
	/* A packet that the kernel refuses counts as lost. */
	if (::send(socket_, packet.data(), packet.size(), 0) < 0)
		count_.lost++;
}

} // namespace odp
