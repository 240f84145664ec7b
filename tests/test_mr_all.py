# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""
Test module for ibv_register_mr_all and on-demand paging. It calls the verb through pyverbs, and
tests the operations that test_odp leaves out.
"""
import errno
import unittest

from tests.base import PyverbsAPITestCase, RCResources, RDMATestCase, UDResources
from tests.test_mr_notify import Closing
from tests.test_qpex import QpExRCAtomicWrite, QpExRCFlush
from pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from pyverbs.mr import MR, register_mr_all
from pyverbs.pd import PD
import pyverbs.libibverbs_enums as e
import tests.utils as u

LOCAL = e.IBV_ACCESS_LOCAL_WRITE
REMOTE = LOCAL | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE


def requires_mr_all(instance):
    """
    Skip if the device has no on-demand paging of all memory.
    """
    if not instance.ctx.query_device_ex().device_cap_flags_ex & e._IBV_DEVICE_MR_ALL:
        raise unittest.SkipTest('The device has no ibv_register_mr_all')


class MrAllAPITest(PyverbsAPITestCase):
    """
    The verb and its capability.
    """
    def test_capability(self):
        """
        The device has the capability if and only if it has implicit on-demand paging.
        """
        attr = self.ctx.query_device_ex()
        implicit = bool(attr.odp_caps.general_caps & e.IBV_ODP_SUPPORT_IMPLICIT)
        self.assertEqual(bool(attr.device_cap_flags_ex & e._IBV_DEVICE_MR_ALL), implicit)

    def test_register(self):
        """
        All memory can be registered more than once, and each MR can be closed. Each MR has its own
        keys.
        """
        requires_mr_all(self)
        with PD(self.ctx) as pd:
            first = register_mr_all(pd, REMOTE)
            second = register_mr_all(pd, LOCAL)
            self.assertNotEqual(first.lkey, second.lkey)
            first.close()
            second.close()
            # This MR is closed by its PD.
            register_mr_all(pd, LOCAL)

    def test_closed(self):
        """
        A closed PD raises an error.
        """
        pd = PD(self.ctx)
        pd.close()
        with self.assertRaises(PyverbsUserError):
            register_mr_all(pd, LOCAL)

    def test_closed_by_argument(self):
        """
        A PD that is closed while the rights are converted raises an error.
        """
        pd = PD(self.ctx)
        with self.assertRaises(PyverbsUserError):
            register_mr_all(pd, Closing(pd, LOCAL))

    def test_unsupported(self):
        """
        Without the capability the verb fails with EOPNOTSUPP.
        """
        if self.ctx.query_device_ex().device_cap_flags_ex & e._IBV_DEVICE_MR_ALL:
            raise unittest.SkipTest('The device has it')
        with PD(self.ctx) as pd:
            with self.assertRaises(PyverbsRDMAError) as caught:
                register_mr_all(pd, LOCAL)
            self.assertEqual(caught.exception.error_code, errno.EOPNOTSUPP)

    def test_flush_persistent(self):
        """
        An MR of all memory can't have the right to flush to persistence.
        """
        requires_mr_all(self)
        with PD(self.ctx) as pd:
            with self.assertRaises(PyverbsRDMAError) as caught:
                register_mr_all(pd, LOCAL | e.IBV_ACCESS_FLUSH_PERSISTENT)
            self.assertEqual(caught.exception.error_code, errno.EINVAL)

    def test_wrong_rights(self):
        """
        As for any MR, remote writes need the right to local writes.
        """
        requires_mr_all(self)
        with PD(self.ctx) as pd:
            with self.assertRaises(PyverbsRDMAError) as caught:
                register_mr_all(pd, e.IBV_ACCESS_REMOTE_WRITE)
            self.assertEqual(caught.exception.error_code, errno.EINVAL)


class OnDemand:
    """
    Resources with an MR for on-demand paging.
    """
    extra = 0

    def create_mr(self):
        requires_mr_all(self)
        self.mr = MR(self.pd, self.msg_size, REMOTE | self.extra | e.IBV_ACCESS_ON_DEMAND)


class OdpAtomicWrite(OnDemand, QpExRCAtomicWrite):
    """
    Atomic writes.
    """


class OdpFlush(OnDemand, QpExRCFlush):
    """
    Flushes to global visibility.
    """
    extra = e.IBV_ACCESS_FLUSH_GLOBAL


class OdpFlushPersistent(OdpFlush):
    """
    Flushes to persistence.
    """
    extra = OdpFlush.extra | e.IBV_ACCESS_FLUSH_PERSISTENT
    ptype = e.IBV_FLUSH_PERSISTENT


class OdpUdReceive(UDResources):
    """
    Both ends of unreliable datagrams. Receives use the MR, too.
    """
    def create_mr(self):
        requires_mr_all(self)
        access = LOCAL | e.IBV_ACCESS_ON_DEMAND
        self.mr = MR(self.pd, self.msg_size + self.GRH_SIZE, access)


class OdpSrq(OnDemand, RCResources):
    """
    Receives of a shared queue.
    """


class OdpOperationsTest(RDMATestCase):
    """
    Operations that test_odp does not try.
    """
    def setUp(self):
        super().setUp()
        self.iters = 100

    def test_atomic_write(self):
        self.create_players(OdpAtomicWrite)
        self.client.msg_size = 8
        self.server.msg_size = 8
        u.rdma_traffic(**self.traffic_args, new_send=True, send_op=e.IBV_WR_ATOMIC_WRITE)

    def test_flush(self):
        self.create_players(OdpFlush)
        wcs = u.flush_traffic(**self.traffic_args, new_send=True, send_op=e.IBV_WR_FLUSH)
        if wcs[0].status != e.IBV_WC_SUCCESS:
            raise PyverbsRDMAError(f'Unexpected {u.wc_status_to_str(wcs[0].status)}')
        self.client.level = e.IBV_FLUSH_MR
        wcs = u.flush_traffic(**self.traffic_args, new_send=True, send_op=e.IBV_WR_FLUSH)
        if wcs[0].status != e.IBV_WC_SUCCESS:
            raise PyverbsRDMAError(f'Unexpected {u.wc_status_to_str(wcs[0].status)}')

    def test_flush_persistent(self):
        """
        A flush to persistence fails, because ordinary memory is not persistent.
        """
        self.create_players(OdpFlushPersistent)
        wcs = u.flush_traffic(**self.traffic_args, new_send=True, send_op=e.IBV_WR_FLUSH)
        self.assertEqual(wcs[0].status, e.IBV_WC_REM_ACCESS_ERR)

    def test_ud_receive(self):
        self.create_players(OdpUdReceive)
        u.traffic(**self.traffic_args)

    def test_srq(self):
        self.create_players(OdpSrq, with_srq=True)
        u.traffic(**self.traffic_args)
