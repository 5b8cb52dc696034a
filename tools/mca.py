#!/usr/bin/env python3
"""Estimates the inner loops of the quantized matmuls in kernels_arm/ with llvm-mca.

Compiles each file as a release build does, finds the loops over groups of 32 columns (a straight
run of instructions that ends in a branch to its start and multiplies bytes), and lets llvm-mca
count the cycles of one turn. Assumes that all loads hit the first cache; the question is whether
the core or its memory is the limit.

  tools/mca.py [--compiler g++|clang++] [--mca llvm-mca] [--verbose]

LLVM 14 to 16 take a Cortex-A57 (three instructions and one load a cycle) for Cortex-A72 and for
Cortex-A76, which is wider: the figures of the latter are lower bounds. They know Cortex-A710 since
LLVM 16 (--mca llvm-mca-16).

Needs: g++-aarch64-linux-gnu or clang, binutils-aarch64-linux-gnu, llvm.
"""
import argparse
import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = {
    "neon": [],
    "dotprod": ["-march=armv8.2-a+dotprod"],
    "i8mm": ["-march=armv8.2-a+dotprod+i8mm"],
}
# Cores of llvm-mca: board, clock in GHz, and the files that it can run.
CORES = {
    "cortex-a72": ("Raspberry Pi 4", 1.5, ["neon"]),
    "cortex-a76": ("Raspberry Pi 5", 2.4, ["neon", "dotprod"]),
    "cortex-a710": ("a phone", 2.5, ["neon", "dotprod", "i8mm"]),
}
COMPILERS = {
    "g++": ["aarch64-linux-gnu-g++"],
    "clang++": ["clang++", "--target=aarch64-linux-gnu"],
}
FLAGS = ["-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off",
         "-fno-exceptions", "-fno-rtti", "-DADDER_KERNELS_ARM=1", f"-I{ROOT}"]

# Products of one instruction, 16 rows x 32 columns of weights in a turn, and their bytes.
PRODUCTS = {"smull": 8, "smull2": 8, "smlal": 8, "smlal2": 8, "sdot": 16, "smmla": 32}
WEIGHTS = 512
BYTES = {"q8": 512.0, "q4": 256.0 + 32.0}


def disassemble(compiler, isa):
    """The functions of a kernel file: name -> [(address, instruction, branch target or None)]."""
    with tempfile.TemporaryDirectory() as folder:
        obj = f"{folder}/kernels.o"
        subprocess.run([*COMPILERS[compiler], *FLAGS, *FILES[isa], "-c",
                        f"{ROOT}/kernels_arm/{isa}.cc", "-o", obj], check=True)
        text = subprocess.run(["aarch64-linux-gnu-objdump", "-dC", "--no-show-raw-insn", obj],
                              check=True, capture_output=True, text=True).stdout
    functions, body = {}, None
    for line in text.splitlines():
        if head := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            body = functions.setdefault(head[1], [])
        elif insn := re.match(r"\s*([0-9a-f]+):\s+([^/]*)", line):
            target = re.search(r"\s([0-9a-f]+) <", insn[2])
            branch = re.match(r"(b|b\..*|cbn?z|tbn?z)\s", insn[2])
            body.append((int(insn[1], 16), re.sub(r"\s*<.*", "", insn[2]).strip(),
                         int(target[1], 16) if branch and target else None))
    return functions


def loops(body):
    """The straight loops of a function: the instructions without the branch."""
    index = {address: i for i, (address, _, _) in enumerate(body)}
    for end, (address, _, target) in enumerate(body):
        if target is not None and target <= address and target in index:
            inner = body[index[target]:end]
            if not any(jump is not None for _, _, jump in inner):
                yield [insn for _, insn, _ in inner]


def cycles(mca, core, loop, verbose):
    turns = 100
    command = [mca, "--mtriple=aarch64-linux-gnu", f"-mcpu={core}", "-mattr=+dotprod,+i8mm",
               f"-iterations={turns}"]
    report = subprocess.run(command, input="\n".join(loop), check=True, capture_output=True,
                            text=True).stdout
    if verbose:
        print("\n".join(loop), report, sep="\n")
    width = int(re.search(r"Dispatch Width:\s+(\d+)", report)[1])
    return int(re.search(r"Total Cycles:\s+(\d+)", report)[1]) / turns, width


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", choices=COMPILERS, default="g++")
    parser.add_argument("--mca", default="llvm-mca", help="the llvm-mca to run")
    parser.add_argument("--verbose", action="store_true", help="print the loops and full reports")
    options = parser.parse_args()

    print("| core | kernels | loop | type | instructions | cycles | MAC/cycle | weights |")
    print("|---|---|---|---|---|---|---|---|")
    for core, (board, clock, isas) in CORES.items():
        for isa in isas:
            for function, body in disassemble(options.compiler, isa).items():
                kind = re.search(r"(?:Matmul|Block|Tile|TilePairs)Q([48])", function)
                for loop in loops(body):
                    names = [insn.split()[0] for insn in loop]
                    macs = sum(PRODUCTS.get(name, 0) for name in names)
                    if not kind or macs == 0:
                        continue
                    if macs % WEIGHTS != 0:
                        raise SystemExit(f"{isa}: {function}: a loop of {macs} products is not "
                                         f"whole groups of {WEIGHTS} weights")
                    count, width = cycles(options.mca, core, loop, options.verbose)
                    if core == "cortex-a710" and width < 5:
                        continue  # this llvm-mca takes it for an older core
                    dtype = "q" + kind[1]
                    decode = "prfm" in names  # only the loops of one token prefetch
                    rate = f"{BYTES[dtype] / count * clock:.1f} GB/s at {clock} GHz ({board})"
                    print(f"| {core} | {isa} | {'decode' if decode else 'prefill'} | {dtype} "
                          f"| {len(loop)} | {count:.1f} | {macs / count:.1f} "
                          f"| {rate if decode else '-'} |")


if __name__ == "__main__":
    main()
