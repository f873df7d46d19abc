# SPDX-License-Identifier: Apache-2.0
"""Settings of the property tests: BUCKETPOOL_EXAMPLES examples (default 200), deterministic. Skips the tests without
Hypothesis, so it is imported before it.
"""

import os
import sys

try:
    from hypothesis import HealthCheck, Phase, settings
except ImportError as error:
    print(f"python3-hypothesis is not installed: {error}")
    sys.exit(77)

EXAMPLES = int(os.environ.get("BUCKETPOOL_EXAMPLES", "200"))
SETTINGS = settings(max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, print_blob=False,
                    report_multiple_bugs=False, phases=(Phase.generate, Phase.shrink),
                    suppress_health_check=list(HealthCheck))
