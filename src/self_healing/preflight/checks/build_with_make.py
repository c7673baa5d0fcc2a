"""The check `build-with-make`: llama.cpp built by `make`, which it no longer supports."""

from __future__ import annotations

from collections.abc import Iterator

from ..build_steps import is_about_llama_cpp, steps_of
from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Subject
from ..tools import Tools

_RUN = "import subprocess\n"


class BuildWithMake(Check):
    """llama.cpp is built by CMake.

    Its Makefile does nothing any more but end with `Build system changed: The Makefile build has been replaced by CMake`.
    CMake also works the same on every machine.
    """

    passes = (
        Example(
            _RUN + "subprocess.run(['cmake', '--build', 'llama.cpp/build', '--target', 'llama-quantize'], check=True)\n"
        ),
        Example(_RUN + "subprocess.run(['make', '-C', 'my-kernels'], check=True)\n"),
        Example("import os\nos.system('cd llama.cpp && cmake -B build && make -C build')\n"),
    )
    fails = (
        Example(_RUN + "subprocess.run(['make', '-C', '/tmp/llama.cpp', 'llama-quantize'], check=True)\n"),
        Example("import os\nos.system('cd llama.cpp && make -j')\n"),
        Example(_RUN + "subprocess.run('make', cwd='llama.cpp', shell=True, check=True)\n"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look for make where nothing has called CMake."""
        for script in subject.scripts:
            steps = list(steps_of(script))
            if any(step.program == "cmake" for step in steps):
                continue
            for step in steps:
                if step.program in ("make", "gmake") and is_about_llama_cpp(script, step):
                    yield self.error(
                        Place(script.named, step.started.call.line), "llama.cpp cannot be built by make any more",
                        "Build it by CMake; the programs are then in llama.cpp/build/bin:\n"
                        'subprocess.run(["cmake", "-B", "llama.cpp/build", "-S", "llama.cpp", "-DGGML_CUDA=OFF"], check=True)\n'
                        'subprocess.run(["cmake", "--build", "llama.cpp/build", "--target", "llama-quantize", "-j", "4"], check=True)',
                    )  # fmt: skip
