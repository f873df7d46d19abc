"""python -m bucketpool: the commands of the package itself."""

import sys
from typing import List

from . import describe

USAGE = "usage: python -m bucketpool describe MODEL [-o UNITS.JSON] [--dtype DTYPE]\n       python -m bucketpool describe --help"


def main(arguments: List[str]) -> int:
    if arguments[:1] == ["describe"]:
        return describe.main(arguments[1:])
    if arguments and arguments[0] not in ("-h", "--help"):
        print(f'python -m bucketpool: unknown command "{arguments[0]}"', file=sys.stderr)
        print(USAGE, file=sys.stderr)
        return 2
    print(USAGE, file=sys.stdout if arguments else sys.stderr)
    return 0 if arguments else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
