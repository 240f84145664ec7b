// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A thread keeps freed views for reuse. In the end all these views must be freed. The linker
 * redirects malloc() and free() of mr_view.c and of this file to functions here that count the
 * calls.
 *
 * This test fails with each of these mistakes:
 *   A thread that ends frees none of its views, or all but the first.
 *   A view that is freed later is kept.
 *   A kept view has a wrong link, or is handed out twice.
 *   The number of kept views has no limit, or is always 0.
 *   The key stays when the library is unloaded.
 */
#include <atomic>
#include <cstdlib>
#include <dlfcn.h>
#include <future>
#include <pthread.h>
#include <set>
#include <thread>
#include <vector>

#include "catch.h"

extern "C" {
#include "mr_view.h"

void *__real_malloc(size_t size);
void __real_free(void *memory);
}

namespace {

std::atomic<int> made, freed;

void use_view()
{
	mr_view_free(mr_view_alloc());
}

/* A thread frees views at its end, before and after its kept views are freed. */
void end_with_a_view(void *view)
{
	use_view();
	mr_view_free(view);
	use_view();
}

pthread_key_t key()
{
	pthread_key_t made_now;

	REQUIRE(pthread_key_create(&made_now, end_with_a_view) == 0);
	return made_now;
}

} // namespace

extern "C" void *__wrap_malloc(size_t size)
{
	made++;
	return __real_malloc(size);
}

extern "C" void __wrap_free(void *memory)
{
	freed++;
	__real_free(memory);
}

TEST_CASE("the view that was freed is the next one, and keeps its type until then")
{
	std::thread([] {
		auto *const view = static_cast<uint64_t *>(mr_view_alloc());

		view[MR_VIEW_SIZE / 8 - 1] = 1234;
		mr_view_free(view);
		CHECK(view[MR_VIEW_SIZE / 8 - 1] == 1234);
		made = 0;
		CHECK(mr_view_alloc() == view);
		CHECK(made == 0);
		mr_view_free(view);
	}).join();
}

TEST_CASE("no view is handed out twice, and a thread keeps few")
{
	std::thread([] {
		std::vector<void *> views(1000);

		for (int round = 0; round < 3; round++) {
			made = freed = 0;
			for (void *&view : views)
				view = mr_view_alloc();
			CHECK(std::set<void *>(views.begin(), views.end()).size() == 1000);
			for (void *view : views)
				mr_view_free(view);
			CHECK(made >= 1000 - 100);
			CHECK(freed >= 1000 - 100);
			CHECK(freed < 1000 - (round ? 0 : 1));
			if (round)
				CHECK(made < 1000);
		}
	}).join();
}

TEST_CASE("views that threads keep go with them, also those of another thread")
{
	made = freed = 0;
	for (int i = 0; i < 20; i++) {
		std::vector<void *> views(50);

		std::thread([&] {
			use_view();
			for (void *&view : views)
				view = mr_view_alloc();
		}).join();
		std::thread([&] {
			for (void *view : views)
				mr_view_free(view);
		}).join();
	}
	CHECK(made >= 20 * 50);
	CHECK(freed == made);
}

TEST_CASE("other destructors of a thread may use views")
{
	const pthread_key_t earlier = key();

	std::thread(use_view).join();

	const pthread_key_t later = key();

	made = freed = 0;
	std::thread([&] {
		use_view();
		CHECK(pthread_setspecific(earlier, mr_view_alloc()) == 0);
		CHECK(pthread_setspecific(later, mr_view_alloc()) == 0);
	}).join();
	CHECK(made > 0);
	CHECK(freed == made);
	pthread_key_delete(earlier);
	pthread_key_delete(later);
}

TEST_CASE("a thread may end after the library was unloaded")
{
	void *const library = dlopen(VIEWS_MODULE, RTLD_NOW);
	REQUIRE(library);
	const auto free_view =
		reinterpret_cast<void (*)(void *)>(dlsym(library, "mr_view_free_slowly"));
	REQUIRE(free_view);
	std::promise<void> used, unloaded;
	pthread_key_t next_one;
	bool is_theirs = false;

	std::thread thread([&] {
		free_view(__real_malloc(MR_VIEW_SIZE));
		used.set_value();
		unloaded.get_future().wait();
		is_theirs = !pthread_getspecific(next_one);
	});
	used.get_future().wait();
	CHECK(dlclose(library) == 0);
	CHECK_FALSE(dlopen(VIEWS_MODULE, RTLD_NOW | RTLD_NOLOAD));
	CHECK(pthread_key_create(&next_one, nullptr) == 0);
	unloaded.set_value();
	thread.join();
	CHECK(is_theirs);
	pthread_key_delete(next_one);
}
