#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""
Show a registration that becomes stale, and the access of a peer that still has its key.

Usage: mr_notify.py [DEVICE]        (InfiniBand or RoCE; default: the first one)

Each "# %%" begins a cell: Jupyter, VS Code and Spyder open this file as a notebook. Exit
status 3: the device has no MR notification.
"""
# %% Names
import re
import sys
import time

import pyverbs.libibverbs_enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mem_alloc import mmap, munmap
from pyverbs.mr import MR, NotifiedMR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

LENGTH = 1 << 20
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
STATUS = {e.IBV_WC_SUCCESS: 'success', e.IBV_WC_REM_ACCESS_ERR: 'remote access error'}


def pinned():
    """
    :return: How much memory of this process is pinned, in KiB
    """
    with open('/proc/self/status') as text:
        return int(re.search(r'VmPin:\s*(\d+)', text.read()).group(1))


# %% A device
name = sys.argv[1] if len(sys.argv) > 1 else get_device_list()[0].name.decode()
ctx = Context(name=name)
if not ctx.query_device().device_cap_flags & e.IBV_DEVICE_MR_NOTIFY:
    print(f'{name}: this kernel and driver do not notify about memory registrations')
    sys.exit(3)
revokes = bool(ctx.query_device_ex().device_cap_flags_ex & e._IBV_DEVICE_MR_REVOKE)
pd = PD(ctx)
print(f'{name} notifies' + (' and revokes' if revokes else ''))


# %% Both ends of a connection are in this process: each is the peer of the other
def connected_pair():
    """
    :return: A completion queue, and two RC QPs that are connected to each other
    """
    gids = [(i, ctx.query_gid(1, i)) for i in range(ctx.query_port(1).gid_tbl_len)]
    used = [(i, gid) for i, gid in gids if not gid.gid.endswith(':0000:0000:0000:0000')]
    index, gid = next(((i, gid) for i, gid in used if ':ffff:' in gid.gid), used[-1])
    cq = CQ(ctx, 16)
    init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_send_wr=4))
    first = QPAttr(port_num=1)
    first.qp_access_flags = ACCESS
    ends = [QP(pd, init, first) for _ in range(2)]
    for end, other in (ends, ends[::-1]):
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = ACCESS
        attr.dest_qp_num = other.qp_num
        attr.path_mtu = ctx.query_port(1).active_mtu
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
        attr.ah_attr = AHAttr(port_num=1, is_global=1, dlid=ctx.query_port(1).lid,
                              gr=GlobalRoute(dgid=gid, sgid_index=index))
        end.to_rts(attr)
    return cq, ends


def rdma_write(text, address, rkey):
    """
    Write a text to a peer's memory on a new connection. (An error breaks a connection.)
    :return: The status, a word of STATUS
    """
    cq, (end, _) = connected_pair()
    with MR(pd, len(text), ACCESS) as source:
        source.write(text, len(text))
        send = SendWR(opcode=e.IBV_WR_RDMA_WRITE, num_sge=1,
                      sg=[SGE(source.buf, len(text), source.lkey)])
        send.set_wr_rdma(rkey, address)
        end.post_send(send)
        while True:
            count, completions = cq.poll()
            if count:
                return STATUS.get(completions[0].status, completions[0].status)
            time.sleep(0)       # a software device needs the CPU too


# %% Register a buffer, and have the kernel watch it
print(f'pinned                             {pinned():6} KiB')
buffer = mmap(length=LENGTH)
mr = NotifiedMR(pd, LENGTH, ACCESS, address=buffer)
print(f'registered: pinned                 {pinned():6} KiB    word {mr.notify_word}')
assert mr.notify_word == 0

# %% A peer writes
print('a peer writes:                    ', rdma_write('hello', buffer, mr.rkey), end=', ')
print(mr.read(5, 0))
assert mr.read(5, 0) == b'hello'

# %% Unmap it: the word says INVALID before munmap() returns
munmap(buffer, LENGTH)
print(f'unmapped:                                        word {mr.notify_word}')
assert mr.notify_word == e.IBV_MR_NOTIFY_INVALID

# %% Settle: wait until the device has lost its access and the pages are unpinned
word = mr.settle_notify()
print(f'settled: pinned                    {pinned():6} KiB    word {word}')
assert word == e.IBV_MR_NOTIFY_INVALID

# %% The peer writes again, by the old key
if revokes:
    status = rdma_write('HELLO', buffer, mr.rkey)
    print('a peer writes by the old key:     ', status)
    assert status == STATUS[e.IBV_WC_REM_ACCESS_ERR]

# %% The registration still has to be closed
mr.close()
print(f'closed: pinned                     {pinned():6} KiB')
