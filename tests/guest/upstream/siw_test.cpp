// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * soft-iWARP must survive ends that violate the protocol. Such an end is a peer that is a TCP
 * socket, or the owner of a queue in mapped memory. If the kernel oopses, the console shows the
 * failure and the run fails.
 */
#include "catch.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/siw-abi.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "device.h"
#include "loopback.h"
#include "post.h"
#include "probe.h"
#include "skip.h"
#include "sleeps.h"
#include "system.h"

using namespace mr_notify;

namespace {

constexpr std::size_t page = 4096;
constexpr int timeout_ms = std::chrono::milliseconds(time_limit).count();
constexpr unsigned int requests = 16;
/* The connection manager may choose a port that TCP already uses. */
constexpr int spare_ports = 4;

using bytes = std::vector<std::byte>;

template <class T> void put(bytes &into, T value)
{
	for (int shift = 8 * (sizeof(T) - 1); shift >= 0; shift -= 8)
		into.push_back(static_cast<std::byte>(value >> shift));
}

template <class T> T get(const bytes &from, std::size_t at)
{
	T value = 0;

	for (std::size_t i = 0; i < sizeof(T); i++)
		value = static_cast<T>(value << 8 | static_cast<T>(from.at(at + i)));
	return value;
}

/* Bits in the headers of MPA, DDP and RDMAP. */
enum : uint16_t {
	tagged = 0x8000,
	last = 0x4000,
	versions = 0x0140,
	op_write = 0,
	op_read = 1,
	op_answer = 2,
	op_send_with_invalidation = 4,
	op_terminate = 7
};

/* A frame with @header, which follows the length and the control bits. */
bytes frame(uint16_t control, const bytes &header, const bytes &payload = {})
{
	bytes all;

	put(all, static_cast<uint16_t>(2 + header.size() + payload.size()));
	put(all, static_cast<uint16_t>(control | versions));
	all.insert(all.end(), header.begin(), header.end());
	all.insert(all.end(), payload.begin(), payload.end());
	all.resize((all.size() + 3) / 4 * 4 + 4); /* four bytes without a checksum */
	return all;
}

bytes write_frame(uint16_t flags, uint32_t stag, const void *to, const bytes &payload)
{
	bytes header;

	put(header, stag);
	put(header, static_cast<uint64_t>(reinterpret_cast<uintptr_t>(to)));
	return frame(static_cast<uint16_t>(tagged | flags | op_write), header, payload);
}

/* The read request with MSN @number; the response goes to the STag @sink. */
bytes read_frame(uint32_t number, uint32_t sink, uint32_t length, uint32_t stag, const void *from)
{
	bytes header;

	put(header, 0U);
	put(header, 1U); /* the queue number of read requests */
	put(header, number);
	put(header, 0U);
	put(header, sink);
	put(header, uint64_t{0});
	put(header, length);
	put(header, stag);
	put(header, static_cast<uint64_t>(reinterpret_cast<uintptr_t>(from)));
	return frame(last | op_read, header);
}

/* The message with MSN @number, which invalidates the STag @stag. */
bytes invalidating_frame(uint32_t number, uint32_t stag)
{
	bytes header;

	put(header, stag);
	put(header, 0U);
	put(header, number);
	put(header, 0U);
	return frame(last | op_send_with_invalidation, header);
}

/* An MPA request or reply. */
bytes mpa(std::string_view key, uint16_t control, uint16_t length, const bytes &data = {})
{
	bytes all;

	for (const char c : key)
		all.push_back(static_cast<std::byte>(c));
	put(all, control);
	put(all, length);
	all.insert(all.end(), data.begin(), data.end());
	return all;
}

class tcp {
public:
	tcp() : tcp(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
	explicit tcp(int fd) : fd_(fd) { REQUIRE(fd_ >= 0); }
	~tcp() { close(fd_); }
	tcp(const tcp &) = delete;
	tcp &operator=(const tcp &) = delete;

	int fd() const { return fd_; }

	void send(const bytes &what) const
	{
		REQUIRE(::send(fd_, what.data(), what.size(), MSG_NOSIGNAL) ==
			static_cast<ssize_t>(what.size()));
	}
	/* Receives this many bytes, or fewer at the end of the connection. */
	bytes receive(std::size_t length) const
	{
		bytes found(length);
		std::size_t got = 0;

		while (got < length) {
			pollfd ready{fd_, POLLIN, 0};
			REQUIRE(poll(&ready, 1, timeout_ms) == 1);
			const ssize_t more = recv(fd_, found.data() + got, length - got, 0);
			if (more <= 0)
				break;
			got += static_cast<std::size_t>(more);
		}
		found.resize(got);
		return found;
	}
	/*
	 * If a reply of @length has arrived, sends @first immediately. Does not wait for the reply.
	 */
	bool has_answered(std::size_t length, const bytes &first) const
	{
		bytes answer(length);

		return recv(fd_, answer.data(), answer.size(), MSG_DONTWAIT) ==
			       static_cast<ssize_t>(answer.size()) &&
		       ::send(fd_, first.data(), first.size(), MSG_NOSIGNAL) ==
			       static_cast<ssize_t>(first.size());
	}
	/* The next frame without its length and trailer; empty at the end of the connection. */
	bytes next_frame() const
	{
		const bytes length = receive(2);

		if (length.size() < 2)
			return {};
		const auto most = get<uint16_t>(length, 0);
		const bytes found = receive(most);
		receive(static_cast<std::size_t>((4 - (2 + most) % 4) % 4 + 4));
		return found;
	}
	/* Does the other end send a TERMINATE message? */
	bool terminated() const
	{
		bool found = false;

		for (bytes one = next_frame(); one.size() >= 2; one = next_frame())
			found |= (get<uint16_t>(one, 0) & 0xf) == op_terminate;
		return found;
	}

private:
	int fd_;
};

struct cm_closer {
	void operator()(rdma_event_channel *p) const { rdma_destroy_event_channel(p); }
	void operator()(rdma_cm_id *p) const { rdma_destroy_id(p); }
};
template <class T> using cm_owned = std::unique_ptr<T, cm_closer>;

/* A queue pair of the device, with its connection manager. */
class end {
public:
	explicit end(const device &on, unsigned int receives = 16, unsigned int completions = 64)
	    : cq_(ibv_create_cq(on.context(), completions, nullptr, nullptr, 0)),
	      events_(rdma_create_event_channel())
	{
		ibv_qp_init_attr init{};
		ibv_qp_attr attr{};

		REQUIRE(cq_);
		REQUIRE(events_);
		init.send_cq = cq_.get();
		init.recv_cq = cq_.get();
		init.qp_type = IBV_QPT_RC;
		init.cap = {requests, receives, 2, 2, 0};
		qp_.reset(ibv_create_qp(on.pd(), &init));
		REQUIRE(qp_);
		attr.qp_state = IBV_QPS_INIT;
		attr.qp_access_flags =
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
		REQUIRE(ibv_modify_qp(qp_.get(), &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS) == 0);
		bind(on.name());
	}

	/* A peer that has sent @request, and sends @first as soon as it has the reply. */
	std::unique_ptr<tcp> connected(const bytes &first = {},
				       const bytes &request = mpa("MPA ID Req Frame", 1, 0))
	{
		auto peer = std::make_unique<tcp>();
		std::atomic<bool> answered = false;

		for (int more = spare_ports; rdma_listen(id_.get(), 1); more--) {
			REQUIRE(errno == EADDRINUSE);
			REQUIRE(more);
			bind(ibv_get_device_name(qp_->context->device));
		}
		REQUIRE(::connect(peer->fd(), rdma_get_local_addr(id_.get()),
				  sizeof(sockaddr_in)) == 0);
		peer->send(request);
		rdma_conn_param param = parameters();
		accepted_.reset(next(RDMA_CM_EVENT_CONNECT_REQUEST).id);
		std::jthread hurried([&](const std::stop_token &stop) {
			while (!stop.stop_requested() && !answered)
				answered = peer->has_answered(request.size(), first);
		});
		REQUIRE(rdma_accept(accepted_.get(), &param) == 0);
		REQUIRE(happens([&] { return answered.load(); }));
		next(RDMA_CM_EVENT_ESTABLISHED);
		return peer;
	}

	/* A peer that got a connection request from the device, and accepted the TCP connection. */
	std::unique_ptr<tcp> asking()
	{
		const tcp listener;
		sockaddr_in at{};
		socklen_t length = sizeof(at);
		auto *const name = reinterpret_cast<sockaddr *>(&at);
		rdma_conn_param param = parameters();

		std::memcpy(&at, rdma_get_local_addr(id_.get()), sizeof(at));
		at.sin_port = 0;
		REQUIRE(::bind(listener.fd(), name, sizeof(at)) == 0);
		REQUIRE(listen(listener.fd(), 1 + spare_ports) == 0);
		REQUIRE(getsockname(listener.fd(), name, &length) == 0);
		for (int i = 0; i <= spare_ports; i++) {
			id_ = make_id();
			REQUIRE(rdma_resolve_addr(id_.get(), nullptr, name, timeout_ms) == 0);
			next(RDMA_CM_EVENT_ADDR_RESOLVED);
			REQUIRE(rdma_resolve_route(id_.get(), timeout_ms) == 0);
			next(RDMA_CM_EVENT_ROUTE_RESOLVED);
			if (rdma_connect(id_.get(), &param))
				continue;
			auto peer = std::make_unique<tcp>(accept(listener.fd(), nullptr, nullptr));
			REQUIRE(peer->receive(24).size() == 24);
			return peer;
		}
		throw std::runtime_error("rdma_connect");
	}

	struct event {
		rdma_cm_id *id;
		rdma_cm_event_type type;
		std::size_t private_data;
	};
	event next() const
	{
		pollfd ready{events_->fd, POLLIN, 0};
		rdma_cm_event *found = nullptr;

		REQUIRE(poll(&ready, 1, timeout_ms) == 1);
		REQUIRE(rdma_get_cm_event(events_.get(), &found) == 0);
		const event one{found->id, found->event, found->param.conn.private_data_len};
		rdma_ack_cm_event(found);
		return one;
	}
	event next(rdma_cm_event_type expected) const
	{
		const event one = next();

		INFO(rdma_event_str(one.type) << " instead of " << rdma_event_str(expected));
		REQUIRE(one.type == expected);
		return one;
	}

	ibv_qp *qp() const { return qp_.get(); }

private:
	cm_owned<rdma_cm_id> make_id() const
	{
		rdma_cm_id *id = nullptr;

		REQUIRE(rdma_create_id(events_.get(), &id, nullptr, RDMA_PS_TCP) == 0);
		return cm_owned<rdma_cm_id>(id);
	}
	/* Binds to the first address of the device. */
	void bind(const std::string &name)
	{
		ifaddrs *first = nullptr;

		REQUIRE(getifaddrs(&first) == 0);
		for (const ifaddrs *i = first; i; i = i->ifa_next) {
			if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET)
				continue;
			id_ = make_id();
			if (rdma_bind_addr(id_.get(), i->ifa_addr) == 0 && id_->verbs &&
			    name == ibv_get_device_name(id_->verbs->device))
				break;
			id_.reset();
		}
		freeifaddrs(first);
		REQUIRE(id_);
	}
	rdma_conn_param parameters() const
	{
		rdma_conn_param param{};

		param.responder_resources = 2;
		param.initiator_depth = 2;
		param.qp_num = qp_->qp_num;
		return param;
	}

	owned<ibv_cq> cq_;
	owned<ibv_qp> qp_;
	cm_owned<rdma_event_channel> events_;
	cm_owned<rdma_cm_id> id_;
	cm_owned<rdma_cm_id> accepted_; /* destroyed before the queue pair */
};

struct target {
	explicit target(const device &on) : mr(on.register_memory(m.registered()))
	{
		std::memset(at(), 0, page);
	}

	std::byte *at() const { return m.registered().addr; }

	memory m = anonymous(page);
	owned<ibv_mr> mr;
};

/* A queue, as the library has mapped it. */
struct queue {
	std::byte *at;
	std::size_t length;
	off_t offset; /* the offset in the file of the device */
};

std::vector<queue> mapped_queues()
{
	std::ifstream maps("/proc/self/maps");
	std::vector<queue> all;

	for (std::string line; std::getline(maps, line);) {
		uintptr_t from = 0;
		uintptr_t to = 0;
		off_t offset = 0;

		if (line.find("uverbs") != std::string::npos &&
		    std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %*s %lx", &from, &to,
				&offset) == 3)
			all.push_back({reinterpret_cast<std::byte *>(from), to - from, offset});
	}
	return all;
}

/* KASAN keeps freed objects for a while, to detect later uses. */
bool has_kasan()
{
	std::ifstream symbols("/proc/kallsyms");

	for (std::string line; std::getline(symbols, line);)
		if (line.ends_with(" kasan_report"))
			return true;
	return false;
}

/* The number of kmalloc() objects, including objects that RCU will free after a grace period. */
long objects()
{
	std::ifstream slabs("/proc/slabinfo");
	long all = 0;

	for (std::string line; std::getline(slabs, line);) {
		std::istringstream words(line);
		std::string name;
		long active = 0;

		if (words >> name >> active && name.starts_with("kmalloc"))
			all += active;
	}
	return all;
}

const bytes four(4, std::byte{0x5a});

} // namespace

TEST_CASE("siw: a write that begins with an empty segment needs a valid key, too", "[iwarp]")
{
	const device on;
	const target to(on);
	end one(on);
	const auto peer = one.connected();

	SECTION("it has none")
	{
		peer->send(write_frame(0, 0, nullptr, {}));
		peer->send(write_frame(last, 0, nullptr, four));
		CHECK(peer->terminated());
	}
	SECTION("it has another one")
	{
		peer->send(write_frame(0, to.mr->rkey, to.at(), {}));
		peer->send(write_frame(last, to.mr->rkey + 0x100, to.at(), four));
		CHECK(peer->terminated());
		CHECK(*to.at() == std::byte{0});
	}
	SECTION("it has one")
	{
		peer->send(write_frame(0, to.mr->rkey, to.at(), {}));
		peer->send(write_frame(last, to.mr->rkey, to.at(), four));
		peer->send(write_frame(last, 0, nullptr, {})); /* without an STag to check */
		peer->send(write_frame(last, 0, nullptr, four));
		CHECK(peer->terminated());
		CHECK(std::equal(four.begin(), four.end(), to.at()));
	}
}

TEST_CASE("siw: a read of length 0 gets an empty response while another read is answered",
	  "[iwarp]")
{
	const device on;
	const target from(on);
	end one(on);
	const auto peer = one.connected();
	bytes both = read_frame(1, 0x100, 64, from.mr->rkey, from.at());
	const bytes second = read_frame(2, 0x200, 0, 0, nullptr);

	both.insert(both.end(), second.begin(), second.end());
	peer->send(both);
	for (const auto &[sink, length] :
	     {std::pair<uint32_t, std::size_t>{0x100, 64}, {0x200, 0}}) {
		const bytes answer = peer->next_frame();

		INFO("the answer to " << sink);
		REQUIRE(answer.size() == 14 + length); /* the length in its header */
		CHECK((get<uint16_t>(answer, 0) & 0xf) == op_answer);
		CHECK(get<uint32_t>(answer, 2) == sink);
	}
}

/*
 * The reply contains the length of its private data. The first four bytes belong to the connection
 * manager. siw must pass on only bytes that arrived.
 */
TEST_CASE("siw: a reply that is too short or incomplete does not connect", "[iwarp]")
{
	const device on;
	constexpr std::string_view key = "MPA ID Rep Frame";
	constexpr uint16_t enhanced = 0x1002;
	constexpr uint16_t rejected = 0x2000;
	end one(on);
	std::unique_ptr<tcp> peer = one.asking();

	SECTION("it has none")
	{
		peer->send(mpa(key, enhanced, 0));
	}
	SECTION("it has two")
	{
		peer->send(mpa(key, enhanced, 2, bytes(2)));
	}
	SECTION("it is a refusal that has two")
	{
		peer->send(mpa(key, enhanced | rejected, 2, bytes(2)));
	}
	SECTION("it has more than may be")
	{
		peer->send(mpa(key, enhanced, 600, bytes(100)));
	}
	SECTION("it breaks off before them")
	{
		peer->send(mpa(key, enhanced, 100));
		peer.reset();
	}
	SECTION("it breaks off among them")
	{
		peer->send(mpa(key, enhanced, 100, bytes(40)));
		peer.reset();
	}
	const end::event refused = one.next();
	INFO(rdma_event_str(refused.type));
	CHECK((refused.type == RDMA_CM_EVENT_CONNECT_ERROR ||
	       refused.type == RDMA_CM_EVENT_REJECTED));
	CHECK(refused.private_data <= 2);
}

TEST_CASE("siw: a reply of the stated length connects, and later bytes are passed on", "[iwarp]")
{
	const device on;
	end one(on);
	const auto peer = one.asking();
	bytes data;

	put(data, uint16_t{2});
	put(data, uint16_t{2});
	data.resize(7);
	peer->send(mpa("MPA ID Rep Frame", 0x1002, 7, data));
	CHECK(one.next(RDMA_CM_EVENT_ESTABLISHED).private_data == 3);
}

/*
 *	siw_accept()				the peer
 *	sends the answer
 *						sends its first message: sk_data_ready()
 *						of the connection manager ignores it
 *	gives the socket to the queue pair
 *						waits
 */
TEST_CASE("siw: an FPDU right after the MPA reply is processed", "[iwarp][kprobes]")
{
	const device on;
	probe answer("siw_send_mpareqrep", probe::at::end);
	const target to(on);

	bytes request = mpa("MPA ID Req Frame", 1, 0);
	bytes first;

	SECTION("a message") {}
	SECTION("and before it an empty write, by which the peer says that it is ready")
	{
		bytes numbers;

		put(numbers, uint16_t{0x8002}); /* the flag "peer to peer", and the IRD */
		put(numbers, uint16_t{0x8002}); /* the flag "RTR by a write", and the ORD */
		request = mpa("MPA ID Req Frame", 0x1002, 4, numbers);
		first = write_frame(last, 0, nullptr, {});
	}
	const bytes message = write_frame(last, to.mr->rkey, to.at(), four);
	first.insert(first.end(), message.begin(), message.end());
	answer.slow_down();
	for (int n = 0; n < 50; n++) {
		*to.at() = std::byte{0};
		end one(on);
		const auto peer = one.connected(first, request);
		INFO("round " << n);
		REQUIRE(happens(
			[&] { return *static_cast<volatile std::byte *>(to.at()) == four[0]; }));
	}
}

/* The end of a queue pair waits for rdma_accept(), which uses the endpoint. */
TEST_CASE("siw: a signal that comes while an endpoint is in use is not lost", "[iwarp][kprobes]")
{
	const device on;
	probe answer("siw_send_mpareqrep", probe::at::end);
	static std::atomic<int> handled;
	int sent = 0;

	answer.slow_down();
	handled = 0;
	std::signal(SIGUSR1, [](int) { handled++; });
	for (int n = 0; n < 50; n++) {
		end one(on);
		std::atomic<pid_t> in_call = 0;
		std::atomic<bool> over = false;
		std::atomic<bool> told = false;
		std::jthread ending([&](const std::stop_token &stop) {
			ibv_qp_attr attr{};
			ibv_qp_init_attr init{};

			while (attr.qp_state != IBV_QPS_RTS && !stop.stop_requested())
				ibv_query_qp(one.qp(), &attr, IBV_QP_STATE, &init);
			in_call = gettid();
			attr.qp_state = IBV_QPS_ERR;
			ibv_modify_qp(one.qp(), &attr, IBV_QP_STATE);
			over = true;
			while (!told)
				std::this_thread::yield();
		});
		const std::jthread sending(
			[&, to = ending.native_handle()](const std::stop_token &stop) {
				while (!over && !stop.stop_requested() && !sleeps(in_call))
					std::this_thread::yield();
				if (!over)
					sent += pthread_kill(to, SIGUSR1) == 0;
				told = true;
			});
		const auto peer = one.connected();
		REQUIRE(happens([&] { return over.load(); }));
		INFO("round " << n << ", signals " << sent);
		REQUIRE(happens([&] { return handled == sent; }));
	}
	SKIP_IF(!sent, "rdma_accept() was too fast");
}

/* The TERMINATE message names the last frame, and siw ignores later frames. */
TEST_CASE("siw: an invalidation that is refused ends the connection", "[iwarp]")
{
	const device on;
	const target of(on);
	end one(on);
	const auto peer = one.connected();

	for (int i = 0; i < 2; i++)
		post_receive(one.qp(), {{{of.at(), page}, of.mr->lkey}});
	bytes both = invalidating_frame(1, of.mr->rkey);
	const bytes unknown = frame(last | 9, bytes(16));
	both.insert(both.end(), unknown.begin(), unknown.end());
	peer->send(both);
	const bytes said = peer->next_frame();
	REQUIRE(said.size() >= 26);
	CHECK((get<uint16_t>(said, 0) & 0xf) == op_terminate);
	CHECK((get<uint16_t>(said, 24) & 0xf) == op_send_with_invalidation);
}

/* Without the fix each registration leaked four objects. Their slabs have no other objects. */
TEST_CASE("siw: a receive with an empty element gives back the memory it was written to", "[iwarp]")
{
	const device on;
	SKIP_IF(has_kasan(), "KASAN keeps objects");
	constexpr int rounds = 400;
	const target from(on);
	const memory into = anonymous(page);
	loopback link(on);
	const long before = objects();
	SKIP_IF(before == 0, "this kernel does not count its objects");

	for (int i = 0; i < rounds; i++) {
		const owned<ibv_mr> mr = on.register_memory(into.registered());
		std::byte *const at = into.registered().addr;

		post_receive(link.far_end(), {{{at, 0}, mr->lkey}, {{at, page}, mr->lkey}});
		link.start(IBV_WR_SEND, from.mr.get(), {from.at(), 100}, nullptr, 0);
		REQUIRE(link.wait().status == IBV_WC_SUCCESS);
		REQUIRE(link.wait().status == IBV_WC_SUCCESS);
	}
	CHECK(happens([&] { return objects() - before <= 3 * rounds; }));
}

/* The queue is large, so that mapping it takes as long as destroying it. */
TEST_CASE("siw: a queue is destroyed while it is mapped once more", "[iwarp]")
{
	const device on;

	for (int round = 0; round < 20; round++) {
		owned<ibv_cq> cq(ibv_create_cq(on.context(), 1 << 18, nullptr, nullptr, 0));
		REQUIRE(cq);
		const std::vector<queue> all = mapped_queues();
		REQUIRE(all.size() == 1);
		std::atomic<bool> mapped = false;
		std::thread mapper([&, one = all.front()] {
			for (;;) {
				void *const at = mmap(nullptr, one.length, PROT_READ, MAP_SHARED,
						      on.context()->cmd_fd, one.offset);
				if (at == MAP_FAILED)
					break;
				mapped = true;
				munmap(at, one.length);
			}
			mapped = true;
		});
		while (!mapped)
			std::this_thread::yield();
		cq.reset();
		mapper.join();
	}
}

/*
 * The kernel completes all requests with an error, and the owner fills them in again. The queues
 * are so long that the kernel takes longer to go through a queue than the owner takes to fill it.
 */
TEST_CASE("siw: a queue pair ends while its owner fills its queues", "[iwarp]")
{
	const device on;
	constexpr unsigned int receives = 1 << 15;
	constexpr unsigned int completions = 1 << 17;
	constexpr unsigned int most = 20 * receives;
	end one(on, receives, completions);
	const auto peer = one.connected();
	std::vector<queue> all = mapped_queues();
	std::atomic<unsigned int> completed = 0;
	std::atomic<bool> begun = false;
	std::atomic<bool> over = false;
	ibv_qp_attr attr{};

	REQUIRE(all.size() == 3);
	std::ranges::sort(all, {}, &queue::length);
	REQUIRE(all[0].length < all[1].length);
	REQUIRE(all[1].length < all[2].length);
	std::thread filler([&] {
		auto *const sends = reinterpret_cast<volatile siw_sqe *>(all[0].at);
		auto *const into = reinterpret_cast<volatile siw_rqe *>(all[1].at);
		auto *const done = reinterpret_cast<volatile siw_cqe *>(all[2].at);

		while (!over && completed < most) {
			for (unsigned int i = 0; i < requests; i++)
				sends[i].flags = SIW_WQE_VALID;
			for (unsigned int i = 0; i < receives; i++)
				into[i].flags = SIW_WQE_VALID;
			for (unsigned int i = 0; i < completions; i++)
				if (done[i].flags) {
					done[i].flags = 0;
					completed++;
				}
			begun = true;
		}
		for (unsigned int i = 0; i < requests; i++)
			sends[i].flags = 0;
		for (unsigned int i = 0; i < receives; i++)
			into[i].flags = 0;
	});
	while (!begun)
		std::this_thread::yield();
	attr.qp_state = IBV_QPS_ERR;
	const int error = ibv_modify_qp(one.qp(), &attr, IBV_QP_STATE);
	over = true;
	filler.join();
	CHECK(error == 0);
	CHECK(completed <= 3 * (requests + receives)); /* including the completions at the end */
}

TEST_CASE("siw: requests posted to a flushed queue are flushed", "[iwarp]")
{
	const device on;
	const memory m = anonymous(page);
	const auto mr = on.register_memory(m.registered());
	loopback link(on);
	ibv_qp_attr attr{};

	attr.qp_state = IBV_QPS_ERR;
	REQUIRE(ibv_modify_qp(link.near_end(), &attr, IBV_QP_STATE) == 0);
	for (int i = 0; i < 3; i++) {
		link.start(IBV_WR_RDMA_READ, mr.get(), m.registered(), m.registered().addr,
			   mr->rkey);
		CHECK(link.wait().status == IBV_WC_WR_FLUSH_ERR);
	}
}

/*
 *	ibv_modify_qp()				the softirq of a packet, the transmitting thread
 *	takes the lock of the state
 *						can't get the lock, and leaves its work
 *	releases the lock
 *						does not run again by itself
 *
 * ibv_modify_qp() does that work, perhaps before the thread visits its list:
 *
 *	ibv_modify_qp()				a packet		the transmitting thread
 *						requires an answer:
 *						adds the QP to the list
 *	answers
 *						requires an answer:
 *						adds the QP again
 *									removes the QP once
 */
TEST_CASE("siw: a queue pair keeps working while its access flags change", "[iwarp]")
{
	const device on;
	const bool near = GENERATE(true, false);
	const target to(on);
	const memory from = anonymous(page);
	const auto mr = on.register_memory(from.registered());
	loopback link(on);
	const std::jthread changing([&](const std::stop_token &stop) {
		ibv_qp_attr attr{};

		attr.qp_access_flags =
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
		while (!stop.stop_requested()) {
			if (ibv_modify_qp(near ? link.near_end() : link.far_end(), &attr,
					  IBV_QP_ACCESS_FLAGS))
				return;
			if (std::thread::hardware_concurrency() == 1)
				std::this_thread::yield();
		}
	});

	INFO("of the " << (near ? "near" : "far") << " end");
	for (int n = 0; n < 2000; n++) {
		INFO("transfer " << n);
		REQUIRE(link.write(mr.get(), from.registered(), to.at(), to.mr->rkey) ==
			IBV_WC_SUCCESS);
		REQUIRE(link.read(mr.get(), from.registered(), to.at(), to.mr->rkey) ==
			IBV_WC_SUCCESS);
	}
}

TEST_CASE("siw: memory is registered at the address that is asked for", "[iwarp]")
{
	const device on;
	constexpr uint64_t iova = 0x123450000;
	const memory from = anonymous(page);
	const memory to = anonymous(3 * page);
	const range at{to.registered().addr + 100, 2 * page}; /* a range on three pages */
	const auto source = on.register_memory(from.registered());
	const owned<ibv_mr> mr(ibv_reg_mr_iova(on.pd(), at.addr, at.length, iova + 100,
					       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	const auto write = [&](loopback &link, uint64_t address) {
		return link.write(source.get(), {from.registered().addr, page},
				  reinterpret_cast<void *>(address), mr->rkey);
	};

	REQUIRE(mr);
	std::memset(from.registered().addr, 1, page);
	std::memset(to.registered().addr, 0, 3 * page);
	loopback link(on);
	CHECK(write(link, iova + 100 + page) == IBV_WC_SUCCESS);
	CHECK(to.registered().addr[99 + page] == std::byte{0});
	CHECK(to.registered().addr[100 + page] == std::byte{1});
	CHECK(to.registered().addr[99 + 2 * page] == std::byte{1});
	CHECK(to.registered().addr[100 + 2 * page] == std::byte{0});
	SECTION("and not at its own")
	{
		CHECK(write(link, reinterpret_cast<uintptr_t>(at.addr)) != IBV_WC_SUCCESS);
	}
	SECTION("and not behind its end")
	{
		CHECK(write(link, iova + 101 + page) != IBV_WC_SUCCESS);
	}
}

/* The end address of an access may be 0 here, whether the access is allowed or not. */
TEST_CASE("siw: memory is registered in the last page of all addresses", "[iwarp]")
{
	const device on;
	constexpr uint64_t iova = 0 - page;
	const memory from = anonymous(page);
	const memory to = anonymous(page);
	const std::size_t length = GENERATE(false, true) ? page : 100;
	const auto source = on.register_memory(from.registered());
	const owned<ibv_mr> mr(ibv_reg_mr_iova(on.pd(), to.registered().addr, length, iova,
					       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));

	INFO("so many bytes of it: " << length);
	REQUIRE(mr);
	loopback link(on);
	const auto write = [&](std::size_t bytes) {
		return link.write(source.get(), {from.registered().addr, bytes},
				  reinterpret_cast<void *>(iova), mr->rkey);
	};
	std::memset(from.registered().addr, 1, page);
	std::memset(to.registered().addr, 0, page);
	CHECK(write(99) == IBV_WC_SUCCESS);
	CHECK(to.registered().addr[98] == std::byte{1});
	CHECK(to.registered().addr[99] == std::byte{0});
	CHECK((write(page) == IBV_WC_SUCCESS) == (length == page));
	CHECK((to.registered().addr[page - 1] == std::byte{1}) == (length == page));
}
