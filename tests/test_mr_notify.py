# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""
Test module for MR notification. It calls the verbs through pyverbs, without and with RC traffic.
These tests check the interface. Other tests check how each event of the kernel changes the word.
"""
import ctypes
import errno
import functools
import mmap
import os
import re
import select
import subprocess
import sys
import threading
import time
import unittest

from tests.base import PyverbsAPITestCase, RCResources, RDMATestCase
from pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from pyverbs.device import translate_device_caps
from pyverbs.qp import QPAttr
from pyverbs.pd import PD
from pyverbs.mr import MR, NotifiedMR, NotifyWord
from pyverbs.wr import SGE, RecvWR, SendWR
import pyverbs.mem_alloc as mem
import pyverbs.libibverbs_enums as e
import tests.utils as u

PAGE = mmap.PAGESIZE
LENGTH = 16 * PAGE
ACCESS = e.IBV_ACCESS_LOCAL_WRITE
REMOTE = ACCESS | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE
MAP_FIXED = 0x10
MAP_FAILED = ctypes.c_void_p(-1).value

# At exit the interpreter clears modules that it can't free. It clears pyverbs.mr before the
# program's own module.
LAST_MR_CHILD = """
import ctypes, sys
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.mr import MR
import pyverbs.libibverbs_enums as e
class Session:
    def __init__(self):
        self.ctx = Context(name=sys.argv[1])
        self.mr = MR(PD(self.ctx), 4096, e.IBV_ACCESS_LOCAL_WRITE)
        self.mr.reg_notify()
    def __del__(self):
        self.ctx.close()
session = Session()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(sys.modules['__main__']))
"""

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                      ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def run_child(program, *args, env=None):
    """
    Run a program in another Python process.
    :return: All output of the program. If the program failed, also its status
    """
    done = subprocess.run([sys.executable, '-c', program, *args], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False,
                          env={**(env or os.environ), 'PYTHONPATH': os.pathsep.join(sys.path)})
    return done.stdout + (f'ended with {done.returncode}' if done.returncode else '')


class Closing:
    """
    A number whose conversion closes an object.
    """
    def __init__(self, what, number=0):
        self.what = what
        self.number = number

    def __index__(self):
        self.what.close()
        return int(self.number)

    __int__ = __index__

    def __and__(self, other):
        return self.__index__() & other


def has_mr_notify(ctx):
    return bool(ctx.query_device().device_cap_flags & e.IBV_DEVICE_MR_NOTIFY)


def requires_mr_notify(func):
    """
    Skip if the device does not have the capability.
    """
    @functools.wraps(func)
    def inner(instance):
        if not has_mr_notify(instance.ctx):
            raise unittest.SkipTest('MR notification is not supported by the device or kernel')
        return func(instance)
    return inner


def requires_mr_revoke(func):
    """
    Skip if the device can't revoke an MR.
    """
    @functools.wraps(func)
    def inner(instance):
        caps = instance.ctx.query_device_ex().device_cap_flags_ex
        if not caps & e._IBV_DEVICE_MR_REVOKE:
            raise unittest.SkipTest('Revoking MRs is not supported by the device or kernel')
        return func(instance)
    return inner


class MRNotifyTestCase(PyverbsAPITestCase):
    """
    This class maps memory itself, without an allocator, and compares errors by number.
    """
    def setUp(self):
        super().setUp()
        self.mapped = {}
        self.pd = PD(self.ctx)

    def tearDown(self):
        for addr, length in self.mapped.items():
            libc.munmap(addr, length)
        super().tearDown()

    def map(self, length=LENGTH):
        addr = libc.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE,
                         mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        self.assertNotEqual(addr, MAP_FAILED)
        ctypes.memset(addr, 0x5a, length)
        self.mapped[addr] = length
        return addr

    def unmap(self, addr, length=LENGTH):
        self.assertEqual(libc.munmap(addr, length), 0)

    def reg(self, access=ACCESS):
        addr = self.map()
        return MR(self.pd, LENGTH, access, address=addr), addr

    def assert_errno(self, number, func, *args):
        with self.assertRaises(PyverbsRDMAError) as caught:
            func(*args)
        self.assertEqual(errno.errorcode.get(caught.exception.error_code), errno.errorcode[number])


class MallInfo(ctypes.Structure):
    """
    The result of mallinfo2().
    """
    _fields_ = [(name, ctypes.c_size_t) for name in (
        'arena', 'ordblks', 'smblks', 'hblks', 'hblkhd', 'usmblks', 'fsmblks', 'uordblks',
        'fordblks', 'keepcost')]


class WRTest(unittest.TestCase):
    """
    Tests of work requests that need no device.
    """
    def test_wr_frees_elements(self):
        """
        A work request frees its array of elements.
        """
        libc.mallinfo2.restype = MallInfo

        def allocated():
            for _ in range(1000):
                elements = [SGE(0, 8, 0) for _ in range(16)]
                RecvWR(sg=elements, num_sge=16)
                SendWR(sg=elements, num_sge=16)
            return libc.mallinfo2().uordblks

        before = allocated()
        self.assertLess(allocated() - before, 100 << 10)


class MRNotifyTest(MRNotifyTestCase):
    """
    The verbs on a device that has them.
    """
    @requires_mr_notify
    def test_mr_notify_intact(self):
        """
        A registration without events stays valid, and deregisters normally.
        """
        mr, _ = self.reg()
        mr.reg_notify()
        self.assertEqual(mr.notify_word, 0)
        self.assertEqual(mr.settle_notify(), 0)
        mr.unreg_notify()
        self.assertEqual(mr.notify_word, 0)
        mr.close()

    @requires_mr_notify
    def test_mr_notify_munmap(self):
        """
        The word is INVALID when munmap() returns, and stays INVALID.
        """
        mr, addr = self.reg()
        mr.reg_notify()
        self.unmap(addr)
        self.assertEqual(mr.notify_word, e.IBV_MR_NOTIFY_INVALID)
        self.assertEqual(mr.settle_notify(), e.IBV_MR_NOTIFY_INVALID)
        mr.unreg_notify()
        self.assertEqual(mr.notify_word, e.IBV_MR_NOTIFY_INVALID)
        mr.close()

    @requires_mr_notify
    def test_mr_notify_munmap_part(self):
        """
        Unmapping any page of the range makes the word INVALID. Unmapping a page outside of the
        range has no effect.
        """
        for page in (0, 7, 15):
            mr, addr = self.reg()
            mr.reg_notify()
            self.unmap(addr + page * PAGE, PAGE)
            self.assertEqual(mr.notify_word, e.IBV_MR_NOTIFY_INVALID, f'page {page}')
            mr.close()
        addr = self.map(LENGTH + 2 * PAGE)
        mr = MR(self.pd, LENGTH, ACCESS, address=addr + PAGE)
        mr.reg_notify()
        self.unmap(addr, PAGE)
        self.unmap(addr + PAGE + LENGTH, PAGE)
        self.assertEqual(mr.settle_notify(), 0)
        mr.close()

    @requires_mr_notify
    def test_mr_notify_other_thread(self):
        """
        Another thread may unmap the memory.
        """
        mr, addr = self.reg()
        mr.reg_notify()
        thread = threading.Thread(target=self.unmap, args=(addr,))
        thread.start()
        thread.join()
        self.assertEqual(mr.notify_word, e.IBV_MR_NOTIFY_INVALID)
        mr.close()

    @requires_mr_notify
    def test_mr_notify_already_stale(self):
        """
        If the memory was replaced before reg_notify(), the call succeeds, and the word is INVALID.
        """
        mr, addr = self.reg()
        self.unmap(addr)
        mr.reg_notify()
        self.assertEqual(mr.notify_word, e.IBV_MR_NOTIFY_INVALID)
        mr.close()

    @requires_mr_notify
    def test_mr_notify_dontneed(self):
        """
        MADV_DONTNEED makes the word non-zero. Settling finds that the pages are gone.
        """
        mr, addr = self.reg()
        mr.reg_notify()
        self.assertEqual(libc.madvise(addr, LENGTH, mmap.MADV_DONTNEED), 0)
        self.assertNotEqual(mr.notify_word, 0)
        self.assertEqual(mr.settle_notify(), e.IBV_MR_NOTIFY_INVALID)
        mr.close()

    @requires_mr_notify
    def test_mr_notify_fork(self):
        """
        A child that writes and exits does not invalidate its parent's registration.
        """
        mr, addr = self.reg()
        mr.reg_notify()
        pid = os.fork()
        if not pid:
            ctypes.memset(addr, 1, LENGTH)
            os._exit(0)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(mr.settle_notify(), 0)
        mr.close()

    @requires_mr_notify
    def test_mr_notify_application_bits(self):
        """
        Bits 8-63 belong to the application. Arming and the kernel do not change them.
        """
        mr, addr = self.reg()
        mr.reg_notify(0x1234 << 8)
        self.assertEqual(mr.notify_word, 0x1234 << 8)
        mr.notify_word = 0xfedcba98765432 << 8
        self.unmap(addr)
        self.assertEqual(mr.notify_word, 0xfedcba98765432 << 8 | e.IBV_MR_NOTIFY_INVALID)
        mr.notify_word = 0
        self.assertEqual(mr.notify_word, e.IBV_MR_NOTIFY_INVALID)
        with self.assertRaises(PyverbsUserError):
            mr.notify_word = 1
        mr.close()

    @requires_mr_notify
    def test_mr_notify_add(self):
        """
        References can be taken and dropped after the kernel has set a bit. add_notify() returns the
        word before the addition.
        """
        mr, addr = self.reg()
        mr.reg_notify()
        self.assertEqual(mr.add_notify(0x100), 0)
        self.assertEqual(mr.add_notify(0x200), 0x100)
        self.unmap(addr)
        self.assertEqual(mr.add_notify(-0x100), 0x300 | e.IBV_MR_NOTIFY_INVALID)
        self.assertEqual(mr.add_notify(-0x200), 0x200 | e.IBV_MR_NOTIFY_INVALID)
        self.assertEqual(mr.notify_word, e.IBV_MR_NOTIFY_INVALID)
        mr.add_notify(-0x100)
        self.assertEqual(mr.notify_word, 2 ** 64 - 0x100 | e.IBV_MR_NOTIFY_INVALID)
        mr.add_notify(0x100)
        for delta, error in ((1, PyverbsUserError), (-1, PyverbsUserError),
                             (0x180, PyverbsUserError), (1 << 63, OverflowError),
                             (256.0, TypeError), ('', TypeError), (None, TypeError)):
            self.assertRaises(error, mr.add_notify, delta)
        self.assertEqual(mr.notify_word, e.IBV_MR_NOTIFY_INVALID)
        mr.close()
        self.assertRaises(PyverbsUserError, mr.add_notify, 0x100)

    @requires_mr_notify
    def test_mr_notify_closed_by_argument(self):
        """
        Converting the number closes the MR, and this frees the word. The call raises an error.
        """
        for func in (MR.add_notify, MR.notify_word.__set__):
            mr, _ = self.reg()
            mr.reg_notify()
            self.assertRaises(PyverbsUserError, func, mr, Closing(mr, 0x100))

    @requires_mr_notify
    def test_mr_notify_add_threads(self):
        """
        Many threads take references. No reference is lost, and all threads see the kernel's bits.
        """
        def take(count):
            for _ in range(count):
                mr.add_notify(0x300)
                mr.add_notify(-0x200)

        mr, addr = self.reg()
        mr.reg_notify()
        threads = [threading.Thread(target=take, args=(5000,)) for _ in range(4)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        for thread in threads:
            thread.start()
        self.unmap(addr)
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
        self.assertEqual(mr.notify_word, 4 * 5000 * 0x100 | e.IBV_MR_NOTIFY_INVALID)
        mr.close()

    @requires_mr_notify
    def test_mr_notify_after_unreg(self):
        """
        After unreg_notify() the kernel does not change the word, and another word can be armed.
        """
        mr, addr = self.reg()
        mr.reg_notify()
        mr.unreg_notify()
        mr.reg_notify(1 << 8)
        self.assertEqual(mr.notify_word, 1 << 8)
        mr.unreg_notify()
        self.unmap(addr)
        self.assertEqual(mr.notify_word, 1 << 8)
        mr.close()

    @requires_mr_notify
    def test_mr_notify_busy(self):
        """
        A registration has one word. A second word is refused, and the first word keeps working.
        """
        mr, addr = self.reg()
        mr.reg_notify()
        self.assert_errno(errno.EBUSY, mr.reg_notify)
        self.unmap(addr)
        self.assertEqual(mr.notify_word, e.IBV_MR_NOTIFY_INVALID)
        mr.close()

    @requires_mr_notify
    def test_mr_notify_not_registered(self):
        """
        Without a word, unreg_notify() and settle_notify() fail with EINVAL, also if they are called
        again.
        """
        mr, _ = self.reg()
        self.assert_errno(errno.EINVAL, mr.unreg_notify)
        self.assert_errno(errno.EINVAL, mr.settle_notify)
        mr.reg_notify()
        mr.unreg_notify()
        self.assert_errno(errno.EINVAL, mr.unreg_notify)
        self.assert_errno(errno.EINVAL, mr.settle_notify)
        mr.close()

    @requires_mr_notify
    def test_mr_notify_imported(self):
        """
        An imported MR can't be armed, because it has no memory of this process.
        """
        mr, _ = self.reg()
        try:
            imported = MR(self.pd, handle=mr.handle)
        except PyverbsRDMAError as ex:
            if ex.error_code == errno.EOPNOTSUPP:
                raise unittest.SkipTest('Importing an MR is not supported')
            raise ex
        self.assert_errno(errno.EOPNOTSUPP, imported.reg_notify)
        self.assert_errno(errno.EOPNOTSUPP, imported.settle_notify)
        self.assert_errno(errno.EOPNOTSUPP, imported.unreg_notify)
        imported.unimport()
        mr.close()

    @requires_mr_notify
    def test_mr_notify_close_registered(self):
        """
        Closing an MR, its PD or its context ends the notification first.
        """
        self.reg()[0].reg_notify()
        mr, addr = self.reg()
        mr.reg_notify()
        mr.close()
        self.unmap(addr)
        mr, _ = self.reg()
        mr.reg_notify()
        self.pd.close()
        with self.assertRaises(PyverbsUserError):
            mr.notify_word
        with self.assertRaises(PyverbsUserError):
            mr.reg_notify()

    @requires_mr_notify
    def test_mr_notify_interpreter_ends(self):
        """
        An MR that outlives the module pyverbs at exit is closed once, without a message.
        """
        self.assertEqual(run_child(LAST_MR_CHILD, self.dev_name), '')


class LookedAt:
    """
    An MR whose memory is dropped during one check of the guide. The number chooses the moment:
    before the program reads the word, or between settling and reading the word.
    """
    def __init__(self, mr, number, drop):
        self.mr = mr
        self.left = number
        self.drop = drop

    def look(self):
        self.left -= 1
        if self.left == 0:
            self.drop()
        return self.mr.notify_word

    @property
    def notify_word(self):
        return self.look()

    def settle_notify(self):
        self.mr.settle_notify()
        return self.look()


class MRNotifyGuideTest(MRNotifyTestCase):
    """
    The checks of the user guide before a registration is used again.
    """
    GUIDE = os.path.join(os.path.dirname(os.path.realpath(__file__)),
                         '../Documentation/user-guide.md')

    def setUp(self):
        if not os.path.exists(self.GUIDE):
            raise unittest.SkipTest('The guide is not there')
        super().setUp()

    def looks(self):
        """
        :return: The guide's code, which appends MRs that must be registered again to "again"
        """
        with open(self.GUIDE, encoding='utf-8') as guide:
            found = re.search(r'^mr\.reg_notify\(\)\n\.\.\.\n(.*?)^```', guide.read(),
                              re.MULTILINE | re.DOTALL)
        return found.group(1).replace('...', 'again.append(mr)')

    def map_shared(self):
        """
        Map shared memory. Pages of this memory that are dropped can come back. So its MR is SUSPECT
        first, and intact later.
        """
        addr = mem.mmap(length=LENGTH, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        ctypes.memset(addr, 0x5a, LENGTH)
        self.mapped[addr] = LENGTH
        return addr

    def dropped(self, addr, advice):
        self.assertEqual(libc.madvise(addr, LENGTH, advice), 0)

    @requires_mr_notify
    def test_mr_notify_guide(self):
        """
        An MR whose memory was dropped before the last check is not used again. An MR that is
        intact, or only suspect, is used again.
        """
        code = self.looks()
        for suspect in (False, True):
            for number in range(5):
                addr = self.map_shared()
                mr = MR(self.pd, LENGTH, ACCESS, address=addr)
                mr.reg_notify()
                if suspect:
                    # If the kernel has already found the pages intact, the word is 0 again
                    while not mr.notify_word:
                        self.dropped(addr, mmap.MADV_DONTNEED)
                    self.assertFalse(mr.notify_word & e.IBV_MR_NOTIFY_INVALID)
                seen = LookedAt(mr, number, lambda: self.dropped(addr, mmap.MADV_REMOVE))
                again = []
                exec(code, {'mr': seen, 'e': e, 'again': again})
                in_time = number > 0 and seen.left <= 0
                self.assertEqual(bool(again), in_time, f'look {number}, suspect: {suspect}')
                mr.close()


def drop_caches():
    """
    Ask the kernel to free all memory that it can free, including pages of idle registrations.
    """
    try:
        with open('/proc/sys/vm/drop_caches', 'w', encoding='ascii') as file:
            file.write('2')
    except OSError as error:
        raise unittest.SkipTest(f'caches can not be dropped: {error.strerror}')


class MRNotifyReclaimTest(MRNotifyTestCase):
    """
    Registrations that the kernel may suspend while they are idle.
    """
    IN_USE = 0xff00

    def setUp(self):
        super().setUp()
        if not self.attr_ex.device_cap_flags_ex & e._IBV_DEVICE_MR_RECLAIM:
            raise unittest.SkipTest('The device can not give registrations other pages')

    def test_mr_notify_reclaim_idle(self):
        """
        An idle registration is suspended, and settling restores it under the same keys.
        """
        mr, _ = self.reg()
        keys = mr.lkey, mr.rkey
        mr.reg_notify(in_use=self.IN_USE)
        self.assertEqual(mr.notify_word, 0)
        drop_caches()
        self.assertEqual(mr.notify_word, e.IBV_MR_NOTIFY_SUSPENDED)
        self.assertEqual(mr.settle_notify(), 0)
        self.assertEqual((mr.lkey, mr.rkey), keys)
        mr.close()

    def test_mr_notify_reclaim_in_use(self):
        """
        A registration in use stays pinned.
        """
        mr, _ = self.reg()
        mr.reg_notify(0x100, in_use=self.IN_USE)
        drop_caches()
        self.assertEqual(mr.notify_word, 0x100)
        mr.close()

    def test_mr_notify_reclaim_unmapped(self):
        """
        An MR that is unmapped while it is suspended is invalid.
        """
        mr, addr = self.reg()
        mr.reg_notify(in_use=self.IN_USE)
        drop_caches()
        self.unmap(addr)
        self.assertEqual(mr.notify_word, e.IBV_MR_NOTIFY_INVALID)
        self.assertEqual(mr.settle_notify(), e.IBV_MR_NOTIFY_INVALID)
        mr.close()

    def test_mr_notify_reclaim_bad_mask(self):
        """
        The mask must have bits, and none of the kernel's bits.
        """
        mr, _ = self.reg()
        for mask in (0, 1, 0x180):
            self.assert_errno(errno.EINVAL, mr.reg_notify, 0, mask)
        mr.close()

    def test_mr_notify_suspend(self):
        """
        A verb suspends a registration that is not in use.
        """
        mr, _ = self.reg()
        mr.reg_notify(0x100, in_use=self.IN_USE)
        self.assert_errno(errno.EBUSY, mr.suspend_notify)
        mr.add_notify(-0x100)
        mr.suspend_notify()
        self.assertEqual(mr.notify_word, e.IBV_MR_NOTIFY_SUSPENDED)
        mr.suspend_notify()
        self.assertEqual(mr.settle_notify(), 0)
        mr.close()
        mr, _ = self.reg()
        self.assert_errno(errno.EINVAL, mr.suspend_notify)
        mr.reg_notify()
        self.assert_errno(errno.EINVAL, mr.suspend_notify)
        mr.close()

    def test_mr_notify_idle_time(self):
        """
        A registration has its own idle time.
        """
        mr = NotifiedMR(self.pd, LENGTH, ACCESS, in_use=self.IN_USE, idle_ms=20)
        other = NotifiedMR(self.pd, LENGTH, ACCESS, in_use=self.IN_USE)
        while not mr.notify_word:
            time.sleep(0.001)
        self.assertEqual(mr.notify_word, e.IBV_MR_NOTIFY_SUSPENDED)
        self.assertEqual(other.notify_word, 0)
        mr.close()
        other.close()


class MRNotifyChangesTest(MRNotifyTestCase):
    """
    Registering and arming in one call; the counter and the eventfd for words that become INVALID.
    """
    def notified(self, **kwargs):
        addr = self.map()
        return NotifiedMR(self.pd, LENGTH, ACCESS, address=addr, **kwargs), addr

    @requires_mr_notify
    def test_notified_mr(self):
        """
        The MR has its word from the start. The buffer is the caller's, or the MR allocates it.
        """
        mr, addr = self.notified(value=0x500)
        self.assertEqual(mr.buf, addr)
        self.assertEqual(mr.notify_word, 0x500)
        self.assert_errno(errno.EBUSY, mr.reg_notify)
        self.assertEqual(mr.settle_notify(), 0x500)
        self.unmap(addr)
        self.assertEqual(mr.notify_word, 0x500 | e.IBV_MR_NOTIFY_INVALID)
        mr.close()
        self.assertRaises(PyverbsUserError, lambda: mr.notify_word)
        own = NotifiedMR(self.pd, LENGTH, ACCESS, iova=0x10000)
        own.write('abc', 3)
        self.assertEqual(own.read(3, 0), b'abc')
        self.assertEqual(own.notify_word, 0)
        own.close()

    @requires_mr_notify
    def test_changes(self):
        """
        MRs share a counter, and keep a reference to it.
        """
        changes = NotifyWord(self.ctx)
        one, addr = self.notified(changes=changes)
        other, other_addr = self.reg()
        other.reg_notify(changes=changes)
        self.assertEqual(changes.value, 0)
        self.unmap(addr)
        self.assertEqual(changes.value, 1)
        self.unmap(other_addr)
        self.assertEqual(changes.value, 2)
        one.close()
        del changes
        other.close()

    @requires_mr_notify
    def test_event_fd(self):
        """
        The eventfd wakes a program that waits by select().
        """
        event_fd = libc.eventfd(0, 0)
        mr, addr = self.notified(event_fd=event_fd)
        self.assertEqual(select.select([event_fd], [], [], 0)[0], [])
        self.unmap(addr)
        self.assertEqual(select.select([event_fd], [], [], 60)[0], [event_fd])
        self.assertEqual(int.from_bytes(os.read(event_fd, 8), sys.byteorder), 1)
        mr.close()
        os.close(event_fd)

    @requires_mr_notify
    def test_refused(self):
        """
        A refused call leaves no registration, and does not change the MR.
        """
        with open(os.devnull, 'rb') as null:
            for number, kwargs in ((errno.EINVAL, {'in_use': 0}), (errno.EINVAL, {'idle_ms': 50}),
                                   (errno.EINVAL, {'event_fd': null.fileno()}),
                                   (errno.EBADF, {'event_fd': -1})):
                mr, _ = self.reg()
                self.assert_errno(number, functools.partial(mr.reg_notify, **kwargs))
                with self.assertRaises(PyverbsRDMAError) as caught:
                    self.notified(**kwargs)
                self.assertEqual(caught.exception.error_code, number)
                mr.reg_notify()
                mr.close()
        for kwargs in ({'changes': 1}, {'in_use': ''}, {'event_fd': ''}, {'idle_ms': ''}):
            self.assertRaises(TypeError, self.notified, **kwargs)
        for kwargs in ({'in_use': -1}, {'event_fd': 1 << 40}, {'idle_ms': 1 << 32}):
            self.assertRaises(OverflowError, self.notified, **kwargs)
        self.assertRaises(PyverbsUserError, self.notified, value=1)
        self.pd.close()
        self.assertRaises(PyverbsUserError, self.notified)

    def test_word_of_a_closed_context(self):
        """
        A word needs an open device.
        """
        self.ctx.close()
        self.assertRaises(PyverbsUserError, NotifyWord, self.ctx)


class NotifyRC(RCResources):
    """
    An RC end with a notified MR, on a mapping that can be replaced.
    """
    def __init__(self, **kwargs):
        super().__init__(msg_size=PAGE, **kwargs)

    @requires_mr_notify
    def create_mr(self):
        self.addr = mem.mmap(length=self.msg_size)
        self.reg_mr()

    def reg_mr(self):
        self.mr = MR(self.pd, self.msg_size, REMOTE, address=self.addr)
        self.mr.reg_notify()

    def map_again(self):
        """
        Map other pages at the same address, as an allocator may do.
        """
        mem.munmap(self.addr, self.msg_size)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
        mem.mmap(self.addr, self.msg_size, flags=flags)

    def create_qp_attr(self):
        attr = QPAttr(port_num=self.ib_port)
        attr.qp_access_flags = REMOTE
        return attr


class RevokeRC(NotifyRC):
    """
    An RC end on a device that revokes.
    """
    @requires_mr_revoke
    def create_mr(self):
        super().create_mr()


class MRTrafficTestCase(RDMATestCase):
    """
    Two ends of the classes above.
    """
    def tearDown(self):
        for end in (self.client, self.server):
            if end:
                end.mr.close()
                mem.munmap(end.addr, end.msg_size)
        super().tearDown()

    def refused(self, send_op, status):
        with self.assertRaisesRegex(PyverbsRDMAError, f'Completion status is {status}'):
            u.rdma_traffic(**self.traffic_args, send_op=send_op)


class MRNotifyTrafficTest(MRTrafficTestCase):
    """
    Messages over notified MRs.
    """
    def test_mr_notify_rc_traffic(self):
        """
        Sends and RDMA work on notified MRs, and do not change the words.
        """
        self.create_players(NotifyRC)
        u.traffic(**self.traffic_args)
        u.rdma_traffic(**self.traffic_args, send_op=e.IBV_WR_RDMA_WRITE)
        u.rdma_traffic(**self.traffic_args, send_op=e.IBV_WR_RDMA_READ)
        for end in (self.client, self.server):
            self.assertEqual(end.mr.notify_word, 0)
            self.assertEqual(end.mr.settle_notify(), 0)
            end.mr.unreg_notify()
        u.traffic(**self.traffic_args)

    def test_mr_notify_rc_again(self):
        """
        After other pages were mapped at the same address, both words are INVALID. With new
        registrations the new bytes arrive.
        """
        self.create_players(NotifyRC)
        u.rdma_traffic(**self.traffic_args, send_op=e.IBV_WR_RDMA_WRITE)
        for end in (self.client, self.server):
            end.map_again()
            self.assertEqual(end.mr.notify_word, e.IBV_MR_NOTIFY_INVALID)
            end.mr.close()
            end.reg_mr()
            self.assertEqual(end.mr.notify_word, 0)
        self.sync_remote_attr()
        u.rdma_traffic(**self.traffic_args, send_op=e.IBV_WR_RDMA_WRITE)
        u.traffic(**self.traffic_args)

    def test_mr_notify_rc_revoked_write(self):
        """
        A peer's write to an INVALID registration is refused and changes nothing.
        """
        self.create_players(RevokeRC)
        self.server.map_again()
        self.assertEqual(self.server.mr.settle_notify(), e.IBV_MR_NOTIFY_INVALID)
        self.refused(e.IBV_WR_RDMA_WRITE, 'Remote access error')
        self.assertEqual(self.server.mem_read(PAGE), b's' * PAGE)

    def test_mr_notify_rc_revoked_read(self):
        """
        A peer's read of an INVALID registration is refused.
        """
        self.create_players(RevokeRC)
        self.server.map_again()
        self.assertEqual(self.server.mr.settle_notify(), e.IBV_MR_NOTIFY_INVALID)
        self.refused(e.IBV_WR_RDMA_READ, 'Remote access error')

    def test_mr_notify_rc_revoked_local(self):
        """
        A send from an INVALID registration fails.
        """
        self.create_players(RevokeRC)
        self.client.map_again()
        self.assertEqual(self.client.mr.settle_notify(), e.IBV_MR_NOTIFY_INVALID)
        self.refused(e.IBV_WR_RDMA_WRITE, 'Local protection error')
        self.assertEqual(self.server.mem_read(PAGE), b's' * PAGE)


class MRNotifyInterfaceTest(MRNotifyTestCase):
    """
    Rules for every device and kernel.
    """
    def test_mr_notify_closed_by_value(self):
        """
        If converting the word's first value closes the MR, the call raises an error.
        """
        for arguments in (lambda mr: (Closing(mr),), lambda mr: (0, Closing(mr, 0x100))):
            mr, _ = self.reg()
            self.assertRaises(PyverbsUserError, mr.reg_notify, *arguments(mr))

    def test_mr_notify_unsupported(self):
        """
        Without the capability each method fails with EOPNOTSUPP, and the MR still works.
        """
        if has_mr_notify(self.ctx):
            raise unittest.SkipTest('The device supports MR notification')
        mr, _ = self.reg()
        for func in (mr.reg_notify, mr.unreg_notify, mr.settle_notify, mr.suspend_notify,
                     functools.partial(mr.reg_notify, changes=NotifyWord(self.ctx)),
                     functools.partial(NotifiedMR, self.pd, LENGTH, ACCESS)):
            self.assert_errno(errno.EOPNOTSUPP, func)
        mr.close()

    def test_mr_notify_word_access(self):
        """
        The MR has no word before reg_notify(), and the kernel's bits can't be assigned.
        """
        mr, _ = self.reg()
        with self.assertRaises(PyverbsUserError):
            mr.notify_word
        with self.assertRaises(PyverbsUserError):
            mr.notify_word = 1 << 8
        self.assertRaises(PyverbsUserError, mr.add_notify, 1 << 8)
        with self.assertRaises(PyverbsUserError):
            mr.reg_notify(e.IBV_MR_NOTIFY_INVALID)
        for other in (256.0, 1.5, '', []):
            self.assertRaises(TypeError, mr.reg_notify, other)
            self.assertRaises(TypeError, mr.reg_notify, 0, other)
        self.assertRaises(OverflowError, mr.reg_notify, 1 << 64)
        self.assertRaises(OverflowError, mr.reg_notify, 0, -256)
        mr.close()

    def test_mr_notify_caps(self):
        """
        Both queries of a device's capabilities agree. A device that revokes also notifies.
        """
        caps, caps_ex = self.attr.device_cap_flags, self.attr_ex.device_cap_flags_ex
        self.assertEqual('IBV_DEVICE_MR_NOTIFY' in translate_device_caps(caps).split(),
                         has_mr_notify(self.ctx))
        self.assertEqual(caps & e.IBV_DEVICE_MR_NOTIFY, caps_ex & e.IBV_DEVICE_MR_NOTIFY)
        if caps_ex & e._IBV_DEVICE_MR_REVOKE:
            self.assertTrue(caps & e.IBV_DEVICE_MR_NOTIFY)
        if caps_ex & e._IBV_DEVICE_MR_RECLAIM:
            self.assertTrue(caps_ex & e._IBV_DEVICE_MR_REVOKE)

    def test_mr_notify_verbs_arguments(self):
        """
        The verb refuses a missing or unaligned word without asking the kernel.
        """
        verbs = ctypes.CDLL('libibverbs.so.1', use_errno=True)
        verbs.ibv_reg_mr_notify.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        for word in (None, 1, 4):
            self.assertEqual(verbs.ibv_reg_mr_notify(None, word), errno.EINVAL)
