# SPDX-License-Identifier: Apache-2.0
"""The virtual methods of PyTorch's allocators: read from its headers, passed on by a generated class, refused where they are not known."""

import os
import re
import shutil
import subprocess

import pytest
import torch

from bucketpool.errors import Unsupported
from bucketpool.torch.steps import _build
from bucketpool.torch.steps._virtuals import CLASSES, HEADERS, PASSED_ON, forwarding

INCLUDE = os.path.join(os.path.dirname(torch.__file__), "include")
RELEASE = torch.__version__.partition("+")[0]
CUDA = HEADERS["CUDAAllocator"]
BASE = HEADERS["DeviceAllocator"]
HEAD = "class CUDAAllocator : public DeviceAllocator {\n public:\n"

pytestmark = pytest.mark.skipif(not os.path.exists(os.path.join(INCLUDE, CUDA)), reason="PyTorch has no headers for CUDA")


@pytest.fixture
def headers(tmp_path):
    """A copy of the headers, and a function that edits one of them."""
    for path in HEADERS.values():
        os.makedirs(tmp_path / os.path.dirname(path), exist_ok=True)
        shutil.copy(os.path.join(INCLUDE, path), tmp_path / path)

    def edit(path, old, new):
        text = (tmp_path / path).read_text(encoding="utf-8")
        assert old in text
        (tmp_path / path).write_text(text.replace(old, new, 1), encoding="utf-8")
        return str(tmp_path)

    return edit


def names_of(text):
    return set(re.findall(r"(\w+)\([^()]*(?:\([^()]*\)[^()]*)*\)(?: const| noexcept)* override \{", text))


def test_installed_methods():
    text = forwarding(INCLUDE, "cuda", RELEASE)
    with open(os.path.join(INCLUDE, CUDA), encoding="utf-8") as file:
        called = set(re.findall(r"get\(\)->(\w+)\(", file.read()))  # PyTorch's own functions that call the allocator
    assert len(called) > 30 and called <= names_of(text)
    assert {"allocate", "raw_deleter", "copy_data", "is_simple_data_ptr", "initialized", "getMemoryInfo"} <= names_of(text)
    assert names_of(forwarding(INCLUDE, "cpu", RELEASE)) == {"allocate", "raw_deleter", "copy_data", "is_simple_data_ptr"}


def test_inherited_method():
    """recordStream with a c10::Stream calls that with a CUDAStream, the decorator's: native's would not."""
    text = forwarding(INCLUDE, "cuda", RELEASE)
    assert re.findall(r"void recordStream\((.+?)\) override", text) == ["const DataPtr& a0, CUDAStream a1"]
    assert "using CUDAAllocator::recordStream;" in text


def test_table_of_methods(tmp_path):
    """The compiler's table: Forwarding has each virtual method of PyTorch's class."""
    try:
        chosen, (cuda, _) = _build.compiler(), _build.cuda_headers()
    except Unsupported as reason:
        pytest.skip(str(reason))
    if "clang" in chosen.version:
        pytest.skip("clang++ writes other tables")
    (tmp_path / "forwarding.h").write_text(forwarding(INCLUDE, "cuda", RELEASE), encoding="utf-8")
    (tmp_path / "one.cpp").write_text('#include "forwarding.h"\nForwarding one(nullptr);\n', encoding="utf-8")
    command = [*chosen.command, "-fdump-lang-class", _build.standard(RELEASE), "-c", "-isystem", INCLUDE, "-isystem", cuda,
               "-idirafter", _build.places().sources, "one.cpp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    dump, = tmp_path.glob("*.class")
    table, = re.findall(r"^Vtable for \S+::Forwarding\n(.*?)\n\n", dump.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    methods = re.findall(r"^\d+\s+\(int \(\*\)\(\.\.\.\)\)([A-Za-z_]\S*)$", table, re.MULTILINE)
    assert len(methods) > 40
    left = [name.rpartition("::")[2] for name in methods if "::Forwarding::" not in name]
    assert left in ([], ["recordStream"])  # older releases have it once, newer ones also with a c10::Stream


@pytest.mark.parametrize("path, old, new, words", [
    (CUDA, HEAD, HEAD + "virtual int unheardOf(int device) { return 0; }\n", "PyTorch 2.13's allocator has a method that this version does not know: "
                                                                            "CUDAAllocator::unheardOf; update bucketpool. Nothing is served"),
    (BASE, "virtual bool initialized() = 0;", "virtual bool initialized() = 0; virtual void trim();", "DeviceAllocator::trim"),
    (CUDA, HEAD, HEAD + "void trim(int) override;\n", "CUDAAllocator::trim"),
    (CUDA, "raw_delete(void* ptr)", "raw_delete(void* ptr, size_t size)", "CUDAAllocator::raw_delete as void (void*, size_t)"),
    (CUDA, HEAD, HEAD + "virtual DataPtr allocate(size_t n, CUDAStream) = 0;\n", "CUDAAllocator::allocate as DataPtr (size_t, CUDAStream)"),
    (CUDA, "virtual void* getBaseAllocation", "void* getBaseAllocation", "no method CUDAAllocator::getBaseAllocation"),
    (CUDA, "virtual SnapshotInfo snapshot(", "virtual std::string snapshot(", "CUDAAllocator::snapshot as std::string (MempoolId_t"),
    (CUDA, "recordHistory(\n      bool enabled,", "recordHistory(\n      int enabled,", "CUDAAllocator::recordHistory as void (int, "),
    (BASE, "virtual void resetPeakStats(", "virtual bool resetPeakStats(", "DeviceAllocator::resetPeakStats as bool (DeviceIndex)"),
    (CUDA, "    recordStream(ptr, cuda_stream);", "    get()->other(ptr);", "CUDAAllocator::recordStream as void (const DataPtr&, Stream)"),
])
def test_refused_methods(headers, path, old, new, words):
    with pytest.raises(Unsupported, match=re.escape(words)):
        forwarding(headers(path, old, new), "cuda", "2.13.1")


@pytest.mark.parametrize("old, new, words", [
    (HEAD, HEAD + "#ifdef NEWER\n  virtual void trim();\n#endif\n", "preprocessor directives"),
    (HEAD, HEAD + "  C10_METHODS(trim)\n", "a macro in the class: C10_METHODS"),
    (HEAD, HEAD + "  C10_METHOD(trim) virtual void other();\n", "a macro in the class: C10_METHOD"),
    (HEAD, HEAD + "  virtual auto trim() -> int;\n", "a virtual method: auto trim()"),
    (HEAD, HEAD + "  virtual void trim() &&;\n", "a virtual method: void trim()"),
    (HEAD, HEAD + "  virtual void init(int counts[4]);\n", "the parameters (int counts[4])"),
    (HEAD, HEAD + "  virtual void init(void (*call)(int));\n", "the parameters (void(* call)(int))"),
    (HEAD, HEAD + "  virtual void init(int, ...);\n", "the parameters"),
    (HEAD, HEAD + " private:\n  virtual void trim();\n public:\n", "the private method trim"),
    (HEAD, HEAD.replace(" public:\n", ""), "the private method raw_alloc"),
    (HEAD, HEAD.replace("public DeviceAllocator", "public Pooled"), "the base Pooled"),
    (HEAD, HEAD.replace("public DeviceAllocator", "public DeviceAllocator, public Pooled"), "the bases 'public DeviceAllocator, public Pooled'"),
    (HEAD, HEAD.replace("public DeviceAllocator", "DeviceAllocator"), "the bases 'DeviceAllocator'"),
    (HEAD, "class Cached : public DeviceAllocator {\n public:\n", "0 definitions"),
    (HEAD, HEAD + "};\n" + HEAD, "2 definitions"),
    (HEAD, HEAD + "  void helper() { (]; }\n", "an unbalanced {"),
    ("  virtual std::string name() = 0;", "  virtual std::string name() = 0", "a member without an end|a virtual method"),
])
def test_refused_classes(headers, old, new, words):
    with pytest.raises(Unsupported) as caught:
        forwarding(headers(CUDA, old, new), "cuda", "2.13.1")
    text = str(caught.value)
    assert any(word in text for word in words.split("|")), text
    assert text.startswith(f"PyTorch's header {CUDA}: class CUDAAllocator is not understood: ") and text.endswith("update bucketpool. Nothing is served")


def test_missing_header(tmp_path):
    with pytest.raises(Unsupported, match=f"PyTorch's header {re.escape(CUDA)}: .*No such file.*Nothing is served"):
        forwarding(str(tmp_path), "cuda", "2.11.0")


def test_harmless_members(headers):
    added = HEAD + '''
  // virtual void hidden() = 0;
  /* virtual void hidden() = 0; */
  using Pair = std::pair<int, int>;
  struct Inner { virtual void hidden() = 0; int x{3}; };
  int counts[3] = {1, 2, 3};
  int brace{4};
  std::function<void(int)> call;
  const char* text() const { return "virtual } void { hidden();"; }
  int compare(int a, int b) { return a < b ? a : b; }
  template <typename T> T helper(T t) { return t; }
  CUDAAllocator() = default;
  CUDAAllocator(const CUDAAllocator&) = delete;
  bool operator==(const CUDAAllocator& other) const { return this == &other; }
  [[nodiscard]] virtual bool supportsUserMetadata() const noexcept { return 1 < 2; }
  virtual void setUserMetadata(const ::std::map<std::string, std::vector<int>>& a = {{"x", {1, 2}}}, unsigned long b = sizeof(int), Pair&& c = {1, 2});
'''
    text = forwarding(headers(CUDA, HEAD, added), "cuda", "2.13.1")
    assert "hidden" not in text
    assert "bool supportsUserMetadata() const noexcept override { return native->supportsUserMetadata(); }" in text
    assert ("void setUserMetadata(const::std::map<std::string, std::vector<int>>& a0, unsigned long a1, Pair&& a2) override "
            "{ return native->setUserMetadata(a0, a1, std::move(a2)); }") in text
    assert names_of(text) == names_of(forwarding(INCLUDE, "cuda", RELEASE)) | {"supportsUserMetadata", "setUserMetadata"}


# Headers that need neither CUDA nor PyTorch, with types that tell how they were passed.
STAND_INS = {
    HEADERS["Allocator"]: """#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
namespace c10 {
using DeviceIndex = signed char;
struct DataPtr { void *pointer; };
struct Stream { int number; };
struct Allocator {
  virtual ~Allocator() = default;
  virtual DataPtr allocate(size_t n) = 0;
};
}
""",
    HEADERS["DeviceAllocator"]: """#pragma once
#include <c10/core/Allocator.h>
namespace c10 {
using MempoolId_t = std::pair<int, int>;
namespace CachingDeviceAllocator { struct DeviceStats { int count; }; }
struct DeviceAllocator : public c10::Allocator {
  virtual void emptyCache(MempoolId_t mempool_id = {0, 0}) = 0;
  virtual void recordStream(const DataPtr& ptr, c10::Stream stream) = 0;
  virtual CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) = 0;
  virtual void resetAccumulatedStats(c10::DeviceIndex device) = 0;
  virtual void resetPeakStats(c10::DeviceIndex device) = 0;
};
}
""",
    HEADERS["CUDAAllocator"]: """#pragma once
#include <c10/core/CachingDeviceAllocator.h>
using cudaStream_t = void *;
namespace c10::cuda { struct CUDAStream { Stream stream; explicit CUDAStream(Stream s) : stream(s) {} }; }
namespace c10 { struct GatheredContext { int number; }; }
namespace c10::cuda::CUDACachingAllocator {
using CachingDeviceAllocator::DeviceStats;
struct SnapshotInfo { int count; };
struct ShareableHandle { int offset; };
using CreateContextFn = std::shared_ptr<GatheredContext> (*)();
enum struct RecordContext { NEVER, ALL = 3 };
class CUDAAllocator : public DeviceAllocator {
 public:
  virtual void raw_delete(void* ptr) = 0;
  virtual bool isEnabled() const = 0;
  virtual void* getBaseAllocation(void* ptr, size_t* size) = 0;
  virtual void recordStream(const DataPtr&, CUDAStream stream) = 0;
  void recordStream(const DataPtr& ptr, c10::Stream stream) override { recordStream(ptr, CUDAStream(stream)); }
  virtual SnapshotInfo snapshot(MempoolId_t mempool_id = {0, 0}, bool traces = true) = 0;
  virtual void beginAllocateToPool(c10::DeviceIndex device, MempoolId_t mempool_id, std::function<bool(cudaStream_t)> filter) = 0;
  virtual void endAllocateToPool(c10::DeviceIndex device, MempoolId_t mempool_id) = 0;
  virtual ShareableHandle shareIpcHandle(void* ptr) = 0;
  virtual void recordHistory(bool enabled, CreateContextFn context, size_t entries, RecordContext when, bool clear) = 0;
  virtual std::shared_ptr<GatheredContext> getContextForPointer(const void* ptr) { return nullptr; }
  virtual void setUseOnOOM(c10::DeviceIndex /*device*/, std::unique_ptr<int> value) {}
};
}
""",
}
PROGRAM = """#include "forwarding.h"
#include <cassert>
using namespace c10::cuda::CUDACachingAllocator;
using c10::cuda::CUDAStream;
int calls = 0, device = 0, value = 0;
const void *asked = nullptr;
bool emptied = false, hooked = false, before = false;
struct Native final : CUDAAllocator {
  c10::DataPtr allocate(size_t n) override { calls++; return {reinterpret_cast<void *>(n)}; }
  void emptyCache(c10::MempoolId_t id) override { calls++; device = id.second; emptied = true; }
  void recordStream(const c10::DataPtr &, CUDAStream s) override { calls++; device = s.stream.number; }
  void recordStream(const c10::DataPtr &, c10::Stream) override { assert(!"native's, which does not know the decorator"); }
  DeviceStats getDeviceStats(c10::DeviceIndex d) override { calls++; return {d}; }
  void resetAccumulatedStats(c10::DeviceIndex d) override { calls++; device = d; }
  void resetPeakStats(c10::DeviceIndex d) override { calls++; device = d; }
  void raw_delete(void *p) override { calls++; asked = p; }
  bool isEnabled() const override { calls++; return true; }
  void *getBaseAllocation(void *p, size_t *size) override { calls++; *size = 5; return p; }
  SnapshotInfo snapshot(c10::MempoolId_t id, bool traces) override { calls++; return {id.first + traces}; }
  void beginAllocateToPool(c10::DeviceIndex d, c10::MempoolId_t, std::function<bool(cudaStream_t)> f) override { calls++; device = d; value = f(nullptr); }
  void endAllocateToPool(c10::DeviceIndex d, c10::MempoolId_t) override { calls++; device = d; }
  ShareableHandle shareIpcHandle(void *p) override { calls++; asked = p; return {6}; }
  void recordHistory(bool, CreateContextFn, size_t entries, RecordContext, bool) override { calls++; value = static_cast<int>(entries); }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void *p) override { calls++; asked = p; return std::make_shared<c10::GatheredContext>(); }
  void setUseOnOOM(c10::DeviceIndex d, std::unique_ptr<int> v) override { calls++; device = d; value = *v; }
} native;
int slab[4];
struct Decorator final : Forwarding {
  using Forwarding::Forwarding;
  using Forwarding::recordStream;
  void recordStream(const c10::DataPtr &p, CUDAStream s) override { hooked = true; Forwarding::recordStream(p, s); }
  SnapshotInfo shown(SnapshotInfo info) override { return {info.count + 100}; }
  void before_empty_cache() override { before = !emptied; }
  DeviceStats counted(c10::DeviceIndex d, DeviceStats stats) override { return {stats.count * 10 + d}; }
  void history(bool enabled, CreateContextFn context, size_t entries, RecordContext when) override
  {
    hooked = enabled && value == 9 && entries == 9 && context == nullptr && when == RecordContext::ALL;
  }
  const void *block_of(const void *p) override { return p >= slab && p < slab + 4 ? slab : p; }
} decorator(&native);
int main()
{
  CUDAAllocator &a = decorator;
  size_t size = 0;
  int other = 0;
  assert(a.allocate(3).pointer == reinterpret_cast<void *>(3) && calls == 1);
  a.emptyCache({0, 7});
  assert(calls == 2 && device == 7 && before);
  static_cast<c10::DeviceAllocator &>(a).recordStream({}, c10::Stream{8});
  assert(calls == 3 && device == 8 && hooked);
  hooked = false;
  assert(a.getDeviceStats(2).count == 22 && calls == 4);
  a.resetAccumulatedStats(3);
  assert(device == 3);
  a.resetPeakStats(4);
  assert(device == 4);
  a.raw_delete(&other);
  assert(asked == &other && a.isEnabled() && calls == 8);
  assert(a.getBaseAllocation(&other, &size) == &other && size == 5);
  assert(a.snapshot({4, 0}, true).count == 105);
  a.beginAllocateToPool(5, {}, [](cudaStream_t s) { return s == nullptr; });
  assert(device == 5 && value == 1);
  a.endAllocateToPool(6, {});
  assert(device == 6 && a.shareIpcHandle(slab).offset == 6 && asked == slab);
  a.recordHistory(true, nullptr, 9, RecordContext::ALL, false);
  assert(hooked);
  assert(a.getContextForPointer(slab + 2) && asked == slab && a.getContextForPointer(&other) && asked == &other);
  a.setUseOnOOM(7, std::make_unique<int>(11));
  assert(device == 7 && value == 11 && calls == 17);
}
"""


def test_passes_on(tmp_path):
    for path, text in STAND_INS.items():
        os.makedirs(tmp_path / os.path.dirname(path), exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    (tmp_path / "forwarding.h").write_text(forwarding(str(tmp_path), "cuda", "2.12.0"), encoding="utf-8")
    (tmp_path / "program.cpp").write_text(PROGRAM, encoding="utf-8")
    chosen = _build.compiler()
    done = subprocess.run([*chosen.command, "-std=c++17", "-Wall", "-Woverloaded-virtual", "-Werror", "-I.", "program.cpp", "-o", "program"],
                          cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([str(tmp_path / "program")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_tables():
    """No method is in two tables, and each class has a header."""
    from bucketpool.torch.steps import _virtuals
    assert not PASSED_ON & (set(_virtuals.OVERRIDDEN) | set(_virtuals.HOOKS)) and not set(_virtuals.OVERRIDDEN) & set(_virtuals.HOOKS)
    assert set(CLASSES.values()) <= set(HEADERS)


def test_old_release():
    with pytest.raises(Unsupported, match="PyTorch 2.5's allocator: PyTorch 2.6 is the oldest that is known; update PyTorch. Nothing is served"):
        forwarding(INCLUDE, "cpu", "2.5.1")
