# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu/sass.py: it finds contraction and other arithmetic, on text and with the assemblers that are here; and the kernels' code of two
ptxas computes alike.

Arguments: the source directory; where kernels are compiled the PTX, an architecture, the ptxas that assembles them, and that of nvcc."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, *KERNELS = sys.argv[1:]
SCRIPTS = os.path.join(SOURCE, "scripts", "gpu")
sys.path.insert(0, SCRIPTS)
import sass  # noqa: E402

PTX = """.version 7.0
.target sm_80
.address_size 64
.visible .entry sums(.param .u64 at)
{
  .reg .b64 %at;
  .reg .f32 %a, %b, %c;
  ld.param.u64 %at, [at];
  ld.global.f32 %a, [%at];
  ld.global.f32 %b, [%at+4];
  mul.rn.f32 %c, %a, %b;
  add.rn.f32 %c, %c, %a;
  st.global.f32 [%at], %c;
  ret;
}
"""
LISTING = """.text.one:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/              @!P0 FMUL R2, R3, -R4.reuse ;
        /*0020*/                   HFMA2.MMA R5, -RZ, RZ, 0, 0 ;
        /*0030*/                   FADD R7, |R2|, c[0x2][0x8] ;
.text.two:
        /*0000*/                   EXIT ;
"""


def sass_of(text):
    return sass.instructions(text)


class Text(unittest.TestCase):
    def test_contractible(self):
        self.assertEqual(sass.CONTRACTIBLE.findall(PTX), [])
        for plain in ("mul.f32", "add.f32", "add.ftz.f32", "sub.f64", "add.f16x2"):
            self.assertEqual(sass.CONTRACTIBLE.findall(PTX.replace("mul.rn.f32", plain)), [plain])
        self.assertEqual(sass.CONTRACTIBLE.findall("  @%p1 add.f32 %a, %b, %c;\n"), ["add.f32"])

    def test_arithmetic(self):
        code = sass_of(LISTING)
        self.assertEqual(list(code), ["one", "two"])
        self.assertEqual(sass.arithmetic(code["one"]), ["@P FMUL R,R,-R", "FADD R,|R|,c"])

    def test_comparison(self):
        code = sass_of(LISTING)
        self.assertEqual(sass.compare(code, code), (["one", "two"], [], [], {}))
        self.assertEqual(sass.compare(code, sass_of(LISTING.replace("R2", "R9").replace("c[0x2][0x8]", "c[0x2][0x18]"))), (["two"], ["one"], [], {}))
        lines = LISTING.splitlines(keepends=True)
        self.assertEqual(sass.compare(code, sass_of("".join([lines[0], lines[4], *lines[1:4], *lines[5:]]))), (["two"], [], ["one"], {}))
        division = "        /*0040*/                   I2F.U32.RP R2, R3 ;\n        /*0050*/                   F2I.FTZ.U32.TRUNC.NTZ R2, R3 ;\n"
        self.assertEqual(sass.compare(code, sass_of("".join(lines[:5]) + division + "".join(lines[5:])))[1:], (["one"], [], {}))
        for changed, difference in ((LISTING.replace("FADD", "FADD.FTZ"), "1 FADD R,|R|,c; 1 FADD.FTZ R,|R|,c"),
                                    (LISTING.replace("-R4", "R4"), "1 @P FMUL R,R,-R; 1 @P FMUL R,R,R"),
                                    (LISTING.replace("FMUL", "IMAD"), "1 @P FMUL R,R,-R; none"),
                                    (LISTING.replace("@!P0", "    "), "1 @P FMUL R,R,-R; 1 FMUL R,R,-R"),
                                    (LISTING + lines[4].replace("FADD", "DADD"), {"two": "none; 1 DADD R,|R|,c"}),
                                    ("".join(lines[:5]), {"two": "one of the two has this kernel"})):
            self.assertEqual(sass.compare(code, sass_of(changed))[3], difference if isinstance(difference, dict) else {"one": difference})


PTXAS = (KERNELS[2:] or [None])[0] or shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")
NVDISASM = shutil.which("nvdisasm")


@unittest.skipIf(PTXAS is None or NVDISASM is None, "ptxas or nvdisasm is not on PATH")
class Assemblers(unittest.TestCase):
    def code(self, ptx, fmad):
        with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
            file.write(ptx)
            file.flush()
            return sass.disassemble(NVDISASM, sass.assemble(PTXAS, file.name, "80", fmad=fmad)[0])

    def test_contraction(self):
        """Products and sums with their rounding stay as they are, whatever an assembler, or a driver, may do; without it they do not."""
        one, other = self.code(PTX, "false"), self.code(PTX, "true")
        self.assertEqual([each.split()[0] for each in sass.arithmetic(one["sums"])], ["FMUL", "FADD"])
        self.assertEqual(sass.compare(one, other), (["sums"], [], [], {}))
        plain = PTX.replace(".rn", "")
        self.assertEqual(sass.compare(one, self.code(plain, "false"))[3], {})
        self.assertEqual(sass.compare(one, self.code(plain, "true"))[3], {"sums": "1 FADD R,R,R, 1 FMUL R,R,R; 1 FFMA R,R,R,R"})

    def run_script(self, path, *more):
        done = subprocess.run([sys.executable, os.path.join(SCRIPTS, "sass.py"), path, *more], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_script(self):
        with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
            arguments = ("--ptxas", PTXAS, "--ptxas", PTXAS, "--architectures", "80")
            for ptx, expected, words in ((PTX, 0, "1 kernels, 2 floating-point instructions; 1 kernels with the same code"), (PTX.replace("add.rn", "add"), 1, "may contract add.f32")):
                file.seek(0)
                file.truncate()
                file.write(ptx)
                file.flush()
                code, text = self.run_script(file.name, *arguments)
                self.assertEqual((code, words in text), (expected, True), text)

    @unittest.skipIf(len(KERNELS) < 4, "no kernels are compiled, or by one ptxas only: -Dkernels_ptxas names another")
    def test_kernels(self):
        ptx, architecture, *both = KERNELS
        code, text = self.run_script(ptx, "--ptxas", both[0], "--ptxas", both[1], "--architectures", architecture)
        print(text, end="")
        self.assertEqual(code, 0, text)
        self.assertIsNotNone(re.search(r" 0 with other arithmetic$", text, re.MULTILINE), text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
