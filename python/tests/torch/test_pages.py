"""Runs the blocks of the documents that need PyTorch. tests/cli/test_docs.py runs the others, and tests/cli/pages.py
describes how."""

import os

import pytest

pytest.importorskip("torch")

import page_fixtures  # noqa: E402
import process_group  # noqa: E402

pages = page_fixtures.pages
BUILD = os.environ.get("BUCKETPOOL_BUILD", os.path.join(pages.ROOT, "build"))
PAGES = [page for page, blocks in pages.documents().items() if pages.left_to_torch(blocks)]
NEEDS = {"megatron": "megatron_fsdp", "models": "transformers"}


@pytest.mark.parametrize("page", PAGES)
def test_page(page, tmp_path):
    for word, package in NEEDS.items():
        if word in page:
            pytest.importorskip(package)
    first, second = process_group.run(page_fixtures.run_page, page, str(tmp_path), BUILD, ranks=2)
    assert first and first == second
    print(f"{page}: {len(first)} blocks run")
