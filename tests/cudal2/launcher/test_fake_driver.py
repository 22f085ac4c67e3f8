"""The fake driver itself: no other part of the process may take it for the machine's driver."""

import ctypes

from tests.doubles.fake_driver import FakeDriver, fake_driver_file


def test_the_fake_is_not_found_under_the_name_of_the_real_driver():
    assert hasattr(ctypes.CDLL(FakeDriver(fake_driver_file()).file), "fake_reset")
    try:
        real = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    assert not hasattr(real, "fake_reset")
