# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: seeds each test, and reports how often it called our functions as the property "calls"."""

import os

import pytest


def calls():
    path = os.environ["BUCKETPOOL_PEER_CALLS"]
    return os.path.getsize(path) if os.path.exists(path) else 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    import torch
    torch.manual_seed(0)  # some tests set no seed
    before = calls()
    try:
        return (yield)
    finally:
        item.user_properties.append(("calls", calls() - before))
