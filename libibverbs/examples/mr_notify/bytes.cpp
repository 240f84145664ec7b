// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "bytes.h"

#include <algorithm>
#include <cstring>

namespace mr_notify {

byte_check::byte_check(const device &on)
    : on_(on), peer_(anonymous(page_size())), peer_mr_(on.register_memory(peer_.registered()))
{
}

ibv_wc_status byte_check::write(const ibv_mr *from, range local, const void *remote, uint32_t rkey)
{
	if (!link_)
		link_.emplace(on_);
	const ibv_wc_status status = link_->write(from, local, remote, rkey);
	if (status != IBV_WC_SUCCESS)
		link_.reset();
	return status;
}

/* Does the CPU read the bytes that the device writes? */
bool byte_check::arrives(const ibv_mr *mr, range page)
{
	const range peer = peer_.registered();

	std::memset(peer.addr, ++pattern_, page.length);
	return write(peer_mr_.get(), {peer.addr, page.length}, page.addr, mr->rkey) ==
		       IBV_WC_SUCCESS &&
	       std::memcmp(page.addr, peer.addr, page.length) == 0;
}

/* Does the device read the bytes that the CPU reads? */
bool byte_check::leaves(const ibv_mr *mr, range page)
{
	const range peer = peer_.registered();

	std::memset(peer.addr, ++pattern_, page.length);
	return write(mr, page, peer.addr, peer_mr_->rkey) == IBV_WC_SUCCESS &&
	       std::memcmp(page.addr, peer.addr, page.length) == 0;
}

bool byte_check::same(const ibv_mr *mr, const memory &m)
{
	constexpr std::size_t most = 8;
	const range r = m.registered();
	const std::size_t pages = r.length / page_size();
	const std::size_t count = std::min(pages, most);

	for (std::size_t i = 0; i < count; i++) {
		const std::size_t at = count > 1 ? i * (pages - 1) / (count - 1) : 0;
		const range page{r.addr + at * page_size(), page_size()};
		if (!(m.read_only() ? leaves(mr, page) : arrives(mr, page)))
			return false;
	}
	return true;
}

bool byte_check::refused(const ibv_mr *mr)
{
	constexpr std::size_t few = 8;

	if (!link_)
		link_.emplace(on_);
	const ibv_wc_status status =
		link_->write(peer_mr_.get(), {peer_.registered().addr, few}, mr->addr, mr->rkey);
	const bool so = link_->refused(status);
	link_.reset();
	return so;
}

} // namespace mr_notify
