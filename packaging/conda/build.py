# SPDX-License-Identifier: Apache-2.0
"""Builds and tests the recipe with rattler-build on a Debian system, without conda-forge: its compilers, tools and libraries are Debian's, and
a channel of stand-ins has empty packages of their names. The packages of our recipe, their prefixes and tests are as they would be.

usage: build.py RECIPE OUTPUT     in a Python with py-rattler-build"""

import sys
import sysconfig
from pathlib import Path

from rattler_build import RattlerBuildError, Stage0Recipe, ToolConfiguration, VariantConfig

EMPTY = {"cmake": "3.25.0", "gcc_linux-64": "12.2.0", "jansson": "2.14", "meson": "1.0.1", "ninja": "1.11.1",
         "pkg-config": "0.29.2", "scdoc": "1.11.2", "sysroot_linux-64": "2.28", "util-linux": "2.38.1"}
VERSION = sysconfig.get_python_version()
# conda's Python has its own site-packages, and finds libraries in lib of its prefix.
PYTHON = f"""#!/bin/sh
prefix=$(dirname "$0")/..
PYTHONPATH=$prefix/lib/python{VERSION}/site-packages LD_LIBRARY_PATH=$prefix/lib exec /usr/bin/python3 "$@"
"""
SITE = """import sysconfig
sysconfig._INSTALL_SCHEMES.pop("deb_system", None)
sysconfig.get_default_scheme = lambda: "posix_prefix"
"""


def stand_in(name: str, version: str, channel: Path, script: str = "true") -> None:
    recipe = Stage0Recipe.from_dict({"package": {"name": name, "version": version}, "build": {"script": script, "string": "stand_in"}})
    recipe.run_build(output_dir=channel, channels=[channel.as_uri()])


def main() -> None:
    recipe, output = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
    output.mkdir(parents=True, exist_ok=True)
    (output / "python").write_text(PYTHON, encoding="utf-8")
    (output / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    for name, version in EMPTY.items():
        stand_in(name, version, output)
    stand_in("python", f"{VERSION}.0", output, f"install -D -m 755 {output}/python $PREFIX/bin/python; ln -s python $PREFIX/bin/python3; "
             f"install -D -m 644 {output}/sitecustomize.py $PREFIX/lib/python{VERSION}/site-packages/sitecustomize.py")
    variants = VariantConfig({"c_compiler": ["gcc"], "c_stdlib": ["sysroot"], "python": [f"{VERSION}.*"]})
    try:
        results = Stage0Recipe.from_file(recipe).run_build(variant_config=variants, tool_config=ToolConfiguration(test_strategy="native"),
                                                           output_dir=output, channels=[output.as_uri()])
    except RattlerBuildError as error:  # which names no reason
        newest = max(output.rglob("conda_build.log"), key=lambda path: path.stat().st_mtime)
        sys.exit(f"{error}\n{newest.read_text(encoding='utf-8')[-4000:]}")
    for result in results:
        print(*result.packages)


if __name__ == "__main__":
    main()
