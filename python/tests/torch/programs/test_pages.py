# SPDX-License-Identifier: Apache-2.0
"""Runs the blocks of the documents that need PyTorch. tests/cli/test_docs.py runs the others, and tests/cli/pages.py
describes how."""

import os

import pytest

import adopt_releases
import page_fixtures
import process_group

pages = page_fixtures.pages
BUILD = os.environ.get("BUCKETPOOL_BUILD", os.path.join(pages.ROOT, "build"))
PAGES = {page: blocks for page, blocks in pages.documents().items() if pages.left_to_torch(blocks)}


@pytest.mark.parametrize("page", PAGES)
def test_page(page, tmp_path):
    for word, package in (("megatron_fsdp", "megatron_fsdp"), ("describe", "transformers"), ("LlamaForCausalLM", "transformers"),
                          ("import deepspeed", "deepspeed")):
        if any(word in block.code for block in PAGES[page]):
            pytest.importorskip(package)
    if any("torch.adopt" in block.code for block in PAGES[page]) and not os.path.isdir(adopt_releases.RELEASES):
        pytest.skip(f"no released packages in {adopt_releases.RELEASES}; ./check --torch installs them")
    first, second = process_group.run(page_fixtures.run_page, page, str(tmp_path), BUILD, ranks=2)
    assert first and first == second
    print(f"{page}: {len(first)} blocks run")
