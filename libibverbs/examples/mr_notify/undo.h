/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Undoes a change of the whole machine when the object is destroyed, or when SIGHUP,
 * SIGINT or SIGTERM ends the program earlier. Only the thread that handles these signals
 * may use this class.
 */
#ifndef MR_NOTIFY_UNDO_H
#define MR_NOTIFY_UNDO_H

#include <atomic>
#include <string>

namespace mr_notify {

class undo {
public:
	enum class kind { write_text, end_swap, remove_folder };

	/* @path is the file, device or folder. Construct the object before the change. */
	undo(kind what, std::string path, std::string text = "");
	undo(const undo &) = delete;
	undo &operator=(const undo &) = delete;
	~undo();

private:
	/* Async-signal-safe. Ignores errors, because a signal handler can't report them. */
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
