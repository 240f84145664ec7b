// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A library for LD_PRELOAD, which hides the notification capability of the device that NOT_CAPABLE
 * names. If ARMING_FAILS is set, arming fails, also as a part of registering. If NOT_REVOCABLE is
 * set, arming for reclaim fails, as on a device that can't revoke. Without this library all devices
 * of the lab notify and revoke, and arming fails only when memory is short.
 */
#include <infiniband/verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_mr_notify.h>
#include <rdma/rdma_user_ioctl_cmds.h>

#include <dlfcn.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

namespace {

template <class F> F *next(const char *name)
{
	return reinterpret_cast<F *>(dlsym(RTLD_NEXT, name)); // NOLINT: dlsym's purpose
}

bool capable(const ibv_context *context)
{
	const char *name = std::getenv("NOT_CAPABLE");

	return !name || std::strcmp(ibv_get_device_name(context->device), name);
}

bool has(const ib_uverbs_ioctl_hdr *header, unsigned int id)
{
	return std::any_of(header->attrs, header->attrs + header->num_attrs,
			   [id](const auto &attr) { return attr.attr_id == id && attr.data; });
}

/* The error that arming a registration returns. If it is 0, the call reaches the kernel. */
int arming_error(const ib_uverbs_ioctl_hdr *header)
{
	const bool arms = header->object_id == UVERBS_OBJECT_MR &&
			  header->method_id == UVERBS_METHOD_MR_NOTIFY_ARM;
	const bool makes = header->object_id == UVERBS_OBJECT_DEVICE &&
			   header->method_id == UVERBS_METHOD_INVOKE_WRITE &&
			   has(header, UVERBS_ATTR_MR_NOTIFY_REG_WORD);

	if (!arms && !makes)
		return 0;
	if (std::getenv("ARMING_FAILS"))
		return ENOMEM;
	const bool reclaims = arms ? has(header, UVERBS_ATTR_MR_NOTIFY_ARM_FLAGS)
				   : has(header, UVERBS_ATTR_MR_NOTIFY_REG_FLAGS);
	return reclaims && std::getenv("NOT_REVOCABLE") ? EOPNOTSUPP : 0;
}

decltype(verbs_context::query_device_ex) whole_query;

int query_device_ex(ibv_context *context, const ibv_query_device_ex_input *input,
		    ibv_device_attr_ex *attr, size_t size)
{
	const int ret = whole_query(context, input, attr, size);

	attr->orig_attr.device_cap_flags &= ~IBV_DEVICE_MR_NOTIFY;
	return ret;
}

} // namespace

extern "C" {

ibv_context *ibv_open_device(ibv_device *device)
{
	ibv_context *context = next<decltype(ibv_open_device)>("ibv_open_device")(device);

	if (context && !capable(context)) {
		verbs_context *verbs = verbs_get_ctx(context);
		whole_query = verbs->query_device_ex;
		verbs->query_device_ex = query_device_ex;
	}
	return context;
}

int ibv_query_device(ibv_context *context, ibv_device_attr *attr)
{
	const int ret = next<decltype(ibv_query_device)>("ibv_query_device")(context, attr);

	if (!capable(context))
		attr->device_cap_flags &= ~IBV_DEVICE_MR_NOTIFY;
	return ret;
}

int ioctl(int fd, unsigned long request, ...) noexcept
{
	std::va_list list;

	va_start(list, request);
	void *argument = va_arg(list, void *);
	va_end(list);
	if (request == RDMA_VERBS_IOCTL) {
		const int error = arming_error(static_cast<const ib_uverbs_ioctl_hdr *>(argument));
		if (error) {
			errno = error;
			return -1;
		}
	}
	return next<int(int, unsigned long, ...)>("ioctl")(fd, request, argument);
}
}
