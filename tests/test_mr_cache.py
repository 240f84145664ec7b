# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""
Test module for cached registration. It calls the verbs through pyverbs, without and with RC
traffic. These tests check the interface, and other tests check races. The module also runs with
RDMAV_MR_CACHE=1 and RDMAV_MR_CACHE=remote.
"""
import ctypes
import errno
import json
import mmap
import os
import time
import unittest

from tests.test_mr_notify import Closing, LENGTH, MAP_FIXED, MRNotifyTestCase, \
    MRTrafficTestCase, NotifyRC, PAGE, REMOTE, drop_caches, has_mr_notify, libc, \
    requires_mr_notify, run_child
from pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.mr import MR
import pyverbs.libibverbs_enums as e
import tests.utils as u

ACCESS = e.IBV_ACCESS_LOCAL_WRITE
CACHED = ACCESS | e.IBV_ACCESS_CACHED
CACHED_REMOTE = REMOTE | e.IBV_ACCESS_CACHED
UNASKED = os.environ.get('RDMAV_MR_CACHE') in ('1', 'remote')
TRUSTED = os.environ.get('RDMAV_MR_CACHE') == 'remote'
NONE = os.environ.get('RDMAV_MR_CACHE') == '0'

# With an idle time of 0, only the tests suspend registrations, even on a slow machine.
os.environ.setdefault('RDMAV_MR_CACHE_IDLE_MS', '0')

# For each access the child registers a range. Then it prints whether the cache finds the whole
# range, and whether the cache finds a part.
POLICY_CHILD = """
import ctypes, json, mmap, sys
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.mr import MR
page = mmap.PAGESIZE
pd = PD(Context(name=sys.argv[1]))
found = []
for access in map(int, sys.argv[2:]):
    memory = mmap.mmap(-1, 2 * page)
    addr = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    MR(pd, 2 * page, access, address=addr).close()
    found.append([pd.is_reg(addr, 2 * page, access), pd.is_reg(addr, page, access)])
print(json.dumps(found))
"""


# One thread forgets MRs. Another thread closes them, or closes their PD, which may fail with EBUSY.
FORGET_CHILD = """
import errno, sys, threading
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.mr import MR
from pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
import pyverbs.libibverbs_enums as e
def close():
    begun.wait()
    try:
        (mr if sys.argv[2] == 'mr' else pd).close()
    except PyverbsRDMAError as ex:
        assert ex.error_code == errno.EBUSY, ex
def forget():
    begun.set()
    try:
        assert mr.forget()
    except PyverbsUserError:
        pass
ctx = Context(name=sys.argv[1])
for _ in range(20):
    pd = PD(ctx)
    mr = MR(pd, 8 << 20, e.IBV_ACCESS_LOCAL_WRITE)
    begun = threading.Event()
    threads = [threading.Thread(target=func) for func in (close, forget)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


class MRCacheTestCase(MRNotifyTestCase):
    """
    Registrations in self.pd, and the cache's counters since setUp().
    """
    def setUp(self):
        if NONE:
            raise unittest.SkipTest('RDMAV_MR_CACHE=0 is set')
        super().setUp()
        if has_mr_notify(self.ctx):
            self.start = self.ctx.query_mr_cache()

    def reg_cached(self, addr, length=LENGTH, access=CACHED):
        return MR(self.pd, length, access, address=addr)

    def map_at(self, addr):
        """
        Map other pages at the same address.
        """
        self.assertEqual(libc.mmap(addr, LENGTH, mmap.PROT_READ | mmap.PROT_WRITE,
                                   mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED, -1, 0), addr)

    def counted(self):
        now = self.ctx.query_mr_cache()
        return now._replace(hits=now.hits - self.start.hits, misses=now.misses - self.start.misses,
                            invalidations=now.invalidations - self.start.invalidations,
                            evictions=now.evictions - self.start.evictions)

    def assert_same(self, mr, keys):
        self.assertEqual((mr.handle, mr.lkey, mr.rkey), keys)

    def fill(self, addr, length=LENGTH):
        """
        Register and deregister. Afterwards the registration is idle.
        :return: Handle, lkey and rkey
        """
        mr = self.reg_cached(addr, length)
        keys = mr.handle, mr.lkey, mr.rkey
        mr.close()
        return keys


class MRCacheTest(MRCacheTestCase):
    """
    The cache on a device that has one.
    """
    @requires_mr_notify
    def test_mr_cache_hit(self):
        """
        The same buffer gives the same registration, while it is in use and afterwards.
        """
        addr = self.map()
        keys = self.fill(addr)
        mr = self.reg_cached(addr)
        again = self.reg_cached(addr)
        self.assert_same(mr, keys)
        self.assert_same(again, keys)
        mr.close()
        again.close()
        counted = self.counted()
        self.assertEqual((counted.hits, counted.misses), (2, 1))
        self.assertEqual((counted.bytes, counted.entries), (LENGTH, 1))

    @requires_mr_notify
    def test_mr_cache_miss(self):
        """
        Another buffer gets another registration.
        """
        first, second = self.reg_cached(self.map()), self.reg_cached(self.map())
        self.assertNotEqual(first.handle, second.handle)
        self.assertEqual(self.counted()[:2], (0, 2))
        first.close()
        second.close()

    @requires_mr_notify
    def test_mr_cache_part(self):
        """
        A part of a registered range is found, and shows its own address and length.
        """
        addr = self.map()
        keys = self.fill(addr)
        for offset, length in ((0, 1), (PAGE, PAGE), (1, LENGTH - 1), (LENGTH - 1, 1)):
            part = self.reg_cached(addr + offset, length)
            self.assert_same(part, keys)
            self.assertEqual((part.buf, part.length), (addr + offset, length))
            part.close()
        self.assertEqual(self.counted().misses, 1)

    @requires_mr_notify
    def test_mr_cache_part_of_pages(self):
        """
        Whole pages are registered; the MR shows the requested range.
        """
        addr = self.map()
        mr = self.reg_cached(addr + 100, PAGE)
        self.assertEqual((mr.buf, mr.length), (addr + 100, PAGE))
        other = self.reg_cached(addr, 2 * PAGE)
        self.assertEqual((other.buf, other.length), (addr, 2 * PAGE))
        self.assertEqual(other.lkey, mr.lkey)
        mr.close()
        other.close()

    @requires_mr_notify
    def test_mr_cache_containing(self):
        """
        A range larger than the cached range gets a new registration, which later requests find.
        """
        addr = self.map()
        small = self.fill(addr + PAGE, PAGE)
        large = self.fill(addr)
        self.assertNotEqual(small[0], large[0])
        mr = self.reg_cached(addr)
        self.assert_same(mr, large)
        mr.close()

    @requires_mr_notify
    def test_mr_cache_access(self):
        """
        A request for more access gets another registration. A request for less access gets the
        existing registration.
        """
        addr = self.map()
        self.fill(addr)
        more = CACHED | e.IBV_ACCESS_REMOTE_WRITE
        mr = self.reg_cached(addr, access=more)
        self.assertEqual(self.counted()[:2], (0, 2))
        mr.close()
        self.reg_cached(addr, access=e.IBV_ACCESS_CACHED).close()
        self.assertEqual(self.counted()[:2], (1, 2))

    @requires_mr_notify
    def test_mr_cache_pd(self):
        """
        A registration never serves another PD.
        """
        addr = self.map()
        handle = self.fill(addr)[0]
        other = PD(self.ctx)
        mr = MR(other, LENGTH, CACHED, address=addr)
        self.assertNotEqual(mr.handle, handle)
        self.assertFalse(PD(self.ctx).is_reg(addr, LENGTH, ACCESS))
        mr.close()
        other.close()

    @requires_mr_notify
    def test_mr_cache_unmap(self):
        """
        After munmap() and another mmap() at the same address the registration is new.
        """
        addr = self.map()
        self.fill(addr)
        self.unmap(addr)
        self.assertFalse(self.pd.is_reg(addr, LENGTH, ACCESS))
        self.map_at(addr)
        self.assertFalse(self.pd.is_reg(addr, LENGTH, ACCESS))
        self.fill(addr)
        counted = self.counted()
        self.assertEqual((counted.hits, counted.invalidations, counted.entries), (0, 1, 1))

    @requires_mr_notify
    def test_mr_cache_unmap_used(self):
        """
        If a registration becomes INVALID while it is in use, it is no longer found. It ends with
        its last user.
        """
        addr = self.map()
        mr = self.reg_cached(addr)
        self.map_at(addr)
        fresh = self.reg_cached(addr)
        self.assertNotEqual(fresh.handle, mr.handle)
        mr.close()
        fresh.close()
        self.assertEqual(self.counted().entries, 1)

    @requires_mr_notify
    def test_mr_cache_dontneed(self):
        """
        Other pages at the same address get a new registration.
        """
        addr = self.map()
        self.fill(addr)
        self.assertEqual(libc.madvise(addr, LENGTH, mmap.MADV_DONTNEED), 0)
        self.fill(addr)
        self.assertEqual(self.counted()[:2], (0, 2))

    @requires_mr_notify
    def test_mr_cache_fork(self):
        """
        A child that writes, deregisters and exits does not change its parent's registration.
        """
        addr = self.map()
        keys = self.fill(addr)
        mr = self.reg_cached(addr)
        pid = os.fork()
        if not pid:
            status = 1
            try:
                ctypes.memset(addr, 1, LENGTH)
                mr.close()
                status = int(self.pd.is_reg(addr, LENGTH, ACCESS))
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        mr.close()
        mr = self.reg_cached(addr)
        self.assert_same(mr, keys)
        mr.close()

    def test_mr_cache_closed(self):
        """
        A closed context and a closed PD raise errors, and the process does not crash.
        """
        self.pd.close()
        with self.assertRaises(PyverbsUserError):
            self.pd.is_reg(self.map(LENGTH), LENGTH, ACCESS)
        self.ctx.close()
        for call in (self.ctx.query_mr_cache, self.ctx.reg_mr_limits, self.ctx.reg_mr_clean,
                     lambda: self.ctx.reg_mr_limits(max_entries=3)):
            with self.assertRaises(PyverbsUserError):
                call()

    @requires_mr_notify
    def test_mr_cache_is_reg(self):
        """
        is_reg() checks range and access. It returns False after the PD's registrations are closed.
        """
        addr = self.map()
        self.assertFalse(self.pd.is_reg(addr, LENGTH, ACCESS))
        self.fill(addr)
        self.assertTrue(self.pd.is_reg(addr, LENGTH, ACCESS))
        self.assertTrue(self.pd.is_reg(addr + 5, 1, CACHED))
        self.assertTrue(self.pd.is_reg(addr, LENGTH, 0))
        self.assertFalse(self.pd.is_reg(addr, LENGTH + 1, ACCESS))
        self.assertFalse(self.pd.is_reg(addr, 0, ACCESS))
        self.assertFalse(self.pd.is_reg(addr, LENGTH, ACCESS | e.IBV_ACCESS_REMOTE_READ))
        self.ctx.reg_mr_clean()
        self.assertFalse(self.pd.is_reg(addr, LENGTH, ACCESS))

    @requires_mr_notify
    def test_mr_cache_reclaim(self):
        """
        The kernel suspends an idle MR. A hit restores the MR under the same keys.
        """
        if not self.attr_ex.device_cap_flags_ex & e._IBV_DEVICE_MR_RECLAIM:
            raise unittest.SkipTest('The device can not give registrations other pages')
        addr = self.map()
        mr = self.reg_cached(addr)
        keys = mr.lkey, mr.rkey
        mr.close()
        for _ in range(100):    # the shrinker skips a recently used MR once
            drop_caches()
            if self.counted().suspensions:
                break
            time.sleep(0.1)
        self.assertEqual((self.counted().suspensions, self.counted().restorations), (1, 0))
        mr = self.reg_cached(addr)
        self.assertEqual((mr.lkey, mr.rkey), keys)
        self.assertEqual((self.counted().suspensions, self.counted().restorations), (1, 1))
        drop_caches()
        self.assertEqual(self.counted().suspensions, 1)
        mr.close()

    @requires_mr_notify
    def test_mr_cache_limits(self):
        """
        Limits are reported, finite, and can be changed one by one.
        """
        old = self.ctx.reg_mr_limits()
        self.assertTrue(0 < old.max_bytes < 1 << 63 and 0 < old.max_entries < 1 << 63)
        self.assertEqual(self.ctx.reg_mr_limits(max_entries=3), old)
        self.assertEqual(self.ctx.reg_mr_limits(), old._replace(max_entries=3))
        for name in ('max_bytes', 'max_entries'):
            ctx = Context(name=self.dev_name)
            with self.assertRaises(PyverbsUserError):
                ctx.reg_mr_limits(**{name: Closing(ctx, 3)})

    @requires_mr_notify
    def test_mr_cache_whole_numbers(self):
        """
        A number that is not a valid limit raises an error. It is not truncated.
        """
        old = self.ctx.reg_mr_limits()
        for call, numbers in ((lambda **kw: self.ctx.reg_mr_limits(**kw),
                               ({'max_bytes': 0.9}, {'max_entries': 2.0})),
                              (lambda **kw: self.ctx.reg_mr_clean(**kw), ({'keep_bytes': 0.5},)),
                              (lambda **kw: self.pd.is_reg(**{'address': 0, 'length': 1,
                                                              'access': 0, **kw}),
                               ({'address': 1.5}, {'length': 2.5}, {'access': 1.0}))):
            for number in numbers:
                with self.subTest(**number), self.assertRaises(TypeError):
                    call(**number)
        self.assertEqual(self.ctx.reg_mr_limits(), old)

    @requires_mr_notify
    def test_mr_cache_evict(self):
        """
        At the limit of entries the least recently used idle registration is evicted.
        """
        addrs = [self.map() for _ in range(5)]
        self.ctx.reg_mr_limits(max_entries=4)
        used = self.reg_cached(addrs[0])
        for addr in addrs[1:]:
            self.fill(addr)
        self.assertEqual(self.counted().evictions, 1)
        self.assertEqual([self.pd.is_reg(addr, LENGTH, ACCESS) for addr in addrs],
                         [True, False, True, True, True])
        used.close()
        self.ctx.reg_mr_limits(max_entries=1)
        self.assertEqual(self.counted().entries, 1)

    @requires_mr_notify
    def test_mr_cache_evict_bytes(self):
        """
        At the limit of bytes the least recently used idle registration is evicted. An MR that is
        larger than the limit gets a plain registration.
        """
        first, second = self.map(), self.map()
        self.ctx.reg_mr_limits(max_bytes=LENGTH + PAGE)
        self.fill(first)
        self.fill(second)
        self.assertFalse(self.pd.is_reg(first, LENGTH, ACCESS))
        self.assertTrue(self.pd.is_reg(second, LENGTH, ACCESS))
        large = self.map(2 * LENGTH)
        self.reg_cached(large, 2 * LENGTH).close()
        self.assertFalse(self.pd.is_reg(large, 2 * LENGTH, ACCESS))

    @requires_mr_notify
    def test_mr_cache_clean(self):
        """
        Cleaning keeps MRs in use, and the requested number of idle bytes.
        """
        used = self.reg_cached(self.map())
        addrs = [self.map() for _ in range(3)]
        for addr in addrs:
            self.fill(addr)
        self.ctx.reg_mr_clean(LENGTH)
        self.assertEqual([self.pd.is_reg(addr, LENGTH, ACCESS) for addr in addrs],
                         [False, False, True])
        self.ctx.reg_mr_clean()
        self.assertEqual(self.counted().entries, 1)
        used.close()
        self.ctx.reg_mr_clean()
        self.assertEqual((self.counted().bytes, self.counted().entries), (0, 0))

    @requires_mr_notify
    def test_mr_cache_rereg(self):
        """
        A registration that may have other users cannot be changed.
        """
        addr = self.map()
        for mr in (self.reg_cached(addr), self.reg_cached(addr + PAGE, PAGE)):
            with self.assertRaises(PyverbsRDMAError):
                mr.rereg(flags=e.IBV_REREG_MR_CHANGE_ACCESS, pd=None, addr=0, length=0,
                         access=e.IBV_ACCESS_LOCAL_WRITE)
            mr.close()
        self.assertTrue(self.pd.is_reg(addr, LENGTH, ACCESS))

    @requires_mr_notify
    def test_mr_cache_notify(self):
        """
        A cached registration has the cache's word. If RDMAV_MR_CACHE caches an MR that has only one
        user, this user can arm the MR with another word.
        """
        addr = self.map()
        mr = self.reg_cached(addr)
        self.assert_errno(errno.EINVAL, mr.settle_notify)
        self.assert_errno(errno.EINVAL, mr.unreg_notify)
        if not UNASKED:
            self.assert_errno(errno.EOPNOTSUPP, mr.reg_notify)
        else:
            mr.reg_notify()
            self.assertFalse(self.pd.is_reg(addr, LENGTH, ACCESS))
            self.assertEqual(mr.notify_word, 0)
            self.unmap(addr)
            self.assertEqual(mr.notify_word, e.IBV_MR_NOTIFY_INVALID)
        mr.close()

    @requires_mr_notify
    def test_mr_cache_dealloc_pd(self):
        """
        A PD with idle registrations can be freed. A PD with registrations in use can't.
        """
        addr = self.map()
        self.fill(addr)
        self.pd.close()
        self.pd = PD(self.ctx)
        self.assertFalse(self.pd.is_reg(addr, LENGTH, ACCESS))
        self.assertEqual(self.counted().entries, 0)
        self.fill(addr)
        self.ctx.close()

    @requires_mr_notify
    def test_mr_cache_not_cached(self):
        """
        An access that the cache does not serve gives a plain registration.
        """
        addr = self.map()
        MR(self.pd, LENGTH, CACHED | e.IBV_ACCESS_MW_BIND, address=addr).close()
        if not UNASKED:
            MR(self.pd, LENGTH, ACCESS, address=addr).close()
        self.assertEqual(self.counted()[:2], (0, 0))
        self.assertFalse(self.pd.is_reg(addr, LENGTH, ACCESS))

    @requires_mr_notify
    def test_mr_cache_errors(self):
        """
        Errors are the same as for a plain registration.
        """
        addr = self.map()
        self.unmap(addr)
        for access in (CACHED, CACHED | e.IBV_ACCESS_REMOTE_WRITE):
            self.assert_errno(errno.EFAULT, self.reg_cached, addr, LENGTH, access)
        addr = self.map()
        self.assert_errno(errno.EINVAL, self.reg_cached, addr, LENGTH,
                          e.IBV_ACCESS_CACHED | e.IBV_ACCESS_REMOTE_WRITE)
        self.assertEqual(self.counted().entries, 0)

    @requires_mr_notify
    def test_mr_cache_exact(self):
        """
        A registration with remote rights serves only its own range and rights, so that a peer gets
        no more access than the request allows. With RDMAV_MR_CACHE=remote the registration also
        serves parts of its range and rights.
        """
        addr = self.map()
        mr = self.reg_cached(addr, access=CACHED_REMOTE)
        keys = mr.handle, mr.lkey, mr.rkey
        again = self.reg_cached(addr, access=CACHED_REMOTE)
        self.assert_same(again, keys)
        for start, length, access in (
                (addr, LENGTH, ACCESS), (addr, LENGTH, ACCESS | e.IBV_ACCESS_REMOTE_READ),
                (addr, LENGTH - 1, REMOTE), (addr + PAGE, PAGE, REMOTE)):
            self.assertEqual(self.pd.is_reg(start, length, access), TRUSTED)
            other = self.reg_cached(start, length, access | e.IBV_ACCESS_CACHED)
            self.assertEqual((other.buf, other.length), (start, length))
            self.assertEqual(other.rkey == mr.rkey, TRUSTED)
            other.close()
        mr.close()
        again.close()

    @requires_mr_notify
    def test_mr_cache_exact_bytes(self):
        """
        A remote registration of some bytes serves only these bytes, not their whole page.
        """
        addr = self.map()
        mr = self.reg_cached(addr + 100, 64, CACHED_REMOTE)
        self.assertEqual((mr.buf, mr.length), (addr + 100, 64))
        self.assertTrue(self.pd.is_reg(addr + 100, 64, REMOTE))
        self.assertEqual(self.pd.is_reg(addr + 101, 63, REMOTE), TRUSTED)
        self.assertEqual(self.pd.is_reg(addr, PAGE, REMOTE), TRUSTED)
        mr.close()
        counted = self.counted()
        self.assertEqual((counted.bytes, counted.entries), (PAGE, 1))

    @requires_mr_notify
    def test_mr_cache_forget(self):
        """
        A forgotten MR is not found again, and its registration ends.
        """
        for access in (CACHED, CACHED_REMOTE):
            addr = self.map()
            mr = self.reg_cached(addr, access=access)
            self.assertIs(mr.forget(), True)
            self.assertFalse(self.pd.is_reg(addr, LENGTH, access))
            self.assertEqual((self.counted().bytes, self.counted().entries), (0, 0))
            self.assertRaises(PyverbsUserError, mr.forget)
            mr.close()

    @requires_mr_notify
    def test_mr_cache_forget_shared(self):
        """
        If one of two users forgets a registration, it is no longer found. It ends when the other
        user deregisters it.
        """
        addr = self.map()
        first, second = (self.reg_cached(addr, access=CACHED_REMOTE) for _ in range(2))
        self.assertEqual(first.handle, second.handle)
        self.assertIs(first.forget(), False)
        self.assertFalse(self.pd.is_reg(addr, LENGTH, REMOTE))
        self.assertEqual(self.counted().entries, 1)
        third = self.reg_cached(addr, access=CACHED_REMOTE)
        self.assertNotEqual(third.handle, second.handle)
        second.close()
        self.assertEqual(self.counted().entries, 1)
        self.assertIs(third.forget(), True)
        self.assertEqual(self.counted().entries, 0)

    @requires_mr_notify
    def test_mr_cache_forget_part(self):
        """
        Forgetting a part ends the whole registration, if the registration has no other user.
        """
        addr = self.map()
        self.fill(addr)
        self.assertIs(self.reg_cached(addr + PAGE, PAGE).forget(), True)
        self.assertFalse(self.pd.is_reg(addr, LENGTH, ACCESS))
        self.assertEqual(self.counted().entries, 0)

    @requires_mr_notify
    def test_mr_cache_policy(self):
        """
        RDMAV_MR_CACHE decides which registrations of a process are cached, and whether the cache
        finds a part of a registration with remote rights. An unknown value is reported once.
        """
        nothing, exactly, any_part = [False, False], [True, False], [True, True]
        args = [self.dev_name,
                *(str(int(access)) for access in (ACCESS, REMOTE, CACHED, CACHED_REMOTE))]
        flag = [nothing, nothing, any_part, exactly]
        for value, found in ((None, flag), ('1', [any_part, nothing, any_part, exactly]),
                             ('remote', 4 * [any_part]), ('0', 4 * [nothing]), ('yes', flag)):
            with self.subTest(RDMAV_MR_CACHE=value):
                env = dict(os.environ)
                env.pop('RDMAV_MR_CACHE', None)
                if value:
                    env['RDMAV_MR_CACHE'] = value
                *told, said = run_child(POLICY_CHILD, *args, env=env).splitlines()
                self.assertEqual(json.loads(said), found)
                self.assertEqual(len(told), value == 'yes', told)


class CachedRC(NotifyRC):
    """
    An RC end whose MR may be cached.
    """
    def reg_mr(self):
        self.mr = MR(self.pd, self.msg_size, CACHED_REMOTE, address=self.addr)

    def reg_locally(self):
        self.mr = MR(self.pd, self.msg_size, CACHED, address=self.addr)

    def counted(self):
        return self.ctx.query_mr_cache()


@unittest.skipIf(NONE, 'RDMAV_MR_CACHE=0 is set')
class MRCacheTrafficTest(MRTrafficTestCase):
    """
    Messages over cached MRs. Each message registers and deregisters.
    """
    def message(self, send_op=e.IBV_WR_RDMA_WRITE):
        """
        Send a message each way; compare the bytes.
        """
        for end in (self.client, self.server):
            end.mr.close()
            end.reg_mr()
        self.sync_remote_attr()
        u.rdma_traffic(**{**self.traffic_args, 'iters': 1}, send_op=send_op)

    def test_mr_cache_rc_traffic(self):
        """
        Each end uses the same buffers again and again, and registers once.
        """
        self.create_players(CachedRC)
        for _ in range(self.iters):
            self.message()
            self.message(e.IBV_WR_RDMA_READ)
        for end in (self.client, self.server):
            self.assertEqual(end.counted()[:2], (2 * self.iters, 1))

    def test_mr_cache_rc_other_pages(self):
        """
        Before each message other pages are mapped at the address. No old byte arrives. Each end
        registers every time. The old registration may be idle or in use.
        """
        self.create_players(CachedRC)
        for turn in range(self.iters):
            for end in (self.client, self.server):
                if turn % 2:
                    end.mr.close()
                end.map_again()
            self.message()
        for end in (self.client, self.server):
            counted = end.counted()
            self.assertEqual(counted[:2], (0, 1 + self.iters))
            self.assertEqual((counted.invalidations, counted.entries), (self.iters, 1))

    def test_mr_cache_rc_forget(self):
        """
        A peer's key works while the registration is idle, until the registration is forgotten.
        """
        self.create_players(CachedRC)
        self.server.mr.close()
        self.server.reg_locally()
        u.rdma_traffic(**{**self.traffic_args, 'iters': 1}, send_op=e.IBV_WR_RDMA_WRITE)
        self.server.mr.close()
        self.server.reg_mr()
        self.assertEqual(self.server.mr.rkey, self.client.rkey)
        self.assertIs(self.server.mr.forget(), True)
        self.server.reg_locally()
        self.refused(e.IBV_WR_RDMA_WRITE, 'Remote access error')
        self.assertEqual(self.server.mem_read(PAGE), b's' * PAGE)


class MRCacheVerbsTest(MRCacheTestCase):
    """
    These tests call the verbs without pyverbs, whose objects never deregister twice.
    """
    def verb(self, name, *argtypes):
        func = getattr(ctypes.CDLL('libibverbs.so.1'), name)
        func.restype = ctypes.c_void_p
        func.argtypes = argtypes
        return func

    def open_pd(self):
        """
        :return: Pointers to a context and to a PD of this test's device
        """
        devices = ctypes.cast(self.verb('ibv_get_device_list', ctypes.c_void_p)(None),
                              ctypes.POINTER(ctypes.c_void_p))
        name = self.verb('ibv_get_device_name', ctypes.c_void_p)
        device = next(dev for dev in devices if
                      ctypes.string_at(name(dev)) == self.ctx.name.encode())
        context = self.verb('ibv_open_device', ctypes.c_void_p)(device)
        self.verb('ibv_free_device_list', ctypes.c_void_p)(devices)
        return context, self.verb('ibv_alloc_pd', ctypes.c_void_p)(context)

    @requires_mr_notify
    def test_mr_cache_double_dereg(self):
        """
        The second ibv_dereg_mr() of an idle registration returns EINVAL and changes nothing.
        """
        reg = self.verb('ibv_reg_mr_iova2', ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                        ctypes.c_uint64, ctypes.c_uint)
        dereg = self.verb('ibv_dereg_mr', ctypes.c_void_p)
        dereg.restype = ctypes.c_int
        context, pd = self.open_pd()
        addr = self.map()
        mr = reg(pd, addr, LENGTH, addr, CACHED)
        self.assertEqual(dereg(mr), 0)
        for _ in range(3):
            self.assertEqual(dereg(mr), errno.EINVAL)
        self.assertEqual(reg(pd, addr, LENGTH, addr, CACHED), mr)
        self.assertEqual(dereg(mr), 0)
        dealloc = self.verb('ibv_dealloc_pd', ctypes.c_void_p)
        dealloc.restype = ctypes.c_int
        self.assertEqual(dealloc(pd), 0)
        self.verb('ibv_close_device', ctypes.c_void_p)(context)


class MRCacheInterfaceTest(MRCacheTestCase):
    """
    Rules for every device and kernel.
    """
    def test_mr_cache_forget_plain(self):
        """
        An MR that is not cached is deregistered, and its own buffer is freed.
        """
        mr = MR(self.pd, LENGTH, e.IBV_ACCESS_MW_BIND)
        self.assertIs(mr.forget(), True)
        self.assertRaises(PyverbsUserError, mr.forget)

    def test_mr_cache_forget_subclass(self):
        """
        forget() frees the MR without calling a subclass's close().
        """
        class Closed(MR):
            def close(self):
                if self.buf:
                    seen.append(self.read(4, 0))
                super().close()

        seen = []
        mr = Closed(self.pd, LENGTH, e.IBV_ACCESS_MW_BIND)
        self.assertIs(mr.forget(), True)
        mr.close()
        self.assertEqual((mr.buf, seen), (0, []))

    def test_mr_cache_forget_threads(self):
        """
        If two threads close an MR at the same time, it is deregistered once.
        """
        for what in ('mr', 'pd'):
            self.assertEqual(run_child(FORGET_CHILD, self.dev_name, what), '')

    def test_mr_cache_unsupported(self):
        """
        Without the capability the flag has no effect, and the context has no cache.
        """
        if has_mr_notify(self.ctx):
            raise unittest.SkipTest('The device supports MR notification')
        addr = self.map()
        first, second = self.reg_cached(addr), self.reg_cached(addr)
        self.assertNotEqual(first.handle, second.handle)
        first.close()
        second.close()
        self.assertFalse(self.pd.is_reg(addr, LENGTH, ACCESS))
        self.assertIs(self.reg_cached(addr).forget(), True)
        for func in (self.ctx.reg_mr_limits, self.ctx.reg_mr_clean, self.ctx.query_mr_cache):
            self.assert_errno(errno.EOPNOTSUPP, func)

    def test_mr_cache_flag(self):
        """
        A kernel that does not know the flag ignores it. Tests combine all values of an enumeration
        for plain registrations, so no enumeration contains the flag.
        """
        self.assertEqual(e.IBV_ACCESS_CACHED, 1 << 29)
        self.assertNotIn(1 << 29, [int(flag) for flag in e.ibv_access_flags])
