/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * A step that puts back a change of the whole machine: at the end of the object,
 * or when SIGHUP, SIGINT or SIGTERM ends the program before. For one thread: the one
 * that these signals are for.
 */
#ifndef MR_NOTIFY_UNDO_H
#define MR_NOTIFY_UNDO_H

#include <atomic>
#include <string>

namespace mr_notify {

class undo {
public:
	enum class kind { write_text, end_swap, remove_folder };

	/* @path: the file, the device or the folder. Made before the change. */
	undo(kind what, std::string path, std::string text = "");
	undo(const undo &) = delete;
	undo &operator=(const undo &) = delete;
	~undo();

private:
	/* Async-signal-safe. It was possible before; an error can't be told here. */
	void take() const noexcept;
	static void take_all(int signal);
	static bool watch_signals();

	kind what_;
	std::string path_;
	std::string text_;
	std::atomic<const undo *> *place_ = nullptr;
};

} // namespace mr_notify

#endif
