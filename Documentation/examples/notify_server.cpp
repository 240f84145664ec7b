// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * notify_server.c in C++20: a server tells its client a new key whenever the memory of the old key
 * has changed. Usage: notify_server [DEVICE]. Exit status 3: the device has no MR notification.
 */
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string_view>

#include "rc_link.h"

namespace {

constexpr std::size_t length = 64 * 1024;
constexpr int rounds = 5;

using text = std::array<char, 64>;

struct key {
	uint64_t address; /* 0: the client has nothing more to write */
	uint32_t rkey;
};

template <auto end> struct ends {
	void operator()(auto *what) const { end(what); }
};
using owned_mr = std::unique_ptr<ibv_mr, ends<ibv_dereg_mr>>;
using owned_word = std::unique_ptr<uint64_t, ends<ibv_free_notify_word>>;

class descriptor {
public:
	descriptor(int fd, const char *what) : fd_(fd) { rc_check(fd >= 0, what); }
	descriptor(const descriptor &) = delete;
	descriptor &operator=(const descriptor &) = delete;
	~descriptor() { close(fd_); }

	int get() const { return fd_; }

private:
	const int fd_;
};

/* A socket to the other process. */
class peer {
public:
	explicit peer(int fd) : socket_(fd, "socket") {}

	template <typename T> void tell(const T &what) const
	{
		rc_check(send(socket_.get(), &what, sizeof(what), 0) == sizeof(what), "send");
	}

	template <typename T> T hear() const
	{
		T what;
		rc_check(recv(socket_.get(), &what, sizeof(what), 0) == sizeof(what), "recv");
		return what;
	}

private:
	const descriptor socket_;
};

class connection : public rc_link {
public:
	connection(const peer &other, const char *device)
	{
		other.tell(rc_open(this, device));
		const auto address = other.hear<rc_address>();
		rc_connect(this, &address);
	}
	connection(const connection &) = delete;
	connection &operator=(const connection &) = delete;
	~connection() { rc_close(this); }
};

class mapping {
public:
	mapping() { map(); }
	mapping(const mapping &) = delete;
	mapping &operator=(const mapping &) = delete;
	~mapping() { munmap(memory_, length); }

	char *data() const { return static_cast<char *>(memory_); }

	/* The library replaces the buffer, and does not tell the server. */
	void replace()
	{
		munmap(memory_, length);
		map();
	}

private:
	void map()
	{
		memory_ = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			       -1, 0);
		rc_check(memory_ != MAP_FAILED, "mmap");
	}

	void *memory_;
};

int client(const peer &server, const char *device)
{
	connection link(server, device);
	text said{};
	const owned_mr mr(ibv_reg_mr(link.pd, said.data(), said.size(), 0));

	rc_check(mr != nullptr, "ibv_reg_mr");
	for (int i = 0;; i++) {
		const key to = server.hear<key>();
		if (!to.address)
			return 0;
		std::snprintf(said.data(), said.size(), "message %d", i);
		rc_write(&link, said.data(), said.size(), mr.get(), to.address, to.rkey);
		server.tell(said);
	}
}

/* Waits until the kernel says that a registration is INVALID. */
void wait_for_change(const descriptor &event)
{
	pollfd changed{event.get(), POLLIN, 0};
	eventfd_t times;

	rc_check(poll(&changed, 1, -1) == 1 && !eventfd_read(event.get(), &times), "poll");
}

int server(const peer &client, const char *device)
{
	const connection link(client, device);
	const descriptor event(eventfd(0, EFD_CLOEXEC), "eventfd");
	const owned_word word(ibv_alloc_notify_word(link.context));
	ibv_mr_notify_attr attr{};
	mapping buffer;
	int status = 0;

	rc_check(word != nullptr, "ibv_alloc_notify_word");
	attr.comp_mask = IBV_MR_NOTIFY_ATTR_EVENT_FD;
	attr.word = word.get();
	attr.event_fd = event.get();
	for (int i = 0; i < rounds; i++) {
		const auto address = reinterpret_cast<uintptr_t>(buffer.data());

		*word = 0;
		const owned_mr mr(ibv_reg_notified_mr(
			link.pd, buffer.data(), length, address,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, &attr));
		if (!mr && errno == EOPNOTSUPP) {
			status = 3;
			break;
		}
		rc_check(mr != nullptr, "ibv_reg_notified_mr");
		client.tell(key{address, mr->rkey});
		const auto said = client.hear<text>();
		std::printf("written: %s\n", buffer.data());
		rc_check(std::string_view(buffer.data()) == said.data(), "other bytes");
		buffer.replace();
		wait_for_change(event);
		rc_check(std::atomic_ref(*word).load(std::memory_order_acquire) &
				 IBV_MR_NOTIFY_INVALID,
			 "no INVALID word");
		std::printf("round %d: the kernel says that the buffer has gone\n", i);
	}
	client.tell(key{});
	return status;
}

} // namespace

int main(int argc, char **argv)
{
	const char *device = argc > 1 ? argv[1] : nullptr;
	int of_client = 0;
	int sockets[2];

	rc_check(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets), "socketpair");
	const pid_t child = fork(); /* before a device is open */
	rc_check(child >= 0, "fork");
	close(sockets[child ? 1 : 0]);
	if (!child)
		return client(peer(sockets[1]), device);
	const int status = server(peer(sockets[0]), device);
	rc_check(waitpid(child, &of_client, 0) == child, "waitpid");
	return of_client ? 2 : status;
}
