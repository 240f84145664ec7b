// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "iwarp.h"

#include <ifaddrs.h>
#include <poll.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "system.h"

namespace mr_notify {
namespace {

constexpr int timeout_ms = std::chrono::milliseconds(time_limit).count();
/* The number of further attempts if the connection manager chooses a port that TCP already uses. */
constexpr int spare_ports = 4;

/* Moves the queue pair to INIT. The connection manager makes the later state changes. */
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

iwarp_events::iwarp_events() : channel_(rdma_create_event_channel())
{
	if (!channel_)
		fail("rdma_create_event_channel");
}

iwarp_events::owned<rdma_cm_id> iwarp_events::make_id() const
{
	rdma_cm_id *id = nullptr;

	check_cm(rdma_create_id(channel_.get(), &id, nullptr, RDMA_PS_TCP), "rdma_create_id");
	return owned<rdma_cm_id>(id);
}

rdma_cm_id *iwarp_events::next(rdma_cm_event_type expected) const
{
	pollfd ready{channel_->fd, POLLIN, 0};
	rdma_cm_event *event = nullptr;

	if (poll(&ready, 1, timeout_ms) != 1)
		throw std::runtime_error(std::string("no ") + rdma_event_str(expected) + " in " +
					 std::to_string(timeout_ms / 1000) + " s");
	check_cm(rdma_get_cm_event(channel_.get(), &event), "rdma_get_cm_event");
	rdma_cm_id *const id = event->id;
	const rdma_cm_event_type seen = event->event;
	rdma_ack_cm_event(event);
	if (seen != expected)
		throw std::runtime_error(std::string(rdma_event_str(seen)) + " instead of " +
					 rdma_event_str(expected));
	return id;
}

iwarp_listener::iwarp_listener(const device &on)
{
	ifaddrs *first = nullptr;

	if (getifaddrs(&first))
		fail("getifaddrs");
	const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(first, freeifaddrs);
	for (const ifaddrs *i = first; i; i = i->ifa_next) {
		if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET)
			continue;
		for (int more = spare_ports; bind(on, i->ifa_addr); more--) {
			if (rdma_listen(listener_.get(), 1) == 0)
				return;
			if (errno != EADDRINUSE || !more)
				fail("rdma_listen");
		}
	}
	throw unsupported("no IPv4 address belongs to " + on.name());
}

/* Binds to a new port. Returns whether the address belongs to the device. */
bool iwarp_listener::bind(const device &on, sockaddr *address)
{
	listener_ = events_.make_id();
	return rdma_bind_addr(listener_.get(), address) == 0 && listener_->verbs &&
	       on.name() == ibv_get_device_name(listener_->verbs->device);
}

sockaddr_in iwarp_listener::where() const
{
	sockaddr_in address{};

	std::memcpy(&address, rdma_get_local_addr(listener_.get()), sizeof(address));
	return address;
}

void iwarp_listener::take(ibv_qp *qp)
{
	rdma_conn_param param = parameters(qp);

	initialize(qp);
	taken_.reset(events_.next(RDMA_CM_EVENT_CONNECT_REQUEST));
	check_cm(rdma_accept(taken_.get(), &param), "rdma_accept");
	events_.next(RDMA_CM_EVENT_ESTABLISHED);
}

iwarp_caller::iwarp_caller(ibv_qp *qp, const sockaddr_in &to)
{
	initialize(qp);
	for (int more = spare_ports; !connect(qp, to); more--)
		if (!more)
			fail("rdma_connect");
}

/* Returns false if the port is in use. */
bool iwarp_caller::connect(const ibv_qp *qp, sockaddr_in to)
{
	rdma_conn_param param = parameters(qp);

	id_ = events_.make_id();
	check_cm(rdma_resolve_addr(id_.get(), nullptr, reinterpret_cast<sockaddr *>(&to),
				   timeout_ms),
		 "rdma_resolve_addr");
	events_.next(RDMA_CM_EVENT_ADDR_RESOLVED);
	check_cm(rdma_resolve_route(id_.get(), timeout_ms), "rdma_resolve_route");
	events_.next(RDMA_CM_EVENT_ROUTE_RESOLVED);
	if (rdma_connect(id_.get(), &param) == 0)
		return true;
	if (errno != EADDRNOTAVAIL && errno != EADDRINUSE)
		fail("rdma_connect");
	return false;
}

void iwarp_caller::finish() const
{
	events_.next(RDMA_CM_EVENT_ESTABLISHED);
}

iwarp_connection::iwarp_connection(const device &on, ibv_qp *near_end, ibv_qp *far_end)
    : far_(on), near_(near_end, far_.where())
{
	far_.take(far_end);
	near_.finish();
}

} // namespace mr_notify
