# SPDX-License-Identifier: Apache-2.0
"""A program that was compiled with an older header, whose structs are shorter, with this library.

Arguments: source directory, core library."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

ROOT, CORE = sys.argv[1:3]
# Structs that callers fill and that info structs list, and the fields that the older header lacks: their last ones.
LATER = {"bp_parameter": ["tp_parts", "expert_dim"], "bp_given_bucket": ["roles"], "bp_model_event": ["lane"]}
PROGRAM = r"""
#include <bucketpool/model.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    bp_model *model;
    bp_parameter weight;
    char name[16];
    if (bp_model_create("older", &model) != BP_OK || bp_model_add_unit(model, "u", BP_OUTSIDE, NULL) != BP_OK ||
        bp_parameter_init(&weight, sizeof weight) != BP_OK)
        return 1;
    for (unsigned i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "p%u", i);
        weight.name = name;
        weight.unit = 0;
        weight.dims = 1;
        weight.shape[0] = 10 + i;
        weight.dtype = BP_DTYPE_BF16;
        bp_given_bucket bucket = {.size = sizeof bucket, .name = name, .unit = 0, .dtype = BP_DTYPE_BF16, .numel = 20 + i};
        bp_model_event event = {.size = sizeof event, .acquire = i % 2 == 0, .unit = 0, .bucket = (int)i};
        if (bp_model_add_parameter(model, &weight) != BP_OK || bp_model_add_bucket(model, &bucket) != BP_OK ||
            bp_model_add_event(model, &event) != BP_OK)
            return 2;
    }
    const bp_model_info *info = bp_model_get_info(model);
    for (unsigned i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "p%u", i);
        if (strcmp(info->parameters[i]->name, name) != 0 || info->parameters[i]->shape[0] != 10 + i ||
            strcmp(info->given_buckets[i]->name, name) != 0 || info->given_buckets[i]->numel != 20 + i ||
            info->events[i]->bucket != (int)i || info->events[i]->acquire != (i % 2 == 0))
            return 3;
        if (info->parameters[i]->size <= sizeof weight)
            return 4;
    }
    bp_model_destroy(&model);
    return 0;
}
"""


class OlderProgram(unittest.TestCase):
    def test_elements_of_arrays(self):
        with open(os.path.join(ROOT, "include", "bucketpool", "model.h"), encoding="utf-8") as file:
            header = file.read()
        for struct, fields in LATER.items():
            body = re.search(rf"typedef struct {struct} \{{\n(.*?)\}} {struct};", header, re.DOTALL)[1]
            lines, shorter = body.splitlines(keepends=True), body
            for field in fields:
                line = next(line for line in lines if re.search(rf"\b{field};", line))
                shorter = shorter.replace(line, "")
                self.assertIn(line, lines[-3:], f"{struct}.{field} is one of its last fields")
            header = header.replace(body, shorter)
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "bucketpool"))
            for name, text in {"bucketpool/model.h": header, "program.c": PROGRAM}.items():
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
            command = [*shlex.split(os.environ.get("CC", "cc")), "-std=c17", "-Wall", "-Werror", "-I" + folder, "-I" + os.path.join(ROOT, "include"),
                       os.path.join(folder, "program.c"), os.path.realpath(CORE), "-Wl,-rpath," + os.path.dirname(os.path.realpath(CORE)),
                       "-o", os.path.join(folder, "program")]
            subprocess.run(command, check=True)
            self.assertEqual(subprocess.run([os.path.join(folder, "program")], check=False).returncode, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
