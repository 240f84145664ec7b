/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Connects two queue pairs by iWARP. The ends can exchange addresses only through a
 * connection manager. The queue pairs must outlive their connection.
 */
#ifndef MR_NOTIFY_IWARP_H
#define MR_NOTIFY_IWARP_H

#include <netinet/in.h>
#include <rdma/rdma_cma.h>

#include "device.h"

namespace mr_notify {

/* The connection manager's events for one end, in order. */
class iwarp_events {
public:
	struct closer {
		void operator()(rdma_event_channel *p) const { rdma_destroy_event_channel(p); }
		void operator()(rdma_cm_id *p) const { rdma_destroy_id(p); }
	};
	template <class T> using owned = std::unique_ptr<T, closer>;

	iwarp_events();
	owned<rdma_cm_id> make_id() const;
	/* Waits for an event. Returns the event's id. A connection request has a new id. */
	rdma_cm_id *next(rdma_cm_event_type expected) const;

private:
	owned<rdma_event_channel> channel_;
};

/* The passive end of one connection. */
class iwarp_listener {
public:
	/* Listens at the first IPv4 address of the device. */
	explicit iwarp_listener(const device &on);
	sockaddr_in where() const;
	/* Waits for the active end and accepts its connection. */
	void take(ibv_qp *qp);

private:
	bool bind(const device &on, sockaddr *address);

	iwarp_events events_;
	iwarp_events::owned<rdma_cm_id> listener_;
	iwarp_events::owned<rdma_cm_id> taken_;
};

class iwarp_caller {
public:
	/* Starts to connect. Then the passive end may accept. */
	iwarp_caller(ibv_qp *qp, const sockaddr_in &to);
	/* Waits until the connection is established. */
	void finish() const;

private:
	bool connect(const ibv_qp *qp, sockaddr_in to);

	iwarp_events events_;
	iwarp_events::owned<rdma_cm_id> id_;
};

/* A connection whose ends are both in this process. */
class iwarp_connection {
public:
	iwarp_connection(const device &on, ibv_qp *near_end, ibv_qp *far_end);

private:
	iwarp_listener far_;
	iwarp_caller near_;
};

} // namespace mr_notify

#endif
