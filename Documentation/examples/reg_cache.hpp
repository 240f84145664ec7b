// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * reg_cache.h in C++20: a registration cache for a communication library, without memory hooks. The
 * kernel tells when a registration has become stale (ibv_reg_mr_notify(3)). Where the headers, the
 * library, the kernel or the device cannot do that, nothing is kept: each transfer registers.
 *
 * Thread safe, all of it. The word's bits, the mutex's table, and the pairs of memory orders are
 * told in reg_cache.c and are the same here: one addition to the word takes the reference and tells
 * whether the kernel objects; references are taken under the mutex, and given back without it; the
 * thread that ends an entry reads the zero with acquire, under the mutex.
 */
#ifndef REG_CACHE_HPP
#define REG_CACHE_HPP

#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <system_error>
#include <utility>

class reg_cache {
	struct dereg {
		void operator()(ibv_mr *mr) const { ibv_dereg_mr(mr); }
	};
	using owned_mr = std::unique_ptr<ibv_mr, dereg>;

	/* Words are close together (the kernel pins their pages), and live as long as the cache. */
	struct entry {
		alignas(8) uint64_t word = 0;
		owned_mr mr; /* none: free */
		uintptr_t start = 0;
		uintptr_t end = 0;
		bool gone = false; /* not to be found; ended when it is not in use */
	};
	struct table {
		alignas(8) uint64_t changes = 0; /* the kernel counts INVALID words there */
		std::array<entry, 1024> all;
	};

	/* Pages for the table alone; why not the heap's, is told in reg_cache.c. */
	struct unmap {
		void operator()(table *entries) const
		{
			std::destroy_at(entries);
			munmap(entries, sizeof(*entries));
		}
	};
	static std::unique_ptr<table, unmap> new_table()
	{
		void *pages = mmap(nullptr, sizeof(table), PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (pages == MAP_FAILED)
			throw std::system_error(errno, std::generic_category(), "mmap");
		/* Zeros in a child, whose exit() must not end its parent's registrations. */
		madvise(pages, sizeof(table), MADV_WIPEONFORK);
		return std::unique_ptr<table, unmap>(new (pages) table);
	}

public:
	/* A transfer's registration, while the device may use the memory. Movable. */
	class lease {
	public:
		lease(lease &&other) noexcept
		    : entry_(std::exchange(other.entry_, nullptr)), own_(std::move(other.own_))
		{
		}
		lease &operator=(lease &&) = delete;
		~lease()
		{
			if (entry_)
				word_of(*entry_).fetch_sub(reference, std::memory_order_release);
		}
		/* May cover more than was asked for. */
		ibv_mr *mr() const { return entry_ ? entry_->mr.get() : own_.get(); }

	private:
		friend reg_cache;
		explicit lease(entry *kept) : entry_(kept) {}
		explicit lease(owned_mr own) : own_(std::move(own)) {}

		entry *entry_ = nullptr;
		owned_mr own_; /* for this transfer only */
	};

	/* All registrations get this access. Destroy it before the PD, and after the leases. */
	reg_cache(ibv_pd *pd, int access) : pd_(pd), access_(access), keeps_(device_notifies()) {}

	/* The kernel notifies here, and registrations are kept. */
	bool keeps() const { return keeps_; }
	/* How often memory was registered so far. */
	unsigned long count() const { return count_.load(std::memory_order_relaxed); }

	/* A registration of the memory mapped at this address now. Throws std::system_error. */
	lease get(std::span<std::byte> memory)
	{
		if (keeps_) {
			const auto start = reinterpret_cast<uintptr_t>(memory.data());
			const std::lock_guard hold(mutex_);
			if (entry *kept = find_or_add(start, start + memory.size()))
				return lease(kept);
		}
		for (;;) {
			owned_mr mr(ibv_reg_mr(pd_, memory.data(), memory.size(), access_));
			if (mr) {
				count_.fetch_add(1, std::memory_order_relaxed);
				return lease(std::move(mr));
			}
			const int error = errno;
			if (error != ENOMEM || !end_unused())
				throw std::system_error(error, std::generic_category(),
							"ibv_reg_mr");
		}
	}

private:
	static constexpr uint64_t reference = 1 << 8;

	static std::atomic_ref<uint64_t> word_of(entry &e) { return std::atomic_ref(e.word); }

#ifdef IBV_HAVE_REG_NOTIFIED_MR
	static constexpr uint64_t kernel_bits = IBV_MR_NOTIFY_KERNEL_MASK;

	/* Run time: is the kernel and the driver able? */
	bool device_notifies() const
	{
		ibv_device_attr attr;
		return !ibv_query_device(pd_->context, &attr) &&
		       attr.device_cap_flags & IBV_DEVICE_MR_NOTIFY;
	}

	/* Takes a reference; false, and none is held, if the registration cannot be used. */
	static bool take(entry &e)
	{
		uint64_t seen = word_of(e).fetch_add(reference, std::memory_order_acquire);

		if (seen & kernel_bits && !(seen & IBV_MR_NOTIFY_INVALID))
			seen = ibv_settle_mr_notify(e.mr.get())
				       ? uint64_t{IBV_MR_NOTIFY_INVALID}
				       : word_of(e).load(std::memory_order_acquire);
		if (!(seen & kernel_bits))
			return true;
		word_of(e).fetch_sub(reference, std::memory_order_release);
		e.gone = true;
		return false;
	}

	static bool unused(entry &e)
	{
		return !(word_of(e).load(std::memory_order_acquire) & ~kernel_bits);
	}

	/* Ends the entries that have become INVALID, if the kernel's counter has moved. */
	void end_stale()
	{
		const uint64_t changes = std::atomic_ref(entries_->changes).load();

		if (std::exchange(seen_, changes) == changes)
			return;
		for (entry &e : entries_->all) {
			if (word_of(e).load(std::memory_order_acquire) & IBV_MR_NOTIFY_INVALID)
				e.gone = true;
			if (e.mr && e.gone && unused(e))
				e.mr.reset();
		}
	}

	/* A free entry, or nullptr if all are in use. */
	entry *make_room()
	{
		for (std::size_t i = 0; i < entries_->all.size(); i++) {
			entry &e = entries_->all[next_++ % entries_->all.size()];
			if (e.mr && !unused(e))
				continue;
			e.mr.reset();
			return &e;
		}
		return nullptr;
	}

	/* reg_cache.c tells why the users are counted. */
	owned_mr reg(entry &e)
	{
		const auto call = [&](uint64_t more) {
			ibv_mr_notify_attr attr{};

			attr.comp_mask = IBV_MR_NOTIFY_ATTR_CHANGES | more;
			attr.word = &e.word;
			attr.in_use = ~kernel_bits;
			attr.changes = &entries_->changes;
			return owned_mr(ibv_reg_notified_mr(pd_, reinterpret_cast<void *>(e.start),
							    e.end - e.start, e.start, access_,
							    &attr));
		};
		owned_mr mr = call(IBV_MR_NOTIFY_ATTR_IN_USE);

		return mr || errno != EOPNOTSUPP ? std::move(mr) : call(0);
	}

	/* Whole pages. */
	bool add(entry &e, uintptr_t start, uintptr_t end)
	{
		const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));

		e.start = start & ~(page - 1);
		e.end = (end + page - 1) & ~(page - 1);
		e.gone = false;
		e.word = reference; /* the kernel's not yet */
		e.mr = reg(e);
		if (!e.mr)
			return false;
		count_.fetch_add(1, std::memory_order_relaxed);
		if (!(word_of(e).load(std::memory_order_acquire) & kernel_bits))
			return true;
		e.gone = true;
		word_of(e).fetch_sub(reference, std::memory_order_release);
		return false;
	}

	/* Under the mutex. */
	entry *find_or_add(uintptr_t start, uintptr_t end)
	{
		for (entry &e : entries_->all) /* a real one has a tree here */
			if (e.mr && !e.gone && e.start <= start && end <= e.end && take(e))
				return &e;
		end_stale();
		entry *room = make_room();
		return room && add(*room, start, end) ? room : nullptr;
	}

	/* After ENOMEM, which kept registrations may cause. */
	bool end_unused()
	{
		const std::lock_guard hold(mutex_);
		bool ended = false;

		for (entry &e : entries_->all)
			if (e.mr && unused(e)) {
				e.mr.reset();
				ended = true;
			}
		return ended;
	}
#else /* older headers; clang-format 14 and 19 differ here */
	/* clang-format off */
	bool device_notifies() const
	{
		return false;
	}
	entry *find_or_add(uintptr_t, uintptr_t)
	{
		return nullptr;
	}
	bool end_unused()
	{
		return false;
	}
	/* clang-format on */
#endif

	ibv_pd *const pd_;
	const int access_;
	const bool keeps_;
	std::atomic<unsigned long> count_ = 0;
	std::mutex mutex_;     /* which entry has which range */
	uint64_t seen_ = 0;    /* the counter of changes, when the table was last searched */
	std::size_t next_ = 0; /* whom to evict: round and round, for shortness */
	const std::unique_ptr<table, unmap> entries_ = new_table();
};

#endif
