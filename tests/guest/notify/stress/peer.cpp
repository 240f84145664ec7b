// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "peer.h"

#include <algorithm>
#include <cstring>

namespace stress {

using namespace mr_notify;

peer::peer(const device &on)
    : on_(on), memory_(anonymous(2 * most)), mr_(on.register_memory(memory_.registered()))
{
	std::memset(memory_.registered().addr, byte, most);
}

/* An error breaks a connection. Then a new connection is made. */
loopback &peer::link()
{
	if (!link_)
		link_.emplace(on_);
	return *link_;
}

peer::answer peer::judge(ibv_wc_status status)
{
	if (status == IBV_WC_SUCCESS)
		return answer::done;
	link_.reset();
	if (status == IBV_WC_REM_ACCESS_ERR)
		return answer::refused;
	if (status == IBV_WC_RETRY_EXC_ERR)
		return answer::none;
	throw std::runtime_error(std::string("completion: ") + ibv_wc_status_str(status));
}

peer::answer peer::write(range part, uint32_t rkey)
{
	const range from{memory_.registered().addr, std::min(part.length, most)};

	return judge(link().write(mr_.get(), from, part.addr, rkey));
}

peer::answer peer::read(range part, uint32_t rkey)
{
	const range into{memory_.registered().addr + most, std::min(part.length, most)};

	return judge(link().read(mr_.get(), into, part.addr, rkey));
}

} // namespace stress
