// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "device.h"

#include <cerrno>
#include <cstdlib>
#include <optional>
#include <system_error>

namespace mr_notify {

void check_verb(int error, const char *verb)
{
	if (error)
		throw std::system_error(error, std::generic_category(), verb);
}

namespace {

std::string named_in_environment()
{
	const char *const name = std::getenv("MR_NOTIFY_DEVICE");

	return name ? name : "";
}

} // namespace

device::device(const std::string &wanted)
{
	const std::string name = wanted.empty() ? named_in_environment() : wanted;
	int count = 0;
	std::optional<std::system_error> refused;
	const std::unique_ptr<ibv_device *[], decltype(&ibv_free_device_list)> list(
		ibv_get_device_list(&count), ibv_free_device_list);

	if (!list)
		fail("ibv_get_device_list");
	for (int i = 0; i < count && !context_; i++)
		if (name.empty() || name == ibv_get_device_name(list[i])) {
			context_.reset(ibv_open_device(list[i]));
			if (!context_)
				refused.emplace(errno, std::generic_category(),
						std::string("opening ") +
							ibv_get_device_name(list[i]));
		}
	if (!context_ && refused)
		throw std::system_error(*refused);
	if (!context_)
		throw std::runtime_error(name.empty() ? "no RDMA device found"
						      : "no RDMA device " + name);

	ibv_device_attr attr{};
	check_verb(ibv_query_device(context(), &attr), "ibv_query_device");
	can_notify_ = attr.device_cap_flags & IBV_DEVICE_MR_NOTIFY;

	ibv_device_attr_ex attr_ex{};
	if (ibv_query_device_ex(context(), nullptr, &attr_ex) == 0)
		can_revoke_ = attr_ex.device_cap_flags_ex & IBV_DEVICE_MR_REVOKE;

	pd_.reset(ibv_alloc_pd(context()));
	if (!pd_)
		fail("ibv_alloc_pd");
}

owned<ibv_mr> device::register_memory(range r, int access) const
{
	owned<ibv_mr> mr(ibv_reg_mr(pd(), r.addr, r.length, access));

	if (!mr)
		fail("ibv_reg_mr");
	return mr;
}

} // namespace mr_notify
