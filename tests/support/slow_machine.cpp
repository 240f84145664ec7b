// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * If preloaded (LD_PRELOAD), this library makes a test run as on a busy machine. RUN_SLOW names the
 * late part:
 *   child, parent     300 ms after each fork
 *   thread, creator   300 ms after each start of a thread
 *   calls             up to 200 ms before and after each 30th of the system calls below
 */
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdlib>
#include <memory>
#include <random>
#include <string_view>
#include <thread>

using namespace std::chrono_literals;

namespace {

bool late(std::string_view who)
{
	const char *const value = std::getenv("RUN_SLOW");

	return value && who == value;
}

void wait_if_late(std::string_view who)
{
	if (late(who))
		std::this_thread::sleep_for(300ms);
}

void sometimes_wait()
{
	thread_local std::minstd_rand random(std::random_device{}());

	if (late("calls") && random() % 30 == 0)
		std::this_thread::sleep_for(std::chrono::milliseconds(random() % 200));
}

/*
 * The function is looked up once, because a program may call exit() in a signal handler. If the
 * signal came while dlsym() was taking the loader's lock, the handler would wait for this lock
 * forever.
 */
template <auto Ours, class... Args> auto next(const char *name, Args... args)
{
	const int before = errno;
	static const auto function = reinterpret_cast<decltype(Ours)>(dlsym(RTLD_NEXT, name));

	sometimes_wait();
	errno = before;
	const auto result = function(args...);
	const int error = errno;
	sometimes_wait();
	errno = error;
	return result;
}

struct start {
	void *(*function)(void *);
	void *argument;
};

void *run(void *argument)
{
	const std::unique_ptr<start> what(static_cast<start *>(argument));

	wait_if_late("thread");
	return what->function(what->argument);
}

} // namespace

extern "C" {

pid_t fork()
{
	const pid_t pid = next<&fork>("fork");

	wait_if_late(pid ? "parent" : "child");
	return pid;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*function)(void *),
		   void *argument)
{
	auto what = std::make_unique<start>(function, argument);
	const int error = next<&pthread_create>("pthread_create", thread, attr, run,
						static_cast<void *>(what.get()));

	if (!error)
		what.release();
	wait_if_late("creator");
	return error;
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list list;
	va_start(list, request);
	void *const argument = va_arg(list, void *);
	va_end(list);
	return next<&ioctl>("ioctl", fd, request, argument);
}

int munmap(void *addr, size_t length)
{
	return next<&munmap>("munmap", addr, length);
}

int madvise(void *addr, size_t length, int advice)
{
	return next<&madvise>("madvise", addr, length, advice);
}

int mprotect(void *addr, size_t length, int protection)
{
	return next<&mprotect>("mprotect", addr, length, protection);
}

pid_t waitpid(pid_t pid, int *status, int options)
{
	return next<&waitpid>("waitpid", pid, status, options);
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset)
{
	return next<&pwrite>("pwrite", fd, bytes, length, offset);
}

int usleep(useconds_t us)
{
	return next<&usleep>("usleep", us);
}
}
