#!/usr/bin/env python3
"""Checks every #include against the layers of the architecture: an include may only point down.

Usage: check_layers.py [--self-test] ROOT

A new file of runtime/ gets its place in RUNTIME_LAYERS; a new library gets a row in LIBRARIES if only
some files may use it. --self-test first plants violations in a scratch tree and expects each found.
"""

import fnmatch
import pathlib
import re
import sys
import tempfile

FOLDERS = ("runtime", "quant", "kernels_simd", "kernels_x86", "kernels_arm", "converter", "cli", "examples",
           "tests")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')

# Files of runtime/ from the bottom up, by name without suffix. A file may include its own layer and
# those before it.
RUNTIME_LAYERS = (
    ("status", "scalar_math", "math_constants", "rapidjson"),
    ("mapped_file", "new_file", "arena", "token_hash", "telemetry", "kernels", "kernels_*", "sampler",
     "utf8", "unicode", "regex", "byte_chars", "text_steps", "added_tokens", "bpe", "text_stream",
     "tokenizer", "tokenizer_*"),
    ("model_file", "model_config", "metadata_json", "layer_config", "linear", "kv_ring", "attention", "routing",
     "dense_xnnpack"),
    ("team",),
    ("tensor_binder",),
    ("block", "blocks/*"),
    ("model", "tuner"),
    ("session", "session_*"),
    ("chat_template", "generate"),
    ("api", "api_*"),
)

# What else of the project the folders may include. Tests may include everything.
PUBLIC = ["adder/adder.h"]
FORMATS = ["quant/qtypes.h", "quant/float16.h"]  # plain data, which the runtime shares
KERNELS = ["runtime/kernels.h", "runtime/math_constants.h", "quant/qtypes.h"]
CONVERTER = ["converter/*", "quant/*", "runtime/status.h", "runtime/mapped_file.h",
             "runtime/new_file.h", "runtime/model_file.h", "runtime/model_config.h", "runtime/tokenizer*.h",
             "runtime/text_steps.h", "runtime/utf8.h", "runtime/unicode.h", "runtime/regex.h",
             "runtime/rapidjson.h"]
MODEL = ["runtime/model.h", "runtime/session.h", "runtime/session_*.h"]
RUNS_MODELS = ["converter/golden_check.*", "converter/evaluation.*"]  # the files of the converter that run a model
ENGINE = ["runtime/model.h", "runtime/session*.h", "runtime/generate.h",
          "runtime/kernels_dispatch.h"]
PROJECT = {
    "kernels_simd": KERNELS + ["kernels_simd/*.h"],
    "kernels_x86": KERNELS + ["kernels_simd/*.h", "kernels_x86/*.h"],
    "kernels_arm": KERNELS + ["kernels_simd/*.h", "kernels_arm/*.h"],
    "quant": ["quant/*", "runtime/status.h", "runtime/scalar_math.h", "runtime/math_constants.h"],
    "converter": CONVERTER,
    "cli": ["cli/*"] + PUBLIC + CONVERTER + ENGINE,
    "examples": PUBLIC,
    "tests": ["*"],
}

# Kernel files are compiled for instruction sets that the machine may lack: whatever else they include
# may leave such code where the linker takes it for everyone.
KERNEL_SYSTEM_HEADERS = ["stdint.h", "stddef.h", "*intrin.h", "arm_neon.h"]

# Libraries that only some files may include.
LIBRARIES = {
    "cpuinfo.h": ["runtime/kernels_dispatch.cc", "runtime/tuner.cc"],
    "xnnpack.h": ["runtime/dense_xnnpack.cc"],
    "pthreadpool.h": ["runtime/team.*", "runtime/dense_xnnpack.cc"],
    "CLI/*": ["cli/*"],
    "Eigen/*": ["quant/*", "tests/*"],
    "gtest/*": ["tests/*"],
    "gmock/*": ["tests/*"],
    "benchmark/*": ["tests/*"],
}


def matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def runtime_layer(path):
    """Index into RUNTIME_LAYERS of a path below runtime/, or None."""
    name = path[len("runtime/"):].rsplit(".", 1)[0]
    exact = [i for i, layer in enumerate(RUNTIME_LAYERS) if name in layer]
    return next(iter(exact + [i for i, l in enumerate(RUNTIME_LAYERS) if matches(name, l)]), None)


def fault(path, include):
    """Why the file `path` may not include `include`, or None. Both are relative to the root."""
    folder = path.split("/")[0]
    for library, users in LIBRARIES.items():
        if matches(include, [library]):
            return None if matches(path, users) else f"only {', '.join(users)} may"
    if include.split("/")[0] not in FOLDERS and include not in PUBLIC:
        if folder.startswith("kernels_") and not matches(include, KERNEL_SYSTEM_HEADERS):
            return "kernel files include intrinsics, stdint.h and stddef.h only"
        return None
    if folder != "runtime":
        allowed = PROJECT[folder] + (MODEL if matches(path, RUNS_MODELS) else [])
        return None if matches(include, allowed) else f"{folder}/ may include {', '.join(allowed)}"
    if include in PUBLIC:
        return None if path.startswith("runtime/api") else "only runtime/api* may"
    if not include.startswith("runtime/"):
        return None if include in FORMATS else f"runtime/ may include {', '.join(FORMATS)}"
    layer, target = runtime_layer(path), runtime_layer(include)
    if layer is None or target is None:
        missing = path if layer is None else include
        return f"{missing} has no place in RUNTIME_LAYERS of tests/check_layers.py"
    return None if target <= layer else "it lies in a higher layer"


def check(root):
    """Number of files read, and the violations, one line each."""
    files, faults = 0, []
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix not in (".h", ".cc", ".c"):
                continue
            files += 1
            path = file.relative_to(root).as_posix()
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                include = INCLUDE.match(line)
                why = fault(path, include.group(1)) if include else None
                if why:
                    faults.append(f"{path}:{number}: includes {include.group(1)}: {why}")
    return files, faults


def self_test():
    planted = [
        ("runtime/status.h", '#include "runtime/model.h"'),
        ("runtime/model.h", '#  include "runtime/session.h"'),
        ("runtime/blocks/mamba1.cc", '#include "runtime/model.h"'),
        ("runtime/model_file.cc", '#include "converter/json.h"'),
        ("runtime/linear.cc", '#include "quant/quantize.h"'),
        ("runtime/session.cc", '#include "adder/adder.h"'),
        ("runtime/unplaced.cc", '#include "runtime/status.h"'),
        ("runtime/generate.cc", "#include <cpuinfo.h>"),
        ("runtime/kernels_scalar.cc", "#include <Eigen/Dense>"),
        ("kernels_x86/avx2.cc", "#include <algorithm>"),
        ("kernels_x86/avx512.cc", '#include "runtime/status.h"'),
        ("kernels_arm/neon.cc", '#include "kernels_x86/math_avx2.h"'),
        ("quant/pack.cc", '#include "runtime/model_file.h"'),
        ("converter/zip.cc", '#include "runtime/session.h"'),
        ("converter/json.cc", '#include "CLI/CLI.hpp"'),
        ("cli/main.cc", '#include "runtime/linear.h"'),
        ("examples/minimal.c", '#include "runtime/status.h"'),
    ]
    good = [
        ("runtime/api.cc", '#include "adder/adder.h"'),
        ("runtime/blocks/moe.cc", '#include "runtime/block.h"'),
        ("runtime/kernels_dispatch.cc", "#include <cpuinfo.h>"),
        ("runtime/model.cc", '#include "runtime/tokenizer.h"'),
        ("runtime/arena.h", '#include "quant/qtypes.h"'),
        ("kernels_x86/avxvnni.cc", '#include <immintrin.h>\n#include "kernels_x86/math_avx2.h"'),
        ("quant/gptq.cc", "#include <Eigen/Dense>"),
        ("converter/writer.cc", '#include "runtime/model_file.h"'),
        ("converter/golden_check.cc", '#include "runtime/model.h"'),
        ("cli/run.cc", '#include "CLI/CLI.hpp"\n#include "runtime/session.h"'),
        ("tests/any_test.cc", '#include <gtest/gtest.h>\n#include "runtime/session.h"'),
    ]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, text in planted + good:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text + "\n", encoding="utf-8")
        found = {line.split(":")[0] for line in check(root)[1]}
    wrong = found ^ {path for path, _ in planted}
    return [f"self-test: {path} is judged wrongly" for path in sorted(wrong)]


def main(arguments):
    faults = []
    if arguments[:1] == ["--self-test"]:
        faults += self_test()
        arguments = arguments[1:]
    if len(arguments) != 1:
        sys.exit(__doc__)
    files, found = check(pathlib.Path(arguments[0]))
    faults += found
    if files == 0:
        faults.append(f"{arguments[0]}: no sources there")
    print("\n".join(faults) if faults else f"{files} files respect the layers")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
