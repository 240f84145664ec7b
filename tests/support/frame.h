/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* The frames of RoCE over IPv4 as they are on the cable (raw_peer.h), byte by byte. */
#ifndef GUEST_FRAME_H
#define GUEST_FRAME_H

#include <cstddef>
#include <cstdint>
#include <vector>

namespace odp::frame {

using bytes = std::vector<std::byte>;

constexpr uint16_t roce_port = 4791;
/* The lengths of the headers in their order, and of the ICRC at the end. */
constexpr std::size_t ethernet = 14, ip = 20, udp = 8, bth = 12, aeth = 4, icrc = 4;

/* Writes and reads big-endian numbers of `length` bytes. */
void number(bytes &to, uint64_t value, int length);
uint32_t number_at(const bytes &from, std::size_t at, int length);

/* The checksum of an IP header whose checksum field is 0. */
uint16_t ip_sum(const bytes &header);
/*
 * The ICRC of a packet that begins with its IP header and has no ICRC yet. The ICRC is a checksum
 * of all fields that routers may not change.
 */
uint32_t invariant_crc(bytes packet);

/* A socket at the end of the cable that soft-RoCE does not use. */
int open_end();

} // namespace odp::frame

#endif
