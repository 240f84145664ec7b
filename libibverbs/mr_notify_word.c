// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * ibv_alloc_notify_word() returns words that share pages, because the kernel pins the page of
 * each armed word.
 *
 * A chunk is one mapping. It begins with a page for the header, and the pages of the words follow.
 * fork() copies the header and wipes the words, so in a child the words of its parent are 0 and
 * stay allocated. Chunks are never unmapped.
 *
 * There is no lock, because a child of fork() or a signal handler may allocate and free words.
 * Allocating a word sets a bit of @used, and freeing the word clears the bit. Each change is one
 * atomic operation.
 */
#include <config.h>

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#define BITS (8 * sizeof(unsigned long))
#define WORDS 4096
#define WORDS_SIZE (WORDS * sizeof(uint64_t))

struct chunk {
	struct chunk *behind;
	uint64_t *words;
	unsigned int hint; /* the element of @used to look at first */
	unsigned long used[WORDS / BITS];
};

static struct chunk *first;

/* The header has its own page, because fork() wipes whole pages. */
static struct chunk *create_chunk(void)
{
	const size_t page = sysconf(_SC_PAGESIZE);
	const size_t head = (sizeof(struct chunk) + page - 1) & ~(page - 1);
	const size_t size = (WORDS_SIZE + page - 1) & ~(page - 1);
	char *const map = mmap(NULL, head + size, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct chunk *chunk;

	if (map == MAP_FAILED)
		return NULL;
	if (madvise(map + head, size, MADV_WIPEONFORK)) {
		munmap(map, head + size);
		return NULL;
	}
	chunk = (struct chunk *)map;
	chunk->words = (uint64_t *)(map + head);
	return chunk;
}

/* Returns NULL if all words are in use. */
static uint64_t *take_word(struct chunk *chunk)
{
	const unsigned int elements = WORDS / BITS;
	const unsigned int hint = __atomic_load_n(&chunk->hint, __ATOMIC_RELAXED);

	for (unsigned int i = 0; i < elements; i++) {
		const unsigned int at = (hint + i) % elements;
		unsigned long *const used = &chunk->used[at];
		unsigned long seen = __atomic_load_n(used, __ATOMIC_RELAXED);

		while (~seen) {
			const unsigned long bit = ~seen & (seen + 1);
			uint64_t *word;

			if (!__atomic_compare_exchange_n(used, &seen, seen | bit, false,
							 __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
				continue;
			__atomic_store_n(&chunk->hint, at, __ATOMIC_RELAXED);
			word = &chunk->words[at * BITS + __builtin_ctzl(bit)];
			*word = 0;
			return word;
		}
	}
	return NULL;
}

uint64_t *ibv_alloc_notify_word(struct ibv_context *context)
{
	struct chunk *seen = __atomic_load_n(&first, __ATOMIC_ACQUIRE);
	struct chunk *chunk;
	uint64_t *word;

	if (!context) {
		errno = EINVAL;
		return NULL;
	}
	for (chunk = seen; chunk; chunk = chunk->behind) {
		word = take_word(chunk);
		if (word)
			return word;
	}
	chunk = create_chunk();
	if (!chunk) {
		errno = ENOMEM;
		return NULL;
	}
	word = take_word(chunk);
	chunk->behind = seen;
	while (!__atomic_compare_exchange_n(&first, &chunk->behind, chunk, false,
					    __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
	return word;
}

void ibv_free_notify_word(uint64_t *word)
{
	struct chunk *chunk = __atomic_load_n(&first, __ATOMIC_ACQUIRE);
	size_t index;

	if (!word)
		return;
	while (chunk && (word < chunk->words || word >= chunk->words + WORDS))
		chunk = chunk->behind;
	if (!chunk)
		return;
	index = word - chunk->words;
	__atomic_fetch_and(&chunk->used[index / BITS], ~(1UL << index % BITS), __ATOMIC_RELEASE);
	__atomic_store_n(&chunk->hint, index / BITS, __ATOMIC_RELAXED);
}
