#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""
A server sends its client a new key whenever the memory of the old key has changed.

Usage: notify_server.py [DEVICE]    (InfiniBand or RoCE; default: the first one)

The client writes to the server's buffer by RDMA. A library in the server (replace() here)
unmaps the buffer and maps another buffer, and does not tell the server. The server sleeps in
poll(). The kernel wakes it by an eventfd, and a word says which registration is INVALID. The
server registers the buffer again and sends its address and key. Server and client are
processes of this program. Exit status 3: the device has no MR notification.
"""
import ctypes
import os
import pickle
import select
import socket
import sys

import pyverbs.libibverbs_enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mem_alloc import mmap, munmap
from pyverbs.mr import MR, NotifiedMR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

LENGTH = 1 << 16
ROUNDS = 5
WRITE = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
# os.eventfd() came with Python 3.10
eventfd = ctypes.CDLL(None).eventfd


class End:
    """
    One end of a connection: a device, a queue pair, and a socket to the other end.
    """
    def __init__(self, peer):
        name = sys.argv[1] if len(sys.argv) > 1 else get_device_list()[0].name.decode()
        self.peer = peer
        self.ctx = Context(name=name)
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx, 16)
        port = self.ctx.query_port(1)
        gids = [(i, self.ctx.query_gid(1, i)) for i in range(port.gid_tbl_len)]
        used = [(i, gid) for i, gid in gids if not gid.gid.endswith(':0000:0000:0000:0000')]
        index, gid = next(((i, gid) for i, gid in used if ':ffff:' in gid.gid), used[-1])
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = WRITE
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=QPCap(max_send_wr=4))
        self.qp = QP(self.pd, init, attr)
        self.send(self.qp.qp_num, gid.gid, port.lid)
        number, gid, lid = self.receive()
        attr.dest_qp_num = number
        attr.path_mtu = port.active_mtu
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 20, 7, 7
        attr.ah_attr = AHAttr(port_num=1, is_global=1, dlid=lid,
                              gr=GlobalRoute(dgid=GID(gid), sgid_index=index))
        self.qp.to_rts(attr)

    def send(self, *what):
        self.peer.send(pickle.dumps(what))

    def receive(self):
        """
        :return: The other end's message, a tuple
        """
        return pickle.loads(self.peer.recv(4096))


def replace(buffer):
    """
    Let the library change the memory. The server gets no message about it.
    :return: The address of the other buffer
    """
    munmap(buffer, LENGTH)
    return mmap(length=LENGTH)


def server(peer):
    end = End(peer)
    event_fd = eventfd(0, 0)
    changed = select.poll()
    changed.register(event_fd, select.POLLIN)
    buffer = mmap(length=LENGTH)
    for i in range(ROUNDS):
        mr = NotifiedMR(end.pd, LENGTH, WRITE, address=buffer, event_fd=event_fd)
        end.send(buffer, mr.rkey)
        text, = end.receive()
        print(f'written: {mr.read(len(text), 0).decode()}')
        assert mr.read(len(text), 0) == text.encode()
        buffer = replace(buffer)
        changed.poll()
        os.read(event_fd, 8)
        assert mr.notify_word == e.IBV_MR_NOTIFY_INVALID
        print(f'round {i}: the kernel says that the buffer has gone')
        mr.close()
    end.send(0, 0)
    end.receive()


def client(peer):
    end = End(peer)
    address, rkey = end.receive()
    number = 0
    while address:
        text = f'message {number}'
        with MR(end.pd, len(text), e.IBV_ACCESS_LOCAL_WRITE) as source:
            source.write(text, len(text))
            send = SendWR(opcode=e.IBV_WR_RDMA_WRITE, num_sge=1,
                          sg=[SGE(source.buf, len(text), source.lkey)])
            send.set_wr_rdma(rkey, address)
            end.qp.post_send(send)
            count = 0
            while not count:
                count, completions = end.cq.poll()
            assert completions[0].status == e.IBV_WC_SUCCESS, completions[0].status
        end.send(text)
        address, rkey = end.receive()
        number += 1
    end.send()


def main():
    with Context(name=sys.argv[1] if len(sys.argv) > 1 else
                 get_device_list()[0].name.decode()) as ctx:
        if not ctx.query_device().device_cap_flags & e.IBV_DEVICE_MR_NOTIFY:
            print('this kernel and driver do not notify about memory registrations')
            sys.exit(3)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        ours.close()
        client(theirs)
        return
    theirs.close()
    server(ours)
    assert os.waitpid(child, 0)[1] == 0


main()
