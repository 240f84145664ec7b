/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Calls to the kernel by MR handle, without struct ibv_mr: the notification
 * methods, so that a test can race them with the deregistration that frees it;
 * and re-registration, which providers/rxe has no call for though its kernel
 * driver has.
 */
#ifndef GUEST_RAW_UVERBS_H
#define GUEST_RAW_UVERBS_H

#include <infiniband/verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <rdma/ib_user_mr_notify.h>
#include <rdma/ib_user_verbs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

class raw_uverbs {
public:
	/* The kernel refuses calls that name another driver: rxe or siw. */
	explicit raw_uverbs(const ibv_context *context)
	    : fd_(context->cmd_fd),
	      driver_(context->device->transport_type == IBV_TRANSPORT_IWARP ? RDMA_DRIVER_SIW
									     : RDMA_DRIVER_RXE)
	{
	}

	/* Each returns 0 or an errno value. */
	int arm(uint32_t mr, uint64_t *word) const
	{
		return call(UVERBS_METHOD_MR_NOTIFY_ARM, mr, reinterpret_cast<uintptr_t>(word), 2);
	}
	int disarm(uint32_t mr) const { return call(UVERBS_METHOD_MR_NOTIFY_DISARM, mr, 0, 1); }
	int settle(uint32_t mr) const { return call(UVERBS_METHOD_MR_NOTIFY_SETTLE, mr, 0, 1); }

	int change_access(uint32_t mr, uint32_t access) const
	{
		struct {
			ib_uverbs_cmd_hdr hdr;
			ib_uverbs_rereg_mr in;
		} cmd{};
		ib_uverbs_rereg_mr_resp out{};

		cmd.hdr.command = IB_USER_VERBS_CMD_REREG_MR;
		cmd.hdr.in_words = sizeof(cmd) / 4;
		cmd.hdr.out_words = sizeof(out) / 4;
		cmd.in.response = reinterpret_cast<uintptr_t>(&out);
		cmd.in.mr_handle = mr;
		cmd.in.flags = 1 << 2; /* IB_MR_REREG_ACCESS */
		cmd.in.access_flags = access;
		return write(fd_, &cmd, sizeof(cmd)) == sizeof(cmd) ? 0 : errno;
	}

private:
	int call(uint16_t method, uint32_t mr, uint64_t word, uint16_t attrs) const
	{
		alignas(8) unsigned char
			buffer[sizeof(ib_uverbs_ioctl_hdr) + 2 * sizeof(ib_uverbs_attr)]{};
		auto *hdr = reinterpret_cast<ib_uverbs_ioctl_hdr *>(buffer);
		auto *attr = reinterpret_cast<ib_uverbs_attr *>(hdr + 1);

		hdr->length = static_cast<uint16_t>(sizeof(*hdr) + attrs * sizeof(*attr));
		hdr->object_id = UVERBS_OBJECT_MR;
		hdr->method_id = method;
		hdr->num_attrs = attrs;
		hdr->driver_id = driver_;
		attr[0].flags = UVERBS_ATTR_F_MANDATORY;
		attr[0].data = mr;
		attr[1].attr_id = UVERBS_ATTR_MR_NOTIFY_ARM_WORD;
		attr[1].flags = UVERBS_ATTR_F_MANDATORY;
		attr[1].len = sizeof(word);
		attr[1].data = word;
		return ioctl(fd_, RDMA_VERBS_IOCTL, hdr) ? errno : 0;
	}

	int fd_;
	uint32_t driver_;
};

#endif
