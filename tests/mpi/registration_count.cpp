// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "registration_count.h"

#include <infiniband/verbs.h>
#include <nlohmann/json.hpp>

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

namespace {

struct closer {
	void operator()(FILE *p) const { pclose(p); }
	void operator()(ibv_device **p) const { ibv_free_device_list(p); }
	void operator()(ibv_context *p) const { ibv_close_device(p); }
	void operator()(ibv_pd *p) const { ibv_dealloc_pd(p); }
	void operator()(ibv_mr *p) const { ibv_dereg_mr(p); }
};

template <class T> std::unique_ptr<T, closer> owned(T *made, const char *what)
{
	if (!made)
		throw std::runtime_error(what);
	return std::unique_ptr<T, closer>(made);
}

/* The kernel's number of the only registration of this process. */
uint64_t own_number()
{
	const auto rdma = owned(popen("rdma -j resource show mr", "r"), "rdma");
	std::string text;

	for (int c; (c = std::fgetc(rdma.get())) != EOF;)
		text += static_cast<char>(c);
	for (const auto &mr : nlohmann::json::parse(text))
		if (mr.value("pid", 0) == getpid())
			return mr.at("mrn");
	throw std::runtime_error("rdma resource show mr: not there");
}

/*
 * For each received byte, makes a registration and sends back its number (from 1), or 0 on failure.
 */
void serve(int socket)
{
	alignas(8) static std::array<char, 8> memory;
	char request;

	setenv("RDMAV_MR_CACHE", "0", 1);
	while (read(socket, &request, 1) == 1) {
		uint64_t number = 0;
		try {
			const auto list = owned(ibv_get_device_list(nullptr), "no device list");
			const auto context = owned(ibv_open_device(*list), "no device");
			const auto pd = owned(ibv_alloc_pd(context.get()), "no PD");
			const auto mr = owned(ibv_reg_mr(pd.get(), memory.data(), memory.size(), 0),
					      "no MR");
			number = own_number() + 1;
		} catch (const std::exception &e) {
			std::fprintf(stderr, "counting registrations: %s\n", e.what());
		}
		if (write(socket, &number, sizeof(number)) != sizeof(number))
			break;
	}
}

} // namespace

registration_count::registration_count()
{
	std::array<int, 2> ends{};

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()))
		throw std::runtime_error("socketpair");
	child_ = fork();
	if (child_ == 0) {
		close(ends[0]);
		serve(ends[1]);
		_exit(0);
	}
	close(ends[1]);
	socket_ = ends[0];
	if (child_ < 0)
		throw std::runtime_error("fork");
}

registration_count::~registration_count()
{
	close(socket_);
	waitpid(child_, nullptr, 0);
}

uint64_t registration_count::now()
{
	uint64_t number = 0;

	if (write(socket_, "", 1) != 1 ||
	    read(socket_, &number, sizeof(number)) != sizeof(number) || !number)
		throw std::runtime_error("the kernel's count of registrations is not to be had");
	return number - ++own_;
}
