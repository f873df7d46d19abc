# SPDX-License-Identifier: Apache-2.0
"""The site of the documentation: Sphinx with MyST for pages, breathe for the C headers, autodoc for the Python package, furo for the look.
`docs/build` runs it."""

import logging
import os
import re
import sys

from pygments.lexers.special import TextLexer
from sphinx.ext.autodoc.mock import mock

ROOT = os.environ["BUCKETPOOL_ROOT"]
sys.path.insert(0, os.path.join(ROOT, "python"))

project = "bucketpool"
copyright = "the bucketpool developers"  # pylint: disable=redefined-builtin
with open(os.path.join(ROOT, "meson.build"), encoding="utf-8") as file:
    release = version = re.search(r"version: '([^']+)'", file.read()).group(1)

extensions = ["myst_parser", "breathe", "sphinx.ext.autodoc", "sphinx_copybutton"]
root_doc = "index"

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
copybutton_prompt_text = "$ "

breathe_projects = {"bucketpool": os.environ.get("BUCKETPOOL_DOXYGEN_XML", "")}
breathe_default_project = "bucketpool"
breathe_domain_by_extension = {"h": "c"}

autodoc_mock_imports = ["torch", "numpy", "torchtitan", "transformers", "deepspeed", "megatron_fsdp"]


class FunctionBase:  # of torch
    apply = None


class Function(FunctionBase):
    pass


class Generator:
    pass


# Mocked names are objects; what the package calls super() of, or takes a metaclass from, at import has to be a class.
with mock(["torch"]):
    import torch
    import torch._C
    import torch.autograd
torch.autograd.Function, torch._C.Generator = Function, Generator
sys.modules.update({module.__name__: module for module in (torch, torch.autograd, torch._C)})
with mock(autodoc_mock_imports):  # this package imports its names when they are used; autodoc looks without mocks
    from bucketpool.torch import steps
    vars(steps).update({name: getattr(steps, name) for name in steps.__all__})

autodoc_member_order = "bysource"
autodoc_typehints = "signature"

html_theme = "furo"
html_title = f"bucketpool {version}"
html_show_sphinx = False
html_static_path = ["static"]
html_js_files = ["theme.js"]
html_theme_options = {"light_css_variables": {"color-brand-primary": "#1a6fb0", "color-brand-content": "#1a6fb0"},
                      "dark_css_variables": {"color-brand-primary": "#6cb6f0", "color-brand-content": "#6cb6f0"}}


class NoTypedefs(logging.Filter):
    """`typedef struct x {...} x;` declares two names in C, one in Sphinx."""

    def filter(self, record):
        return "Duplicate C declaration" not in record.getMessage()


def indented_is_literal(_app, _what, _name, _object, _options, lines):
    """Examples in docstrings are indented, as a prompt shows them; reStructuredText wants them announced, and no names that end with "_"."""
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()
    lines[:] = [re.sub(r"(\w)_(?=\W|$)", r"\1\_", line) if not line.startswith(" ") else line for line in lines]
    for i in range(len(lines) - 1, 0, -1):
        if lines[i].startswith("    ") and not lines[i - 1].strip() and not lines[max(i - 2, 0)].startswith("    "):
            lines[i:i] = ["::", ""]


def setup(app):
    app.connect("autodoc-process-docstring", indented_is_literal)
    app.add_lexer("csv", TextLexer)  # which older versions of Pygments lack
    for handler in logging.getLogger("sphinx").handlers:
        handler.filters.insert(0, NoTypedefs())
