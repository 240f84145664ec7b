// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * All memory of a cache is one mapping, which is reserved as a whole, and never moved or unmapped.
 * When the number of entries and hints grows, the cache makes more parts of the mapping accessible.
 * mlockall locks only accessible parts. The initial state is all zeros. In a child, also after a
 * raw clone(), the kernel zeroes the mapping. So the child finds generation 0 and an empty cache.
 */
#ifndef MR_CACHE_ARENA_H
#define MR_CACHE_ARENA_H

#include <cerrno>
#include <cstddef>

#include "catalog.h"
#include "hints.h"
#include "owners.h"

namespace mr_cache {

/*
 * The newest registrations in progress. A request for the same range waits for the registration,
 * but only some milliseconds (await()). The waiting thread may hold a lock that the registering
 * thread needs. An allocator's hook does not wait, because two hooks could wait for each other.
 */
template <class Env> class operations {
public:
	typename Env::condition progress; // signalled when a thread returns from the registrar

	/* Call describe() for the entry first, and remove() later. */
	void add(uint32_t i) { newest[count < NEWEST ? count++ : ++last % NEWEST] = i; }

	void remove(uint32_t i)
	{
		for (uint32_t n = 0; n < count; n++)
			if (newest[n] == i)
				newest[n] = newest[--count];
	}

	/* Returns an entry that will serve the request, or 0. Skips entries that are LATE. */
	uint32_t find(const request &want, const entry<Env> *entries) const
	{
		for (uint32_t n = 0; n < count; n++)
			if (entries[newest[n]].until != LATE && entries[newest[n]].fits(want))
				return newest[n];
		return 0;
	}

private:
	static constexpr uint32_t NEWEST = 16;

	uint32_t newest[NEWEST];
	uint32_t count;
	uint32_t last; // the place that was overwritten last
};

template <class Env> struct arena {
	template <class T> using atomic = typename Env::template atomic<T>;

	/* Every hit reads these members. Only misses and evictions write them. */
	struct alignas(128) {
		atomic<uint32_t> generation; // 0 before the arena is initialized
		atomic<uint32_t> last_hint;
		atomic<uint64_t> epoch; // the upper bits of stamps
		atomic<uint32_t> high;	// entries from here on are unused; entry 0 does not exist
		atomic<uint32_t> birth; // set to 1 by the thread that initializes the arena
	} hot;

	/* The mutex guards all members below that are not atomic. It also guards the writes of
	 * epoch, views and the index's version, so these writes need no locked instruction. A
	 * thread unlocks the mutex before it calls the registrar. */
	alignas(128) typename Env::mutex mutex;
	operations<Env> making;
	uint32_t deregistering; // the number of entries that are being deregistered
	uint64_t until;		// the deadline of waits for a deregistration (see entry.until)
	uint64_t deregistered;	// the number of deregistered entries
	uint32_t free_entry;	// a list of free entries, linked by entry.link
	uint32_t kernel_words;	// a list of free entries whose words the kernel may still write
	uint32_t hand;		// the entry that sweep() checked last
	atomic<uint64_t> views; // the sum of entry.views in the catalog; each view may have a hint
	atomic<uint32_t> ready; // entries before this index are accessible
	atomic<uint32_t> ready_hint; // hints up to this bucket are accessible
	owners<Env> owner;
	catalog<Env> index; // this member's end and all members below become accessible in pieces
	entry<Env> entries[Env::entries];
	hints<Env> hint;

	/* Returns the time for stamps. If a stamp is wrong, eviction chooses a worse victim. */
	uint64_t now() const
	{
		return hot.epoch.load(std::memory_order_relaxed) << 32 | Env::tick();
	}

	uint32_t index_of(const entry<Env> &e) const { return static_cast<uint32_t>(&e - entries); }

	/* The caller took a reference in generation `taken`. A later child gets EOPNOTSUPP. */
	int hit(uint32_t i, uint32_t taken, mr_cache_ref *ref)
	{
		entry<Env> &e = entries[i];

		e.use(now());
		*ref = {e.registration(), i, taken};
		return generation() == taken ? 0 : EOPNOTSUPP;
	}

	uint32_t generation() const { return hot.generation.load(std::memory_order_acquire); }
	uint32_t high() const { return hot.high.load(std::memory_order_relaxed); }
	uint32_t last_hint() const { return hot.last_hint.load(std::memory_order_relaxed); }

	/* Makes memory for later misses accessible. Call this unlocked, because faults and system
	 * calls deliver signals, and a handler can't use the cache if its thread has the mutex. */
	void prepare()
	{
		const uint32_t last = ready_hint.load(std::memory_order_relaxed);
		const uint64_t soon = views.load(std::memory_order_relaxed);
		const uint32_t more = hint.grow(last, soon + soon / 2);

		(void)is_ready(high() + AHEAD / 2);
		if (more > last && Env::commit(&hint, hint.bytes(more), true))
			ready_hint.store(more, std::memory_order_relaxed);
	}

	/* Makes this entry and all earlier entries accessible. */
	bool is_ready(uint32_t i)
	{
		uint32_t first = ready.load(std::memory_order_relaxed);

		if (i < first || first == Env::entries)
			return i < first;
		if (!make_entries_ready(first))
			return false;
		ready.compare_exchange_strong(first, end_of(first), std::memory_order_relaxed,
					      std::memory_order_relaxed);
		return true;
	}

	/* Call this before other threads see the arena, or in a child. */
	bool prepare_first()
	{
		auto *nodes = static_cast<char *>(index.node_memory(0));

		return Env::commit(this,
				   static_cast<size_t>(nodes - reinterpret_cast<char *>(this)),
				   false) &&
		       make_entries_ready(0) && Env::commit(&hint, hint.bytes(hint.LEAST), false);
	}

	static constexpr uint32_t AHEAD = 256; // entries that become accessible at a time
	static constexpr uint32_t MANY = 1024; // with more entries, small pages slow down look-ups

	static uint32_t end_of(uint32_t first)
	{
		return Env::entries - first < AHEAD ? Env::entries : first + AHEAD;
	}

	bool make_entries_ready(uint32_t first)
	{
		const uint32_t count = end_of(first) - first;
		const bool huge = first >= MANY;

		return Env::commit(&entries[first], count * sizeof(entries[first]), huge) &&
		       Env::commit(index.node_memory(first), index.node_bytes(count), huge);
	}
};

/* The pointer to the arena. The arena is mapped once. A child initializes the arena again. */
template <class Env> class store {
public:
	/* Several threads may call start(). Returns ENOMEM if address space or memory is short. */
	[[nodiscard]] int start(Env &env)
	{
		if (get())
			return 0;

		auto *made = static_cast<arena<Env> *>(env.map(sizeof(arena<Env>)));
		arena<Env> *nothing = nullptr;

		if (!made)
			return ENOMEM;
		if (made->prepare_first()) {
			begin(*made);
			if (p.compare_exchange_strong(nothing, made, std::memory_order_acq_rel,
						      std::memory_order_acquire)) {
				env.published(made, sizeof(*made));
				return 0;
			}
		}
		env.wipe(made, sizeof(*made));
		return get() ? 0 : ENOMEM;
	}

	/* Returns NULL if the cache was not started. */
	arena<Env> *get() const { return p.load(std::memory_order_acquire); }

	/* Returns the arena. In a new child this call first initializes the arena. If a signal
	 * handler has interrupted the cache, the handler does not initialize the arena, because the
	 * interrupted thread will do this. */
	arena<Env> *ready()
	{
		arena<Env> *a = get();
		bool &locks = Env::thread().locks;
		uint32_t nobody = 0;

		if (!a || a->generation() || locks) [[likely]]
			return a;
		locks = true;
		if (a->hot.birth.compare_exchange_strong(nobody, 1, std::memory_order_relaxed,
							 std::memory_order_relaxed) &&
		    a->prepare_first()) // accessible before the fork, so this never fails
			begin(*a);
		locks = false;
		while (!a->generation())
			Env::nap();
		return a;
	}

	/* The newest generation of this process and its ancestors. */
	uint32_t latest() const { return generations.load(std::memory_order_relaxed); }

private:
	/* Initializes an arena of zeros. If a signal handler forks, the child repeats the loop. */
	void begin(arena<Env> &in)
	{
		do {
			in.hot.birth.store(1, std::memory_order_relaxed);
			in.ready.store(in.end_of(0), std::memory_order_relaxed);
			in.ready_hint.store(in.hint.LEAST, std::memory_order_relaxed);
			in.mutex.init();
			in.making.progress.init();
			in.hot.high.store(1, std::memory_order_relaxed);
			in.hot.last_hint.store(in.hint.LEAST, std::memory_order_relaxed);
			in.hot.epoch.store(1, std::memory_order_relaxed);
			/* Pairs with the acquire loads of generation. */
			in.hot.generation.store(
				generations.fetch_add(1, std::memory_order_relaxed) + 1,
				std::memory_order_release);
		} while (!in.hot.birth.load(std::memory_order_relaxed));
	}

	std::atomic<arena<Env> *> p{nullptr};
	std::atomic<uint32_t> generations{0};
};

} // namespace mr_cache

#endif // MR_CACHE_ARENA_H
