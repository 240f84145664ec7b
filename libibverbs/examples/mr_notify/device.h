/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * An opened RDMA device, its protection domain and its registrations. Destructors
 * close these objects.
 */
#ifndef MR_NOTIFY_DEVICE_H
#define MR_NOTIFY_DEVICE_H

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "memory.h"

namespace mr_notify {

struct closer {
	void operator()(ibv_context *p) const { ibv_close_device(p); }
	void operator()(ibv_pd *p) const { ibv_dealloc_pd(p); }
	void operator()(ibv_mr *p) const { ibv_dereg_mr(p); }
	void operator()(ibv_mw *p) const { ibv_dealloc_mw(p); }
	void operator()(ibv_ah *p) const { ibv_destroy_ah(p); }
	void operator()(ibv_cq *p) const { ibv_destroy_cq(p); }
	void operator()(ibv_srq *p) const { ibv_destroy_srq(p); }
	void operator()(ibv_qp *p) const { ibv_destroy_qp(p); }
};

template <class T> using owned = std::unique_ptr<T, closer>;

/* Turns an errno value that a verb returned into an exception. */
void check_verb(int error, const char *verb);

class device {
public:
	/*
	 * Opens the device with this name. If the name is empty, opens the device that
	 * MR_NOTIFY_DEVICE names, or the first device.
	 */
	explicit device(const std::string &name = "");

	ibv_context *context() const { return context_.get(); }
	ibv_pd *pd() const { return pd_.get(); }
	std::string name() const { return ibv_get_device_name(context_->device); }
	bool can_notify() const { return can_notify_; }
	bool can_revoke() const { return can_revoke_; }
	bool is_iwarp() const { return context_->device->transport_type == IBV_TRANSPORT_IWARP; }

	static constexpr int all_rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
					  IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
	owned<ibv_mr> register_memory(range r, int access = all_rights) const;

private:
	owned<ibv_context> context_;
	owned<ibv_pd> pd_;
	bool can_notify_ = false;
	bool can_revoke_ = false;
};

/*
 * A notification word. The kernel writes the word, too, so all reads are atomic. A word
 * must not move while it is armed.
 */
class word {
public:
	word() = default;
	word(const word &) = delete;
	word &operator=(const word &) = delete;

	uint64_t *address() { return &value_; }
	uint64_t value()
	{
		return std::atomic_ref<uint64_t>(value_).load(std::memory_order_acquire);
	}
	bool invalid() { return value() & IBV_MR_NOTIFY_INVALID; }

private:
	alignas(64) uint64_t value_ = 0;
};

} // namespace mr_notify

#endif
