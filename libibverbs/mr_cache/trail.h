// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * What is used after what. Programs use their buffers in the same order again and again, so
 * each entry remembers which one the same thread used AHEAD hits later, and a hit has the CPU
 * fetch what the hit of that one will need: its bucket of hints, its entry, its registration.
 * Without that a hit among very many waits for memory three times, one after the other, as
 * each of these lines tells where the next one is.
 *
 * Only where they are too many for a cache near the CPU (Env::trail_bits), and only after an
 * order has been seen twice: a random one costs a store, and fetches nothing. Nothing is
 * read by what is remembered, so it may be of another life of the entry, or of another thread.
 */
#ifndef MR_CACHE_TRAIL_H
#define MR_CACHE_TRAIL_H

#include "arena.h"

namespace mr_cache {

template <class Env> class trail {
public:
	static constexpr uint32_t AHEAD = Env::trail_length;

	/* Else a use is noted in the entry alone. */
	static bool is_for(const arena<Env> &a) { return a.hint_bits() >= Env::trail_bits; }

	/*
	 * Of a hit, found by the wish's hash: notes the use. Returns the registration, so that
	 * what is done for it beside few others ends with a load, and else with a jump.
	 */
	[[gnu::always_inline]] static void *use(arena<Env> &a, uint32_t i, const wish &want)
	{
		const uint64_t now = a.now();

		a.entries[i].use(now);
		if (is_for(a)) [[unlikely]]
			return follow(a, i, a.hint.hash_of(want), now);
		return a.entries[i].registration();
	}

private:
	[[gnu::noinline]] static void *follow(arena<Env> &a, uint32_t i, uint64_t hash,
					      uint64_t now)
	{
		entry<Env> &e = a.entries[i];
		follower next;

		if (e.is_followed(&next)) {
			/* What it shows is in the line where it begins, or the next one. */
			Env::fetch(next.mr_line);
			Env::fetch(next.mr_line + 64);
			fetch(&a.entries[next.index]);
			fetch(a.hint.bucket_of(next.hash, a.hint_bits()));
		}

		uint32_t &last = used(now % AHEAD);

		a.entries[last].precede(i, hash, e.registration());
		last = i;
		return e.registration();
	}

	/* The entries that this thread used last: of any cache of this kind, before a fork, too. */
	static uint32_t &used(uint64_t hit)
	{
		static constinit thread_local uint32_t entries[AHEAD] [[gnu::tls_model(
			"initial-exec")]] = {};

		return entries[hit];
	}

	static void fetch(const void *line) { Env::fetch(reinterpret_cast<uintptr_t>(line)); }
};

} // namespace mr_cache

#endif // MR_CACHE_TRAIL_H
