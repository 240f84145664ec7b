/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Models the word of a registration that can be suspended, and everything that changes it:
 *  - two users, which take and drop a reference, and settle
 *  - the shrinker and the worker
 *  - two events that may have changed the mapping (CLEAR)
 *  - an event that has changed the mapping (UNMAP)
 * Spin tries all interleavings. In umem_notify.c and umem_notify_reclaim.c, a step of this
 * model is one atomic instruction, or runs under the tracker's lock.
 *
 * The guarantee: a thread adds a reference, or settles while it has a reference, and then
 * reads 0 in the kernel's bits. Then the device has access to the pages that the range
 * maps, except during events that have not returned.
 *
 * Each macro BUG_... seeds a mistake that Spin must find.
 */
#define USERS 2
#define TURNS 1

/* The word */
byte users;
bool suspect, suspended, invalid;
#define SAYS_NOTHING (!suspect && !suspended && !invalid)

/*
 * The tracker. Its state equals the kernel's bits, because user space does not set these
 * bits in this model.
 */
bool pages_suspect;
bool taken;
bool pinned = true; /* the device has pages */

/* The mapping now, and at the time of pinning */
byte mapped, pinned_as;
byte changing; /* events that have begun, and have not ended */
byte in_progress; /* the same, as the kernel counts them */

inline take() { atomic { !taken -> taken = true } }

/* Must be true while a thread has a reference and the kernel's bits are 0. */
inline usable() {
	assert(pinned);
	assert(pinned_as == mapped || changing > 0)
}

inline begin() {
	changing++;
	in_progress++
}

inline end() {
	atomic {
		changing--;
#ifdef BUG_FIRST_END
		in_progress = 0
#else
		in_progress--
#endif
	}
}

inline end_suspension() {
	atomic {
		if
		:: suspended ->
			suspended = false;
#ifdef BUG_RESTORED_VALID
			suspect = false
#else
			suspect = pages_suspect
#endif
		:: else
		fi
	}
}

inline restore() {
	if
	:: suspended && pinned -> end_suspension()
	:: suspended && !pinned ->
#ifndef BUG_LATE_CLEAR
#ifdef BUG_IN_PROGRESS
		pages_suspect = false;
#else
		/* An event in progress leaves the state SUSPECT. */
		atomic { pages_suspect = (in_progress > 0) };
#endif
#endif
		atomic { pinned_as = mapped; pinned = true }
#ifdef BUG_LATE_CLEAR
		pages_suspect = false;
#endif
		end_suspension()
	:: else
	fi
}

/* Compares the mapping once. An event during the comparison leaves the state SUSPECT. */
inline look() {
	if
	:: suspect ->
		/* Waits for the end of an event. Until then its pages stay SUSPECT. */
		atomic { in_progress == 0 || !suspect -> mine = suspect && pages_suspect; pages_suspect = pages_suspect && !mine }
		same = (pinned_as == mapped);
		atomic {
			if
			:: !suspended && suspect && mine && !pages_suspect ->
				suspect = false;
				invalid = !same
			:: !suspended && suspect && mine && pages_suspect -> skip
			:: else
			fi
		}
	:: else
	fi
}

/* Revoking and unpinning, by the worker or by settle */
inline retire() {
	if
	:: atomic { pinned && (suspended || (invalid && users == 0)) -> pinned = false }
	:: else
	fi
}

inline settle() {
	take();
	restore();
	look();
	retire();
	taken = false
}

proctype user() {
	byte turn;
	bool mine, same, fine;

	for (turn : 1 .. TURNS) {
		atomic { users++; fine = SAYS_NOTHING; if :: fine -> usable() :: else fi }
		if
		:: !fine && !invalid ->
			settle();
			atomic { fine = SAYS_NOTHING; if :: fine -> usable() :: else fi }
		:: else
		fi;
		if
		/* A transfer may happen at any time while the user has the reference. */
		:: fine -> assert(pinned)
		:: else
		fi;
		users--
	}
}

proctype shrinker() {
	byte turn;

	for (turn : 1 .. TURNS) {
#ifdef BUG_SWAP
		bool idle;
		idle = (users == 0);
		atomic {
			if
			:: idle && !invalid && !suspended -> suspended = true; suspect = false
			:: else
			fi
		}
#else
		atomic {
			if
			:: users == 0 && !invalid && !suspended -> suspended = true; suspect = false
			:: else
			fi
		}
#endif
	}
}

proctype worker() {
	byte turn;
	bool mine, same;

	for (turn : 1 .. TURNS) {
		take();
		look();
		retire();
		taken = false
	}
}

proctype clearing() {
	byte turn;

	for (turn : 1 .. TURNS) {
		atomic {
			begin();
			if
			:: invalid
#ifdef BUG_SUSPENDED_EVENT
			:: suspended
#else
			:: suspended -> pages_suspect = true
#endif
			:: !invalid && !suspended -> pages_suspect = true; suspect = true
			fi
		}
		if
		:: mapped++
		:: skip /* a huge page is split */
		fi;
		end()
	}
}

proctype unmapping() {
	if
	:: atomic {
			begin();
			invalid = true;
			suspect = false;
			suspended = false
		}
		mapped++;
		end()
	:: skip
	fi
}

init {
	byte i;

	atomic {
		for (i : 1 .. USERS) { run user() }
		run shrinker();
		run worker();
		run clearing();
		run clearing();
		run unmapping()
	}
}
