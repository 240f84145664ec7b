// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "iwarp.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <poll.h>

#include <cerrno>
#include <stdexcept>

#include "system.h"

namespace mr_notify {
namespace {

constexpr int timeout_ms = std::chrono::milliseconds(time_limit).count();

/* The connection manager moves them on from there. */
void initialize(ibv_qp *qp)
{
	ibv_qp_attr attr{};

	attr.qp_state = IBV_QPS_INIT;
	attr.qp_access_flags =
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
	check_verb(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS),
		   "ibv_modify_qp to INIT");
}

void check_cm(int result, const char *what)
{
	if (result)
		fail(what);
}

rdma_conn_param parameters(const ibv_qp *qp)
{
	rdma_conn_param param{};

	param.responder_resources = 1;
	param.initiator_depth = 1;
	param.qp_num = qp->qp_num;
	return param;
}

} // namespace

iwarp_connection::iwarp_connection(const device &on, ibv_qp *near_end, ibv_qp *far_end)
    : events_(rdma_create_event_channel())
{
	if (!events_)
		fail("rdma_create_event_channel");
	initialize(near_end);
	initialize(far_end);
	bind(on.name());
	check_cm(rdma_listen(listener_.get(), 1), "rdma_listen");

	/* The manager chooses a port without knowing which ones TCP has in use. */
	for (int more = 4; !connect(near_end); more--)
		if (!more)
			fail("rdma_connect");
	far_.reset(next(RDMA_CM_EVENT_CONNECT_REQUEST));
	rdma_conn_param param = parameters(far_end);
	check_cm(rdma_accept(far_.get(), &param), "rdma_accept");
	next(RDMA_CM_EVENT_ESTABLISHED);
	next(RDMA_CM_EVENT_ESTABLISHED);
}

/* False if the port can't be had. */
bool iwarp_connection::connect(const ibv_qp *near_end)
{
	rdma_conn_param param = parameters(near_end);

	near_ = make_id();
	check_cm(rdma_resolve_addr(near_.get(), nullptr, rdma_get_local_addr(listener_.get()),
				   timeout_ms),
		 "rdma_resolve_addr");
	next(RDMA_CM_EVENT_ADDR_RESOLVED);
	check_cm(rdma_resolve_route(near_.get(), timeout_ms), "rdma_resolve_route");
	next(RDMA_CM_EVENT_ROUTE_RESOLVED);
	if (rdma_connect(near_.get(), &param) == 0)
		return true;
	if (errno != EADDRNOTAVAIL && errno != EADDRINUSE)
		fail("rdma_connect");
	return false;
}

iwarp_connection::owned<rdma_cm_id> iwarp_connection::make_id() const
{
	rdma_cm_id *id = nullptr;

	check_cm(rdma_create_id(events_.get(), &id, nullptr, RDMA_PS_TCP), "rdma_create_id");
	return owned<rdma_cm_id>(id);
}

/* Binds the listener to the first IPv4 address that belongs to the device. */
void iwarp_connection::bind(const std::string &device)
{
	ifaddrs *first = nullptr;

	if (getifaddrs(&first))
		fail("getifaddrs");
	const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(first, freeifaddrs);
	for (const ifaddrs *i = first; i; i = i->ifa_next) {
		if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET)
			continue;
		listener_ = make_id();
		if (rdma_bind_addr(listener_.get(), i->ifa_addr) == 0 && listener_->verbs &&
		    device == ibv_get_device_name(listener_->verbs->device))
			return;
	}
	throw unsupported("no IPv4 address belongs to " + device);
}

/* Waits for an event. Returns whose it is; of a connection request, the new id. */
rdma_cm_id *iwarp_connection::next(rdma_cm_event_type expected) const
{
	pollfd ready{events_->fd, POLLIN, 0};
	rdma_cm_event *event = nullptr;

	if (poll(&ready, 1, timeout_ms) != 1)
		throw std::runtime_error(std::string("no ") + rdma_event_str(expected) + " in " +
					 std::to_string(timeout_ms / 1000) + " s");
	check_cm(rdma_get_cm_event(events_.get(), &event), "rdma_get_cm_event");
	rdma_cm_id *const id = event->id;
	const rdma_cm_event_type seen = event->event;
	rdma_ack_cm_event(event);
	if (seen != expected)
		throw std::runtime_error(std::string(rdma_event_str(seen)) + " instead of " +
					 rdma_event_str(expected));
	return id;
}

} // namespace mr_notify
