// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "frame.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/socket.h>

#include "memory.h"

namespace odp::frame {

void number(bytes &to, uint64_t value, int length)
{
	while (length--)
		to.push_back(static_cast<std::byte>(value >> (8 * length)));
}

uint32_t number_at(const bytes &from, std::size_t at, int length)
{
	uint32_t value = 0;

	while (length--)
		value = value << 8 | static_cast<uint32_t>(from[at++]);
	return value;
}

uint16_t ip_sum(const bytes &header)
{
	uint32_t sum = 0;

	for (std::size_t i = 0; i < header.size(); i += 2)
		sum += number_at(header, i, 2);
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return static_cast<uint16_t>(~sum);
}

uint32_t invariant_crc(bytes packet)
{
	uint32_t crc = 0xffffffff;

	for (const std::size_t varies : {1, 8, 10, 11, 26, 27, 32})
		packet[varies] = std::byte{0xff};
	/* the link header, which the packet lacks */
	packet.insert(packet.begin(), 8, std::byte{0xff});
	for (const std::byte one : packet) {
		crc ^= static_cast<uint32_t>(one);
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
	}
	return ~crc;
}

int open_end()
{
	const int made = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_IP));
	sockaddr_ll end{};

	end.sll_family = AF_PACKET;
	end.sll_protocol = htons(ETH_P_IP);
	end.sll_ifindex = static_cast<int>(if_nametoindex("odp1"));
	if (made < 0 || bind(made, reinterpret_cast<sockaddr *>(&end), sizeof(end)))
		mr_notify::fail("packet socket");
	return made;
}

} // namespace odp::frame
