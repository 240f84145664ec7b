/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Calls to the kernel by MR handle, without struct ibv_mr. A test can race the notification methods
 * with the deregistration that frees the struct. One call registers and arms. Another call
 * re-registers; rxe's kernel driver can do this, but providers/rxe can't.
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

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

class raw_uverbs {
public:
	explicit raw_uverbs(const ibv_context *context)
	    : fd_(context->cmd_fd), driver_(driver_of(*context->device))
	{
	}

	/* Each returns 0 or an errno value. */
	int arm(uint32_t mr, uint64_t *word, uint64_t in_use) const
	{
		return call(
			UVERBS_OBJECT_MR, UVERBS_METHOD_MR_NOTIFY_ARM,
			{attribute(UVERBS_ATTR_MR_NOTIFY_ARM_HANDLE, mr),
			 attribute(UVERBS_ATTR_MR_NOTIFY_ARM_WORD, address(word), sizeof(uint64_t)),
			 attribute(UVERBS_ATTR_MR_NOTIFY_ARM_IN_USE, in_use, sizeof(uint64_t))});
	}
	/* Does the same as ibv_reg_mr_notify_reclaim(), but accepts any mask. */
	int arm_reclaim(uint32_t mr, uint64_t *word, uint64_t in_use) const
	{
		std::vector<ib_uverbs_attr> all{
			attribute(UVERBS_ATTR_MR_NOTIFY_ARM_HANDLE, mr),
			attribute(UVERBS_ATTR_MR_NOTIFY_ARM_WORD, address(word), sizeof(uint64_t)),
			attribute(UVERBS_ATTR_MR_NOTIFY_ARM_FLAGS, IB_UVERBS_MR_NOTIFY_ARM_RECLAIM,
				  sizeof(uint32_t))};
		if (in_use)
			all.push_back(attribute(UVERBS_ATTR_MR_NOTIFY_ARM_IN_USE, in_use,
						sizeof(uint64_t)));
		return call(UVERBS_OBJECT_MR, UVERBS_METHOD_MR_NOTIFY_ARM, all);
	}
	int arm(uint32_t mr, uint64_t *word) const
	{
		return call(UVERBS_OBJECT_MR, UVERBS_METHOD_MR_NOTIFY_ARM,
			    {attribute(UVERBS_ATTR_MR_NOTIFY_ARM_HANDLE, mr),
			     attribute(UVERBS_ATTR_MR_NOTIFY_ARM_WORD, address(word),
				       sizeof(uint64_t))});
	}
	int disarm(uint32_t mr) const
	{
		return call(UVERBS_OBJECT_MR, UVERBS_METHOD_MR_NOTIFY_DISARM,
			    {attribute(UVERBS_ATTR_MR_NOTIFY_DISARM_HANDLE, mr)});
	}
	int settle(uint32_t mr) const
	{
		return call(UVERBS_OBJECT_MR, UVERBS_METHOD_MR_NOTIFY_SETTLE,
			    {attribute(UVERBS_ATTR_MR_NOTIFY_SETTLE_HANDLE, mr)});
	}
	int deregister(uint32_t mr) const
	{
		return call(UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY,
			    {attribute(UVERBS_ATTR_DESTROY_MR_HANDLE, mr)});
	}

	/*
	 * The result of registering and arming in one call. Only for rxe: siw needs more
	 * parameters.
	 */
	struct armed_mr {
		int error;
		uint32_t handle; /* of the registration */
	};
	armed_mr register_armed(const ibv_pd *pd, void *addr, std::size_t length, uint64_t *word,
				std::initializer_list<ib_uverbs_attr> more = {}) const
	{
		ib_uverbs_reg_mr in{};
		ib_uverbs_reg_mr_resp out{};
		armed_mr made{};

		in.start = in.hca_va = address(addr);
		in.length = length;
		in.pd_handle = pd->handle;
		in.access_flags = IBV_ACCESS_LOCAL_WRITE;
		std::vector<ib_uverbs_attr> all{
			attribute(UVERBS_ATTR_WRITE_CMD, IB_USER_VERBS_CMD_REG_MR,
				  sizeof(uint64_t)),
			attribute(UVERBS_ATTR_CORE_IN, address(&in), sizeof(in)),
			attribute(UVERBS_ATTR_CORE_OUT, address(&out), sizeof(out))};
		if (word)
			all.push_back(names(word));
		all.insert(all.end(), more);
		made.error = call(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE, all);
		made.handle = out.mr_handle;
		return made;
	}
	/* The result of UVERBS_METHOD_REG_MR, which Linux 6.12 and rdma-core 56 lack. */
	struct method_mr {
		int error; /* EPROTONOSUPPORT: the kernel lacks the method */
		uint32_t handle;
		uint32_t lkey;
	};
	method_mr register_by_method(const ibv_pd *pd, void *addr, std::size_t length) const
	{
		constexpr uint16_t method = 5;
		enum : uint16_t { HANDLE, PD, IOVA = 3, ADDR, LENGTH, ACCESS, LKEY = 9, RKEY };
		method_mr made{};
		uint32_t rkey;

		made.error = call(UVERBS_OBJECT_MR, method,
				  {attribute(HANDLE, 0), attribute(PD, pd->handle),
				   attribute(IOVA, address(addr), sizeof(uint64_t)),
				   attribute(ADDR, address(addr), sizeof(uint64_t)),
				   attribute(LENGTH, length, sizeof(uint64_t)),
				   attribute(ACCESS, IBV_ACCESS_LOCAL_WRITE, sizeof(uint32_t)),
				   attribute(LKEY, address(&made.lkey), sizeof(made.lkey)),
				   attribute(RKEY, address(&rkey), sizeof(rkey))},
				  &made.handle);
		return made;
	}
	static ib_uverbs_attr names(const uint64_t *word)
	{
		return attribute(UVERBS_ATTR_MR_NOTIFY_REG_WORD, address(word), sizeof(uint64_t));
	}
	static ib_uverbs_attr in_use(uint64_t mask)
	{
		return attribute(UVERBS_ATTR_MR_NOTIFY_REG_IN_USE, mask, sizeof(mask));
	}

	static ib_uverbs_attr reclaimable()
	{
		return attribute(UVERBS_ATTR_MR_NOTIFY_REG_FLAGS, IB_UVERBS_MR_NOTIFY_ARM_RECLAIM,
				 sizeof(uint32_t));
	}
	static ib_uverbs_attr idle_ms(uint32_t time)
	{
		return attribute(UVERBS_ATTR_MR_NOTIFY_REG_IDLE_MS, time, sizeof(time));
	}

	int change_access(uint32_t mr, uint32_t access,
			  std::initializer_list<ib_uverbs_attr> more = {}) const
	{
		ib_uverbs_rereg_mr in{};

		in.mr_handle = mr;
		in.flags = 1 << 2; /* IB_MR_REREG_ACCESS */
		in.access_flags = access;
		return change(in, more);
	}
	int change_pd(uint32_t mr, uint32_t pd) const
	{
		ib_uverbs_rereg_mr in{};

		in.mr_handle = mr;
		in.flags = 1 << 1; /* IB_MR_REREG_PD */
		in.pd_handle = pd;
		return change(in, {});
	}

	/* Lets the kernel process the send queue after the caller has written a request there.
	 */
	int ring(uint32_t qp) const
	{
		struct {
			ib_uverbs_cmd_hdr hdr;
			ib_uverbs_post_send in;
		} cmd{};
		ib_uverbs_post_send_resp out{};

		cmd.hdr.command = IB_USER_VERBS_CMD_POST_SEND;
		cmd.hdr.in_words = sizeof(cmd) / 4;
		cmd.hdr.out_words = sizeof(out) / 4;
		cmd.in.response = reinterpret_cast<uintptr_t>(&out);
		cmd.in.qp_handle = qp;
		cmd.in.wqe_size = sizeof(ib_uverbs_send_wr);
		return write(fd_, &cmd, sizeof(cmd)) == sizeof(cmd) ? 0 : errno;
	}

	/* A completion queue of soft-RoCE; the new queue stays unmapped. */
	int resize(uint32_t cq, uint32_t cqe) const
	{
		struct {
			ib_uverbs_cmd_hdr hdr;
			ib_uverbs_resize_cq in;
		} cmd{};
		std::array<uint64_t, 6> out{};

		cmd.hdr.command = IB_USER_VERBS_CMD_RESIZE_CQ;
		cmd.hdr.in_words = sizeof(cmd) / 4;
		cmd.hdr.out_words = sizeof(out) / 4;
		cmd.in.response = address(out.data());
		cmd.in.cq_handle = cq;
		cmd.in.cqe = cqe;
		return write(fd_, &cmd, sizeof(cmd)) == sizeof(cmd) ? 0 : errno;
	}

private:
	int change(const ib_uverbs_rereg_mr &in, std::initializer_list<ib_uverbs_attr> more) const
	{
		ib_uverbs_rereg_mr_resp out{};
		std::vector<ib_uverbs_attr> all{
			attribute(UVERBS_ATTR_WRITE_CMD, IB_USER_VERBS_CMD_REREG_MR,
				  sizeof(uint64_t)),
			attribute(UVERBS_ATTR_CORE_IN, address(&in), sizeof(in)),
			attribute(UVERBS_ATTR_CORE_OUT, address(&out), sizeof(out))};

		all.insert(all.end(), more);
		return call(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE, all);
	}
	/* The kernel refuses a call that names another driver. */
	static uint32_t driver_of(const ibv_device &device)
	{
		if (device.transport_type == IBV_TRANSPORT_IWARP)
			return RDMA_DRIVER_SIW;
		return std::string_view(device.name).starts_with("vmw_pvrdma")
			       ? RDMA_DRIVER_VMW_PVRDMA
			       : RDMA_DRIVER_RXE;
	}

	static uint64_t address(const void *what) { return reinterpret_cast<uintptr_t>(what); }

	static ib_uverbs_attr attribute(uint16_t id, uint64_t data, std::size_t length = 0)
	{
		ib_uverbs_attr one{};

		one.attr_id = id;
		one.len = static_cast<uint16_t>(length);
		one.flags = UVERBS_ATTR_F_MANDATORY;
		one.data = data;
		return one;
	}

	/* @made: the handle of a new object, which the first attribute names. */
	int call(uint16_t object, uint16_t method, const std::vector<ib_uverbs_attr> &attributes,
		 uint32_t *made = nullptr) const
	{
		alignas(8) std::byte
			buffer[sizeof(ib_uverbs_ioctl_hdr) + 8 * sizeof(ib_uverbs_attr)]{};
		auto *hdr = reinterpret_cast<ib_uverbs_ioctl_hdr *>(buffer);
		const std::size_t length =
			sizeof(*hdr) + attributes.size() * sizeof(ib_uverbs_attr);

		hdr->length = static_cast<uint16_t>(length);
		hdr->object_id = object;
		hdr->method_id = method;
		hdr->num_attrs = static_cast<uint16_t>(attributes.size());
		hdr->driver_id = driver_;
		auto *first = reinterpret_cast<ib_uverbs_attr *>(hdr + 1);
		std::copy(attributes.begin(), attributes.end(), first);
		if (ioctl(fd_, RDMA_VERBS_IOCTL, hdr))
			return errno;
		if (made)
			*made = static_cast<uint32_t>(first->data);
		return 0;
	}

	int fd_;
	uint32_t driver_;
};

#endif
