# SPDX-License-Identifier: Apache-2.0
"""Python imports this at startup where PYTHONPATH names its folder: in pytest, and in the processes that tests of peers start."""

import os
import sys

if "BUCKETPOOL_PEER" in os.environ:
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    import stand_ins

    stand_ins.install(os.environ["BUCKETPOOL_PEER"])
