// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "witness.h"

#include <fcntl.h>
#include <unistd.h>

namespace mr_notify {

std::vector<uint64_t> frames(range r)
{
	constexpr uint64_t present = uint64_t{1} << 63;
	constexpr uint64_t number = (uint64_t{1} << 55) - 1;
	std::vector<uint64_t> pages(r.length / page_size());
	const auto first = reinterpret_cast<std::uintptr_t>(r.addr) / page_size();
	const std::size_t bytes = pages.size() * sizeof(uint64_t);
	const int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		throw unsupported("no /proc/self/pagemap");
	const ssize_t got =
		pread(fd, pages.data(), bytes, static_cast<off_t>(first * sizeof(uint64_t)));
	close(fd);
	if (got != static_cast<ssize_t>(bytes))
		throw unsupported("/proc/self/pagemap can't be read");
	for (uint64_t &page : pages) {
		if ((page & (present | number)) == present)
			throw unsupported("page numbers need CAP_SYS_ADMIN");
		page = page & present ? page & number : 0;
	}
	return pages;
}

std::function<void(memory &)> witnessed(std::function<void(memory &)> apply)
{
	return [apply = std::move(apply)](memory &m) {
		const auto before = frames(m.witness());

		apply(m);
		if (frames(m.witness()) == before)
			throw unsupported(
				"the kernel changed neither the range nor the memory next to it");
	};
}

} // namespace mr_notify
